// What tokens read. A character may be spread over several tokens: it stands at the first of them, and the others read
// nothing, so that the text of the page is the text itself.
import { idAt } from "./runs.js";
import { visible } from "./text.js";

const LONGEST = 8; // Tokens that one character may take before it counts as broken: four bytes, and four to spare.
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** @param {Uint8Array} bytes */
const decoded = (bytes) => {
  try {
    return strict.decode(bytes);
  } catch {
    return null;
  }
};

/** @param {Uint8Array} bytes */
const hex = (bytes) => `\u27e8${[...bytes].map((byte) => byte.toString(16).toUpperCase().padStart(2, "0")).join(" ")}\u27e9`;
/** @param {string} text */
const shown = (text) => visible(text).replaceAll("\n", "↵\n") || "␀";

/** @param {Uint8Array[]} parts */
const joined = (parts) => {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
};

/**
 * The texts of a sample's tokens, by place. Without a reader these are the ids.
 * reader: (id) => the token's text, the bytes of a part of a character, or null for an id that it does not know.
 * @param {Ids} sample
 * @param {Pick<Run, "start" | "n">[]} runs
 * @param {Reader | null} reader
 * @returns {string[]}
 */
export const readingsOf = (sample, runs, reader) => {
  /** @type {string[]} */
  const texts = [];
  /** @type {Map<number, string | null>} */
  const whole = new Map(); // By id, the text of a token that holds whole characters; null for one that does not.
  /** @type {Map<number, Uint8Array>} */
  const bytesOf = new Map(); // The bytes of the others.
  /** @param {Reader} read @param {number} id */
  const learn = (read, id) => {
    const held = read(id);
    if (held instanceof Uint8Array) bytesOf.set(id, held);
    whole.set(id, held === null ? `⟨${id}⟩` : held instanceof Uint8Array ? null : shown(held));
  };
  /** @param {number} place */
  const bytesAt = (place) => bytesOf.get(idAt(sample, place)) ?? new Uint8Array();
  for (const run of runs) {
    if (!reader) {
      for (let at = run.start; at < run.start + run.n; at++) texts[at] = `${idAt(sample, at)} `;
      continue;
    }
    /** @type {number[]} */
    let waiting = []; // Places whose bytes begin a character and do not end it.
    const giveUp = () => {
      for (const at of waiting) texts[at] = hex(bytesAt(at));
      waiting = [];
    };
    for (let at = run.start; at < run.start + run.n; at++) {
      const id = idAt(sample, at);
      if (!whole.has(id)) learn(reader, id);
      const text = whole.get(id) ?? null;
      if (text !== null) {
        giveUp();
        texts[at] = text;
        continue;
      }
      waiting.push(at);
      const together = decoded(joined(waiting.map(bytesAt)));
      if (together !== null) {
        for (const place of waiting) texts[place] = "";
        texts[waiting[0]] = shown(together);
        waiting = [];
      } else if (waiting.length >= LONGEST) giveUp();
    }
    giveUp();
  }
  return texts;
};
