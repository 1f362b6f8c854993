// What a tokenizer's ids read, asked for once.
import { useEffect, useState } from "./vendor/htm_preact.js";
import { ask } from "./api.js";

const asked = new Map(); // By fingerprint; a tokenizer's pieces never change.

const fetched = (sha) => {
  if (!asked.has(sha)) asked.set(sha, ask(`/v1/tokenizers/${encodeURIComponent(sha)}/pieces`).then(readerOf, (error) => {
    asked.delete(sha);
    throw error;
  }));
  return asked.get(sha);
};

/** Makes of an answer what gives an id's text, the bytes of a part of a character, or null for an id that it lacks. */
export const readerOf = ({ pieces, partial }) => (id) => {
  const held = partial[id];
  if (held === undefined) return pieces[id] ?? null;
  return Uint8Array.from(held.match(/../g) ?? [], (pair) => parseInt(pair, 16));
};

/** The reader for a result's tokens and what a person has to know about it: [undefined, …] until it is known. */
export const useReader = (result) => {
  const [found, setFound] = useState([undefined, null]);
  const sha = result?.tokenizer?.tokenizer_sha256;
  useEffect(() => {
    let live = true;
    const settle = (reader, note) => live && setFound([reader, note]);
    if (result && !sha) settle(null, "Tokens are shown as ids: the result does not name its tokenizer.");
    else if (result)
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
