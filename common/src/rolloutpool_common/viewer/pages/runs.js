// A sample cut into runs: stretches of tokens with one origin. Pure, and never wrong about the mask: it is the result's.
// A *place* is an offset into prompt and response together.

/**
 * Tokens of prompt and response.
 * @param {Ids} sample
 */
export const lengthOf = (sample) => sample.prompt_ids.length + sample.response_ids.length;

/**
 * The id at a place.
 * @param {Ids} sample
 * @param {number} place
 */
export const idAt = (sample, place) => {
  const prompt = sample.prompt_ids.length;
  return place < prompt ? sample.prompt_ids[place] : sample.response_ids[place - prompt];
};

/**
 * Counts the first ids that two samples have in common, at most `limit`.
 * @param {Ids} one
 * @param {Ids} other
 */
export const commonIds = (one, other, limit = Infinity) => {
  const end = Math.min(lengthOf(one), lengthOf(other), limit);
  let place = 0;
  while (place < end && idAt(one, place) === idAt(other, place)) place++;
  return place;
};

/**
 * Says what is wrong with a sample's lists; null if nothing is.
 * @param {Sample} sample
 */
export const brokenLists = ({ response_ids: ids, response_mask: mask, response_logprobs: logprobs }) =>
  ids.length === mask.length && ids.length === logprobs.length
    ? null
    : `${ids.length} response ids, ${mask.length} mask values and ${logprobs.length} log-probabilities`;

/**
 * Cuts a sample into runs: [{ kind, start, n, turn, policy, trained }], prompt first. `shared` first ids are those of the
 * sample before it, from which it forked. Tokens that no segment covers are of the kind `unknown`.
 * @param {Sample} sample
 * @returns {Run[]}
 */
export const runsOf = (sample, shared = 0) => {
  const prompt = sample.prompt_ids.length;
  const total = sample.response_ids.length;
  const mask = sample.response_mask;
  /** @type {Run[]} */
  const runs = [];
  if (shared) runs.push({ kind: "shared", start: 0, n: shared, trained: false });
  if (prompt > shared) runs.push({ kind: "prompt", start: shared, n: prompt - shared, trained: false });
  /** @param {string} kind @param {number} from @param {number} to @param {Sample["segments"][number] | null} segment */
  const add = (kind, from, to, segment) => {
    for (let at = from; at < to; ) {
      const begin = at;
      while (at < to && mask[at] === mask[begin]) at++;
      const more = segment ? { turn: segment.turn, policy: segment.policy_version } : {};
      runs.push({ kind, start: prompt + begin, n: at - begin, trained: mask[begin] === 1, ...more });
    }
  };
  let reached = 0;
  for (const segment of sample.segments) {
    const start = Math.min(Math.max(segment.start, reached), total);
    const end = Math.min(Math.max(segment.start + segment.n, start), total);
    add("unknown", reached, start, null);
    add(segment.kind, start, end, segment);
    reached = end;
  }
  add("unknown", reached, total, null);
  return runs;
};

/**
 * Mask 1 where the segment says that the policy did not sample.
 * @param {Run} run
 */
export const contradicts = (run) => run.trained && run.kind !== "sampled" && run.kind !== "unknown";

/**
 * The run at a place.
 * @param {Run[]} runs
 * @param {number} place
 */
export const runAt = (runs, place) => runs.find((run) => place >= run.start && place < run.start + run.n);

/**
 * The runs between two places, cut there.
 * @param {Run[]} runs
 * @param {number} from
 * @param {number} to
 * @returns {Run[]}
 */
export const runsBetween = (runs, from, to) =>
  runs.flatMap((run) => {
    const start = Math.max(run.start, from);
    const end = Math.min(run.start + run.n, to);
    return start < end ? [{ ...run, start, n: end - start }] : [];
  });

/**
 * For each sample of a result, its runs. A fork begins with what it shares with the sample before it.
 * @param {Sample[]} samples
 */
export const allRuns = (samples) =>
  samples.map((sample, at) => {
    const shared = at ? commonIds(samples[at - 1], sample, sample.prompt_ids.length) : 0;
    return runsOf(sample, shared);
  });

/**
 * Turns that the policy sampled in a sample.
 * @param {Sample} sample
 */
const sampledTurns = ({ segments }) => segments.filter(({ kind }) => kind === "sampled").map(({ turn }) => turn);

/**
 * Whether a result has several lines of talk, whose turns count from 1 each.
 * @param {Result} result
 */
export const hasLines = ({ turns }) => new Set(turns.map(({ turn }) => turn)).size < turns.length;

/**
 * Whether a sample goes on in the line of the sample before it, from which it forked. Turns of a line only count up.
 * @param {Result} result
 * @param {number} at
 */
export const isFork = (result, at) =>
  at > 0 && (!hasLines(result) || Math.min(...sampledTurns(result.samples[at])) > Math.max(...sampledTurns(result.samples[at - 1])));

/**
 * Policy versions in the order in which they sampled.
 * @param {Run[][]} runs
 * @returns {string[]}
 */
export const versionsOf = (runs) => [...new Set(runs.flat().flatMap((run) => run.policy ?? []))];
