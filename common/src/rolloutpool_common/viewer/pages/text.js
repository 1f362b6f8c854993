// Text and figures as people read them. What comes from a model or the network goes through `visible` and then into a
// text node: nothing here makes markup.

const BIDI = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f]/g;

/** Makes text of which nothing is hidden: control characters get a picture, those that turn text around get a name. */
export const visible = (value) =>
  String(value ?? "")
    .replace(CONTROL, (c) => (c === "\u007f" ? "\u2421" : String.fromCharCode(0x2400 + c.charCodeAt(0))))
    .replace(BIDI, (c) => `\u27e8U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);

/** A number with thin groups; empty for null. */
export const figure = (value) => (typeof value === "number" ? value.toLocaleString("en", { maximumFractionDigits: 4 }) : "");

/** Milliseconds as a person says them. */
export const duration = (ms) => {
  if (typeof ms !== "number") return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 120_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 7_200_000) return `${(ms / 60_000).toFixed(1)} min`;
  return `${(ms / 3_600_000).toFixed(1)} h`;
};

const MARKS = { completed: "✓", failed: "✕", expired: "⌛", cancelled: "⊘", running: "▶", queued: "…", complete: "✓" };

/** A state with its mark, so that it can be told without colour. */
export const state = (name) => `${MARKS[name] ?? "?"} ${visible(name)}`;

/** Any value of a column, in a cell. */
export const cell = (value) => {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return figure(value);
  return visible(Array.isArray(value) ? value.join(", ") : value);
};
