// What a tokenizer's ids read, asked for once.
import { useEffect, useState } from "./vendor/htm_preact.js";
import { ask } from "./api.js";

/** @type {Map<string, Promise<Reader>>} */
const asked = new Map(); // By fingerprint; a tokenizer's pieces never change.

/**
 * The reader of a tokenizer's tokens.
 * @param {string} sha
 * @returns {Promise<Reader>}
 */
export const fetched = (sha) => {
  const known = asked.get(sha);
  if (known) return known;
  const reader = ask(`/v1/tokenizers/${encodeURIComponent(sha)}/pieces`).then(readerOf, (error) => {
    asked.delete(sha);
    throw error;
  });
  asked.set(sha, reader);
  return reader;
};

/**
 * Makes of an answer what gives an id's text, the bytes of a part of a character, or null for an id that it lacks.
 * @param {Pieces} answer
 * @returns {Reader}
 */
export const readerOf = ({ pieces, partial }) => (id) => {
  const held = partial[id];
  if (held === undefined) return pieces[id] ?? null;
  return Uint8Array.from(held.match(/../g) ?? [], (pair) => parseInt(pair, 16));
};

/**
 * The reader for a result's tokens and what a person has to know about it: [undefined, …] until it is known.
 * @param {Result | null} result
 * @returns {[Reader | null | undefined, string | null]}
 */
export const useReader = (result) => {
  const [found, setFound] = useState(/** @type {[Reader | null | undefined, string | null]} */ ([undefined, null]));
  const sha = result?.tokenizer?.tokenizer_sha256;
  useEffect(() => {
    let live = true;
    /** @param {Reader | null} reader @param {string | null} note */
    const settle = (reader, note) => live && setFound([reader, note]);
    if (result && !sha) settle(null, result.samples.length === 0 ? null : "Tokens are shown as ids: the result does not name its tokenizer.");
    else if (sha)
      fetched(sha).then(
        (reader) => settle(reader, null),
        (error) => settle(null, `Tokens are shown as ids, because their texts are not known here: ${error.message}`),
      );
    return () => {
      live = false;
    };
  }, [result, sha]);
  return found;
};
