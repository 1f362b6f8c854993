// What proves or disproves the masks of a result: where the trainer's echo parts from the ledger, what forked, and
// whether the figures agree. Pure.
import { commonIds, contradicts, hasLines, idAt, isFork, lengthOf } from "./runs.js";

const BEFORE = 8;
const AFTER = 24;

/**
 * @param {Sample} sample
 * @param {number} from
 * @param {number} to
 */
const idsOf = (sample, from, to) => Array.from({ length: Math.max(0, Math.min(to, lengthOf(sample)) - from) }, (_, n) => idAt(sample, from + n));

/**
 * @param {Sample} sample
 * @returns {number | null}
 */
const firstTurn = (sample) => sample.segments.find(({ kind }) => kind === "sampled")?.turn ?? sample.segments[0]?.turn ?? null;

/**
 * The forks of a result: [{ sample, turn, position, before, expected, echoed }]. A fork's prompt is what the trainer
 * echoed; the sample before it is the ledger as it was. So the first difference of the two is in the result itself.
 * @param {Result} result
 * @returns {Fork[]}
 */
export const forksOf = (result) =>
  result.samples.slice(1).flatMap((sample, index) => {
    if (!isFork(result, index + 1)) return [];
    const ledger = result.samples[index];
    const position = commonIds(ledger, sample, sample.prompt_ids.length);
    return {
      sample: index + 1,
      turn: firstTurn(sample),
      position,
      before: idsOf(ledger, Math.max(0, position - BEFORE), position),
      expected: idsOf(ledger, position, position + AFTER),
      echoed: sample.prompt_ids.slice(position, position + AFTER),
      // Trained tokens of the sample before that lie where the echo differs: they stay trained there, as they were sampled.
      kept: ledger.response_mask.slice(Math.max(0, position - ledger.prompt_ids.length)).reduce((sum, value) => sum + value, 0),
    };
  });

/**
 * The first differences of a result: [{ at, turn, position, before, expected, echoed, fork }]. What its turns recorded, or
 * the failure that a difference caused, else what the forks show (`fork`: one of `forksOf`, or null). `at` is the place of
 * the turn's record, or -1.
 * @param {Result} result
 * @returns {Found[]}
 */
export const differencesOf = (result) => {
  const forks = forksOf(result);
  // Each of several lines has such a turn.
  const several = hasLines(result);
  /** @param {number} turn @param {number} position */
  const forkOf = (turn, position) => forks.find((fork) => fork.turn === turn && (!several || fork.position === position)) ?? null;
  /** @param {number | null} number */
  const placeOf = (number) => (several ? -1 : result.turns.findIndex(({ turn }) => turn === number));
  const recorded = result.turns.flatMap(({ turn, difference }, at) => (difference ? [{ ...difference, at, turn, fork: forkOf(turn, difference.position) }] : []));
  const failed = result.failure?.difference ? [{ ...result.failure.difference, at: placeOf(result.failure.turn), turn: result.failure.turn, fork: null }] : [];
  const known = new Set(recorded.map(({ turn }) => /** @type {number | null} */ (turn)));
  const shown = several ? [] : forks.filter(({ turn }) => !known.has(turn));
  return [...recorded, ...shown.map((fork) => ({ ...fork, at: placeOf(fork.turn), fork })), ...failed];
};

/**
 * Checks of a result that need nothing but the result: [{ says, holds }]; null where there is nothing to hold.
 * @param {Result} result
 * @param {Run[][]} runs
 * @returns {{ says: string, holds: boolean | null }[]}
 */
export const checksOf = (result, runs) => {
  const list = runs.flat();
  const trained = list.filter((run) => run.trained).reduce((sum, run) => sum + run.n, 0);
  const wrong = list.filter(contradicts).reduce((sum, run) => sum + run.n, 0);
  const inSegments = list.filter((run) => run.kind === "sampled").reduce((sum, run) => sum + run.n, 0);
  const reported = result.turns.reduce((sum, turn) => sum + turn.sampled_tokens, 0);
  /** @type {Map<number | undefined, Set<number>>} */
  const owners = new Map();
  runs.forEach((one, sample) => one.forEach((run) => {
    if (run.kind !== "sampled") return;
    const owned = owners.get(run.turn) ?? new Set();
    owners.set(run.turn, owned.add(sample));
  }));
  // Each of several lines has a turn of this number, and a record of it.
  const held = [...owners].map(([number, { size }]) => ({ size, turns: Math.max(1, Math.min(size, result.turns.filter(({ turn }) => turn === number).length)) }));
  const sampled = held.reduce((sum, { turns }) => sum + turns, 0);
  const once = held.reduce((sum, { size, turns }) => sum + (size > turns ? 0 : turns), 0);
  const uncovered = list.filter((run) => run.kind === "unknown").reduce((sum, run) => sum + run.n, 0);
  /** @param {number} number */
  const figures = (number) => number.toLocaleString("en");
  return [
    { says: `mask 1 lies on sampled tokens only: ${figures(trained - wrong)} of ${figures(trained)}`, holds: wrong === 0 },
    { says: `each sampled turn is in one sample: ${figures(once)} of ${figures(sampled)}`, holds: once === sampled },
    { says: `every token of the responses has an origin: ${figures(uncovered)} have none`, holds: uncovered === 0 },
    { says: `the turns report ${figures(reported)} sampled tokens, the samples hold ${figures(inSegments)}, and ${figures(trained)} are trained`, holds: inSegments === reported ? true : null },
  ];
};
