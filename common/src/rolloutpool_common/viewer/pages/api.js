// Calls of the API, with the key that the reader typed: it stays in this tab and travels in a header only.
// A page that carries its answers with it (`rolloutpool show --html`) asks nobody.
import { useEffect, useRef, useState } from "./vendor/htm_preact.js";

const STORED = "rolloutpool.key";
const RETRY = 5000; // After a failure that passes.
const carried = document.getElementById("answers");
const ANSWERS = carried && new Map(Object.entries(JSON.parse(carried.textContent ?? "{}")));

/** Whether this page is one file that carries its answers. */
export const CARRIED = ANSWERS !== null;
/** Whether `rolloutpool view FILE` serves this page, which searches the texts of its file. */
export const OF_FILE = document.getElementById("viewer")?.dataset.search === "file";

export const storedKey = () => (CARRIED ? "" : sessionStorage.getItem(STORED) ?? "");
/** @param {string} key */
export const storeKey = (key) => (key ? sessionStorage.setItem(STORED, key) : sessionStorage.removeItem(STORED));

/** An answer that is an error, in the API's own words. */
export class ApiFailure extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
    this.passes = status === 0 || status === 429 || status >= 500;
  }
}

/**
 * What an answer says of its error: its faults, each with its place, where it lists them.
 * @param {{ message?: string, faults?: { path: string, message: string }[] } | undefined} error
 */
const saidOf = (error) => error?.faults?.map(({ path, message }) => `${path}: ${message}`).join("; ") || error?.message;

/**
 * Asks for a path of the API, such as `/v1/batches`; throws an `ApiFailure`.
 * @param {string} path
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>} What the API's document says of this path.
 */
export const ask = async (path, signal) => {
  if (ANSWERS) {
    if (ANSWERS.has(path)) return ANSWERS.get(path);
    throw new ApiFailure(404, "This file does not hold it: ask the pool.");
  }
  const key = storedKey();
  /** @type {Response} */
  let answer;
  try {
    // The page is at `/ui`, perhaps below a proxy's prefix, so the API is beside it.
    answer = await fetch(new URL(`.${path}`, document.baseURI), {
      signal,
      headers: new Headers(key ? { Authorization: `Bearer ${key}` } : {}),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiFailure(0, `The API does not answer: ${error instanceof Error ? error.message : error}`);
  }
  const document_ = await answer.json().catch(() => null);
  if (!answer.ok) throw new ApiFailure(answer.status, saidOf(document_?.error) ?? `Status ${answer.status}, and no word of the pool's: a proxy before it may have answered.`);
  if (document_ === null) throw new ApiFailure(answer.status, "The answer is not JSON.");
  return document_;
};

/**
 * Asks while a component is shown, and again after `every` ms (0: not again) if the page is in view. `every` may be a
 * function of the last success, null if there was none. After a failure that passes it is asked again anyway.
 * Returns { data, error, again }; `data` is that of the last success.
 * @template T
 * @param {string | null | false | undefined} path Nothing is asked without one.
 * @param {number | ((last: T | null) => number)} every
 * @returns {Asked<T>}
 */
export const useAnswer = (path, every = 0) => {
  const [answer, setAnswer] = useState(
    /** @type {{ path: typeof path, data: T | null, error: Fault | null }} */ ({ path: null, data: null, error: null }),
  );
  const [round, setRound] = useState(0);
  const last = useRef(/** @type {T | null} */ (null));
  const rate = useRef(every);
  rate.current = every;
  useEffect(() => {
    if (!path) return undefined;
    const stop = new AbortController();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    let retry = 0;
    const pause = () => (typeof rate.current === "function" ? rate.current(last.current) : rate.current) || retry;
    const again = () => {
      if (document.hidden) timer = setTimeout(again, pause());
      else setRound((n) => n + 1);
    };
    ask(path, stop.signal)
      .then((data) => {
        last.current = data;
        setAnswer({ path, data, error: null });
      })
      .catch((error) => {
        if (error instanceof ApiFailure && error.passes) retry = RETRY;
        if (!stop.signal.aborted) setAnswer((before) => ({ path, data: before.path === path ? before.data : null, error }));
      })
      .finally(() => {
        if (!stop.signal.aborted && !CARRIED && pause()) timer = setTimeout(again, pause());
      });
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [path, typeof every === "function" ? 0 : every, round]);
  const mine = answer.path === path;
  return { data: mine ? answer.data : null, error: mine ? answer.error : null, again: () => setRound((n) => n + 1) };
};
