// Calls of the API, with the key that the reader typed: it stays in this tab and travels in a header only.
// A page that carries its answers with it (`rolloutpool show --html`) asks nobody.
import { useEffect, useRef, useState } from "./vendor/htm_preact.js";

const STORED = "rolloutpool.key";
const carried = document.getElementById("answers");
const ANSWERS = carried && new Map(Object.entries(JSON.parse(carried.textContent)));

/** Whether this page is one file that carries its answers. */
export const CARRIED = ANSWERS !== null;

export const storedKey = () => (CARRIED ? "" : sessionStorage.getItem(STORED) ?? "");
export const storeKey = (key) => (key ? sessionStorage.setItem(STORED, key) : sessionStorage.removeItem(STORED));

/** An answer that is an error, in the API's own words. */
export class ApiFailure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Asks for a path of the API, such as `/v1/batches`; throws an `ApiFailure`. */
export const ask = async (path, signal) => {
  if (ANSWERS) {
    if (ANSWERS.has(path)) return ANSWERS.get(path);
    throw new ApiFailure(404, "This file does not hold it: ask the pool.");
  }
  const key = storedKey();
  let answer;
  try {
    // The page is at `/ui`, perhaps below a proxy's prefix, so the API is beside it.
    answer = await fetch(new URL(`.${path}`, document.baseURI), {
      signal,
      headers: key ? { Authorization: `Bearer ${key}` } : {},
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiFailure(0, `The API does not answer: ${error.message}`);
  }
  const document_ = await answer.json().catch(() => null);
  if (!answer.ok) throw new ApiFailure(answer.status, document_?.error?.message ?? `status ${answer.status}`);
  if (document_ === null) throw new ApiFailure(answer.status, "The answer is not JSON.");
  return document_;
};

/**
 * Asks while a component is shown, and again after `every` ms (0: not again) if the page is in view. `every` may be a
 * function of the last success, null if there was none.
 * Returns { data, error, again }; `data` is that of the last success.
 */
export const useAnswer = (path, every = 0) => {
  const [answer, setAnswer] = useState({ path: null, data: null, error: null });
  const [round, setRound] = useState(0);
  const last = useRef(null);
  const rate = useRef(every);
  rate.current = every;
  useEffect(() => {
    if (!path) return undefined;
    const stop = new AbortController();
    let timer = 0;
    const pause = () => (typeof rate.current === "function" ? rate.current(last.current) : rate.current);
    const again = () => (document.hidden ? (timer = setTimeout(again, pause())) : setRound((n) => n + 1));
    ask(path, stop.signal)
      .then((data) => {
        last.current = data;
        setAnswer({ path, data, error: null });
      })
      .catch((error) => {
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
