// Texts of the rollouts that this tab has loaded, and a search in them. A pool's API searches no text: Redis has results
// compressed, and a search over a batch would read all of it.
import { ask, CARRIED, OF_FILE } from "./api.js";
import { around, drawnOf, finderOf, spansOf } from "./finding.js";
import { fetched } from "./pieces.js";
import { readingsOf } from "./readings.js";
import { allRuns, lengthOf, runAt } from "./runs.js";

const MOST_HELD = 100_000_000; // Characters and ids that a tab keeps for searches.
const MS = 12; // So long one answer takes, so that the page stays usable meanwhile.
const MATCHES = 100; // After so many an answer ends …
const OF_ROLLOUT = 20; // … of which so many are of one rollout.
const RESULTS = 50; // Are loaded at once.

/**
 * Tokens are kept only where the messages have no text.
 * @typedef {Pick<Result, "uid" | "rollout_id" | "index" | "batch_id"> & { messages: { role: string, texts: [string, string][] }[], samples: Sample[], sha: string | undefined }} Loaded
 */
/** @type {Map<string, Loaded>} */
const loaded = new Map(); // By uid.
/** @type {Map<string, { cursor: string, complete: boolean }>} */
const reached = new Map(); // By batch, how far its results were loaded.
let held = 0;

/** Whether no more is kept. */
export const isFull = () => held >= MOST_HELD;

/**
 * Keeps the texts of a result, where this tab is what searches them.
 * @param {Result} result
 */
export const remember = ({ uid, rollout_id, index, batch_id, messages, samples, tokenizer }) => {
  if (OF_FILE || CARRIED || loaded.has(uid) || isFull()) return;
  const texts = messages.map((message) => ({ role: message.role, texts: drawnOf(message).filter(([kind]) => kind !== "part") }));
  const characters = texts.flatMap((message) => message.texts).reduce((sum, [, text]) => sum + text.length, 0);
  const kept = characters ? [] : samples;
  held += characters + kept.reduce((sum, sample) => sum + lengthOf(sample), 0);
  loaded.set(uid, { uid, rollout_id, index, batch_id, messages: texts, samples: kept, sha: tokenizer?.tokenizer_sha256 });
};

/** @param {string | undefined} batch Without one, of all. */
const loadedOf = (batch) => [...loaded.values()].filter((one) => batch === undefined || one.batch_id === batch);

/**
 * How many rollouts are loaded.
 * @param {string | undefined} batch
 */
export const countLoaded = (batch) => loadedOf(batch).length;

/**
 * Whether all results that the batch had have been loaded by `loadMore`.
 * @param {string} batch
 */
export const isComplete = (batch) => reached.get(batch)?.complete ?? false;

/**
 * Loads some more results of a batch, in the order in which they ended.
 * @param {string} batch
 */
export const loadMore = async (batch) => {
  const cursor = reached.get(batch)?.cursor ?? "0";
  /** @type {{ items: { result: Result }[], next_cursor: string, complete: boolean }} */
  const page = await ask(`/v1/batches/${encodeURIComponent(batch)}/results?cursor=${encodeURIComponent(cursor)}&limit=${RESULTS}`);
  for (const { result } of page.items) remember(result);
  reached.set(batch, { cursor: page.next_cursor, complete: page.complete });
};

/** @typedef {Omit<TextMatch, "uid" | "rollout_id" | "index">} Match */

/**
 * @param {Loaded} one
 * @param {RegExp} finder
 * @returns {Match[]}
 */
const inMessages = ({ messages }, finder) =>
  messages.flatMap(({ role, texts }, message) => {
    let count = 0;
    return texts.flatMap(([kind, text]) =>
      spansOf(text, finder, OF_ROLLOUT + 1).map((span) => ({ kind, ...around(text, span), message, role, number: count++, sample: null, place: null, turn: null })),
    );
  });

/**
 * @param {Loaded} one
 * @param {RegExp} finder
 * @param {Reader} reader
 * @returns {Match[]}
 */
const inTokens = ({ samples }, finder, reader) => {
  const runs = allRuns(samples);
  return samples.flatMap((one, sample) => {
    const texts = readingsOf(one, runs[sample], reader);
    const shared = runs[sample].find((run) => run.kind === "shared")?.n ?? 0;
    const all = texts.join("");
    let place = 0; // Of the token that a match begins in, and where that token's text ends.
    let end = texts[0]?.length ?? 0;
    return spansOf(all, finder).flatMap((span) => {
      while (end <= span[0]) end += texts[++place].length;
      let [last, lastEnd] = [place, end];
      while (lastEnd < span[1]) lastEnd += texts[++last].length;
      if (last < shared) return []; // The sample before it has it too.
      return [{ kind: "tokens", ...around(all, span), message: null, role: null, number: null, sample, place, turn: runAt(runs[sample], place)?.turn ?? null }];
    });
  });
};

/**
 * The matches of a rollout; null where its tokens cannot be read.
 * @param {Loaded} one
 * @param {RegExp} finder
 * @returns {Promise<Match[] | null>}
 */
const matchesOf = async (one, finder) => {
  if (!one.samples.length) return inMessages(one, finder);
  const reader = one.sha ? await fetched(one.sha).catch(() => null) : null;
  return reader && inTokens(one, finder, reader);
};

/**
 * Searches on, after so many rollouts; the answer is like that of `rolloutpool view FILE`.
 * @param {Sought} sought
 * @param {number} after
 * @returns {Promise<SearchPage>}
 */
export const searchLoaded = async ({ q, matchCase, batch }, after) => {
  const finder = finderOf(q, matchCase);
  const all = loadedOf(batch);
  /** @type {SearchPage} */
  const page = { matches: [], searched: after, total: all.length, cut: 0, unread: 0, next_cursor: null };
  if (!finder) return page;
  await new Promise((resolve) => setTimeout(resolve));
  const end = performance.now() + MS;
  while (page.searched < all.length && page.matches.length < MATCHES && performance.now() < end) {
    const one = all[page.searched++];
    const found = await matchesOf(one, finder);
    if (!found) page.unread++;
    else if (found.length > OF_ROLLOUT) page.cut++;
    const { uid, rollout_id, index } = one;
    page.matches.push(...(found ?? []).slice(0, OF_ROLLOUT).map((match) => ({ uid, rollout_id, index, ...match })));
  }
  if (page.searched < all.length) page.next_cursor = String(page.searched);
  return page;
};
