// Calls of the API, with the key that the reader typed: it stays in this tab and travels in a header only.
import { useEffect, useState } from "./vendor/htm_preact.js";

const STORED = "rolloutpool.key";

export const storedKey = () => sessionStorage.getItem(STORED) ?? "";
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
  return document_;
};

/**
 * Asks while a component is shown, and again after `every` ms (0: once) if the page is in view.
 * Returns { data, error, again }; `data` is that of the last success.
 */
export const useAnswer = (path, every = 0) => {
  const [answer, setAnswer] = useState({ path: null, data: null, error: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (!path) return undefined;
    const stop = new AbortController();
    let timer = 0;
    const again = () => (document.hidden ? (timer = setTimeout(again, every)) : setRound((n) => n + 1));
    ask(path, stop.signal)
      .then((data) => setAnswer({ path, data, error: null }))
      .catch((error) => {
        if (!stop.signal.aborted) setAnswer((before) => ({ path, data: before.path === path ? before.data : null, error }));
      })
      .finally(() => {
        if (every && !stop.signal.aborted) timer = setTimeout(again, every);
      });
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [path, every, round]);
  const mine = answer.path === path;
  return { data: mine ? answer.data : null, error: mine ? answer.error : null, again: () => setRound((n) => n + 1) };
};
