// Takes what is shown out of the browser, as a file.
import { columnOf } from "./rows.js";

// A spreadsheet would run a text that begins so as a formula.
const FORMULA = /^[=+\-@\t\r]/;

/** @param {Cell} value */
const field = (value) => {
  if (value === null || value === undefined) return "";
  const text = Array.isArray(value) ? value.join("+") : String(value);
  const safe = typeof value !== "number" && FORMULA.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};

/**
 * Writes the places of columns as CSV, in their order.
 * @param {object} columns
 * @param {string[]} names
 * @param {number[]} order
 */
export const csv = (columns, names, order) =>
  [names.map(field).join(","), ...order.map((place) => names.map((name) => field(columnOf(columns, name)?.[place])).join(","))].join("\r\n") + "\r\n";

/**
 * Has the browser save a text.
 * @param {string} name
 * @param {string} kind
 * @param {string} text
 */
export const save = (name, kind, text) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name.replace(/[^A-Za-z0-9._-]/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
};
