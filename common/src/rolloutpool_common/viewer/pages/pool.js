// The pool: what is wrong now, the worst first, and what to do; then who works on what.
import { html } from "./vendor/htm_preact.js";
import { address } from "./address.js";
import { CARRIED, useAnswer } from "./api.js";
import { Failure, Id } from "./parts.js";
import { counted, duration, figure, percent, visible } from "./text.js";

const EVERY = 5000;
const MB = 1_000_000;
const SHOWN = 5; // Batches of a trouble.
const PATIENT = new Set(["slot", "tokenizer", "grader", "harness"]);

/** What is wrong now, asked again every few seconds; null where this page has no pool that says it. */
export const useOverview = () => {
  /** @type {Asked<PoolOverview>} */
  const asked = useAnswer(!CARRIED && "/v1/overview", EVERY);
  return asked;
};

/**
 * The verdict in a line, for the list of batches.
 * @param {{ pool: PoolOverview | null }} props
 */
export const Verdict = ({ pool }) => pool && html`<p class="verdict"><a class=${calm(pool) ? "" : "bad"} href=${address(["pool"])}>${visible(pool.verdict)}</a></p>`;

/**
 * What holds a batch up: who has to do something. Nothing where it only waits for its turn.
 * @param {PoolOverview | null} pool
 * @param {string} id
 */
export const heldUp = (pool, id) => pool?.troubles.find((one) => one.waits_for && !PATIENT.has(one.waits_for) && one.batches.includes(id))?.title ?? null;

/**
 * Whether the verdict says that nothing is wrong.
 * @param {PoolOverview} pool
 */
const calm = (pool) => pool.verdict.startsWith("Nothing is wrong");

/** The first page of an operator. */
export const Pool = () => {
  const { data, error } = useOverview();
  return html`<div><h1>Pool</h1>
    <${Failure} error=${error} />
    ${data && html`<p class="verdict ${calm(data) ? "" : "bad"}" role="status">${visible(data.verdict)}</p>
      ${data.troubles.map((trouble, at) => html`<${TroubleCard} key=${at} trouble=${trouble} />`)}
      ${data.pool && html`<${Figures} pool=${data.pool} />`}
      <p><a href=${address(["batches"])}>all batches</a>${data.running ? `; ${figure(data.running)} of them ${data.running === 1 ? "runs" : "run"}` : ""}</p>`}</div>`;
};

/** @param {{ trouble: PoolOverview["troubles"][number] }} props */
const TroubleCard = ({ trouble }) =>
  html`<section class="alert ${["warning", "drift"].includes(trouble.kind) ? "mild" : ""}">
    <h2>${trouble.rollouts ? `${counted(trouble.rollouts, "rollout")}: ` : ""}${visible(trouble.title)}${trouble.endpoint && html` <code>${visible(trouble.endpoint)}</code>`}</h2>
    ${trouble.detail && html`<p>${visible(trouble.detail)}</p>`}
    <p>${visible(trouble.todo)}</p>
    ${trouble.batches.length > 0 && html`<p>${trouble.batches.slice(0, SHOWN).map((id) => html`<${Id} key=${id} id=${id} href=${address(["batch", id])} /> `)}
      ${trouble.batches.length > SHOWN && `and ${counted(trouble.batches.length - SHOWN, "more")}`}</p>`}</section>`;

/** @param {{ pool: NonNullable<PoolOverview["pool"]> }} props */
const Figures = ({ pool }) => {
  const queued = Object.values(pool.queues).reduce((sum, queue) => sum + queue.outbox + queue.published, 0);
  /** @type {[string, string][]} */
  const rows = [
    ["workers", `${figure(pool.workers)}${pool.draining ? `, of which ${figure(pool.draining)} drain` : ""}`],
    ["slots", `${figure(pool.running)} of ${figure(pool.slots)} taken`],
    ["queue", `${counted(queued, "rollout")}${pool.oldest_ticket_s ? `, the oldest ticket for ${duration(pool.oldest_ticket_s * 1000)}` : ""}`],
    ["open", counted(pool.open, "rollout")],
    ["paused runs", figure(pool.paused_runs)],
    ["Redis", `${figure(Math.round(pool.redis_bytes / MB))} MB${pool.redis_limit_bytes ? ` of ${figure(Math.round(pool.redis_limit_bytes / MB))} (${percent(pool.redis_bytes / pool.redis_limit_bytes)})` : ", without a limit"}`],
    ["builds", Object.entries(pool.builds).map(([build, count]) => `${visible(build)}: ${counted(count, "worker")}`).join(", ")],
  ];
  return html`<dl>${rows.map(([name, value]) => [html`<dt key=${name}>${name}</dt>`, html`<dd key=${`${name} is`}>${value}</dd>`])}</dl>`;
};
