// Where a rollout's time went, and which rollouts held the batch. Pure.

/** The kinds of time, in the order in which they are drawn. */
export const KINDS = ["queued", "tokenizer", "model", "tools", "own", "loop", "redis", "other", "running"];

/** @type {[string, "tokenizer_ms" | "llm_ms" | "tools_ms"][]} */
const SUMS = [["tokenizer", "tokenizer_ms"], ["model", "llm_ms"], ["tools", "tools_ms"]];

/**
 * What the worker's time was: its own work, and the waits of the rollout's records; one part where the waits are not known.
 * @param {number} other all of it, ms
 * @param {number | null} loop
 * @param {number | null} redis
 */
export const workersParts = (other, loop, redis) => {
  if (loop === null || redis === null) return [{ kind: "other", ms: other }];
  // Waits of branches at once are added up.
  const scale = loop + redis > other ? other / (loop + redis) : 1;
  return [{ kind: "own", ms: Math.max(0, other - loop - redis) }, { kind: "loop", ms: loop * scale }, { kind: "redis", ms: redis * scale }];
};

/**
 * Adds to a page's columns what its lanes need: `start_ms` and `end_ms` (since the batch was accepted), `other_ms`,
 * `longest` (the kind that took most), and `parts` ([{ kind, from, to }]). In an ended rollout's lane the time of a kind is
 * one part, because a row has sums.
 * @param {Pick<RowPage, "columns" | "created_ms" | "now_ms">} page
 * @returns {LaneColumns}
 */
export const lanesOf = ({ columns, created_ms: created, now_ms: now }) => {
  const lanes = columns.index.map((_, place) => laneOf((name) => columns[name]?.[place] ?? null, created, now));
  return {
    ...columns,
    start_ms: lanes.map((lane) => lane.start_ms),
    end_ms: lanes.map((lane) => lane.end_ms),
    other_ms: lanes.map((lane) => lane.other_ms),
    longest: lanes.map((lane) => lane.longest),
    parts: lanes.map((lane) => lane.parts),
  };
};

/**
 * @param {<K extends keyof RowColumns>(name: K) => RowColumns[K][number] | null} of
 * @param {number} created
 * @param {number} now
 * @returns {{ start_ms: number | null, end_ms: number | null, other_ms: number | null, longest: string | null, parts: LanePart[] }}
 */
const laneOf = (of, created, now) => {
  const status = of("status");
  const ended = of("ended_ms");
  if (status === "queued") return { start_ms: null, end_ms: null, other_ms: null, longest: "queued", parts: [{ kind: "queued", from: 0, to: now - created }] };
  if (status === "running" || status === "grading") {
    const start = (of("claimed_ms") ?? created) - created;
    return { start_ms: start, end_ms: null, other_ms: null, longest: null, parts: [{ kind: "queued", from: 0, to: start }, { kind: "running", from: start, to: now - created }] };
  }
  const total = of("total_ms") ?? 0;
  const end = Math.max(0, ended === null ? (of("queued_ms") ?? 0) + total : ended - created);
  const claimed = of("claimed_ms");
  const start = Math.min(end, Math.max(0, claimed === null ? end - total : claimed - created));
  const sums = SUMS.map(([kind, name]) => ({ kind, ms: of(name) ?? 0 }));
  const known = sums.reduce((sum, { ms }) => sum + ms, 0);
  // Clocks differ by some milliseconds, earlier attempts and turns at once count in the sums, so these may be more than the time between claim and end.
  const scale = known > end - start ? (end - start) / known : 1;
  const other = Math.max(0, end - start - known);
  const parts = [{ kind: "queued", from: 0, to: start }];
  const workers = workersParts(other, of("loop_ms"), of("redis_ms"));
  for (const { kind, ms } of [...sums.map(({ kind, ms }) => ({ kind, ms: ms * scale })), ...workers]) {
    const from = parts[parts.length - 1].to;
    parts.push({ kind, from, to: from + ms });
  }
  const longest = [{ kind: "queued", ms: start }, ...sums, ...workers].reduce((one, two) => (two.ms > one.ms ? two : one)).kind;
  return { start_ms: start, end_ms: end, other_ms: other, longest, parts: parts.filter(({ from, to }) => to > from) };
};

/**
 * The last twentieth of the rollouts to end, at least one: { places, cut, last, share }. `cut` is when all others had
 * ended, `share` the part of the batch's time that the last ones took alone. Null with less than three that have ended.
 * @param {(number | null)[]} ends
 */
export const stragglersOf = (ends) => {
  const order = ends.flatMap((end, place) => (end === null ? [] : [{ end, place }])).sort((one, other) => one.end - other.end);
  if (order.length < 3) return null;
  const late = Math.max(1, Math.floor(order.length / 20));
  const cut = order[order.length - late - 1].end;
  const last = order[order.length - 1].end;
  return { places: new Set(order.slice(-late).map(({ place }) => place)), cut, last, share: last > 0 ? (last - cut) / last : 0 };
};

/**
 * The parts of one rollout's lane by turn, from its turns' own times; empty where they are not known.
 * @param {Turn} turn
 * @returns {LanePart[]}
 */
export const turnParts = (turn) => {
  if (typeof turn.start_ms !== "number" || typeof turn.llm_ms !== "number") return [];
  const asked = turn.start_ms + turn.llm_ms;
  const tools = Math.max(0, ...(turn.tools ?? []).map(({ ms }) => ms));
  return [{ kind: "model", from: turn.start_ms, to: asked }, ...(tools ? [{ kind: "tools", from: asked, to: asked + tools }] : [])];
};
