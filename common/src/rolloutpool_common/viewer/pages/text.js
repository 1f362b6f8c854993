// Text and figures as people read them. What comes from a model or the network goes through `visible` and then into a
// text node: nothing here makes markup.

const PLAIN = /^[\x20-\x7e\n\t]*$/;
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f]/g;
// Format characters, half characters, private and unassigned ones, except for two joiners that words and emoji need.
const HIDDEN = /(?![\u200c\u200d])[\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\u0080-\u009f]/gu;

/**
 * Makes text of which nothing is hidden: control characters get a picture, all others that are not seen a name.
 * @param {unknown} value
 */
export const visible = (value) => {
  const text = String(value ?? "");
  if (PLAIN.test(text)) return text;
  return text
    .replace(CONTROL, (c) => (c === "\u007f" ? "\u2421" : String.fromCharCode(0x2400 + c.charCodeAt(0))))
    .replace(HIDDEN, (c) => `\u27e8U+${(c.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
};

// One for all figures: `toLocaleString` would make one for each, which took a quarter of the time of a sorted table.
const FIGURES = new Intl.NumberFormat("en", { maximumFractionDigits: 4 });

/**
 * A number with thin groups; empty for null.
 * @param {unknown} value
 */
export const figure = (value) => (typeof value === "number" ? FIGURES.format(value) : "");

/**
 * Milliseconds as a person says them.
 * @param {unknown} ms
 */
export const duration = (ms) => {
  if (typeof ms !== "number") return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 120_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 7_200_000) return `${(ms / 60_000).toFixed(1)} min`;
  return `${(ms / 3_600_000).toFixed(1)} h`;
};

/**
 * A share as a percentage.
 * @param {number} share
 */
export const percent = (share) => `${Math.round(100 * share)} %`;

/**
 * A count with its noun: `1 turn`, `2 turns`.
 * @param {number} count
 * @param {string} noun
 */
export const counted = (count, noun) => `${figure(count)} ${noun}${count === 1 ? "" : "s"}`;

/** @type {{ [state: string]: string }} */
const MARKS = { completed: "✓", failed: "✕", expired: "◷", cancelled: "⊘", running: "▶", grading: "◔", queued: "…", complete: "✓" };

/**
 * A state with its mark, so that it can be told without colour.
 * @param {string | null | undefined} name
 */
export const state = (name) => `${MARKS[name ?? ""] ?? "?"} ${visible(name)}`;

/**
 * An id as people tell it from others: the first signs of a batch, and the number of a rollout in it.
 * @param {string} id
 */
export const short = (id) => id.replace(/^(b[0-9a-f]{7})[0-9a-f]{25}(?=$|-\d+$)/, "$1");

/**
 * The name of a rollout: its number in its batch, and what its caller calls it.
 * @param {number | null | undefined} index
 * @param {string | null | undefined} name
 * @param {string | undefined} uid
 */
export const named = (index, name, uid) => `#${figure(index)}${name && name !== uid ? ` ${visible(name)}` : ""}`;

/**
 * Any value of a column, in a cell.
 * @param {unknown} value
 */
export const cell = (value) => {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return figure(value);
  return visible(Array.isArray(value) ? value.join(", ") : value);
};
