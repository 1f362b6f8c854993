// Why rollouts of a batch failed or expired, the commonest reason first.
import { html, useMemo } from "./vendor/htm_preact.js";
import { address } from "./address.js";
import { counted, visible } from "./text.js";

/** @typedef {{ name: string, message: string, count: number, where: string }} Reason */

const MOST = 3;
const TOLD = new Set(["failed", "expired"]);

/**
 * Counts reasons over a batch's rows: [{ name, message, count, where }]; `where` is a filter that shows the rollouts.
 * @param {Columns} columns
 * @returns {Reason[]}
 */
export const reasonsOf = (columns) => {
  /** @type {Map<string, Reason>} */
  const found = new Map();
  columns.index.forEach((_, place) => {
    const status = columns.status?.[place];
    if (status === undefined || !TOLD.has(status)) return;
    const category = columns.category?.[place] ?? null;
    const name = category ?? status;
    const message = columns.message?.[place] ?? "";
    const key = JSON.stringify([name, message]);
    const known = found.get(key);
    if (known) known.count += 1;
    else found.set(key, { name, message, count: 1, where: category === null ? `status=${status}` : `category=${category}` });
  });
  return [...found.values()].sort((one, other) => other.count - one.count);
};

/** @param {{ id: string, columns: Columns }} props */
export const Reasons = ({ id, columns }) => {
  const found = useMemo(() => reasonsOf(columns), [columns]);
  const rest = found.slice(MOST).reduce((sum, { count }) => sum + count, 0);
  if (!found.length) return null;
  return html`<div class="alert reasons">${found.slice(0, MOST).map(({ name, message, count, where }, at) => html`<p key=${at}><strong>${counted(count, "rollout")}: ${visible(name)}</strong>${message && `: ${visible(message)}`}${" "}
      <a href=${address(["batch", id], { where })}>show</a></p>`)}
    ${rest > 0 && html`<p>${counted(rest, "rollout")} for other reasons</p>`}</div>`;
};
