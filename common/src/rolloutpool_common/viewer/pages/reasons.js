// Why rollouts of a batch failed or expired, the commonest reason first. Messages of one cause may differ in turns and
// lengths, so rollouts are counted by category, which is shown with its commonest message.
import { html, useMemo } from "./vendor/htm_preact.js";
import { address } from "./address.js";
import { counted, visible } from "./text.js";

/** @typedef {{ name: string, message: string, others: number, count: number, where: string }} Reason */

const MOST = 3;
const TOLD = new Set(["failed", "expired"]);

/**
 * Counts reasons over a batch's rows: [{ name, message, others, count, where }]; `where` is a filter that shows the rollouts.
 * @param {Columns} columns
 * @returns {Reason[]}
 */
export const reasonsOf = (columns) => {
  /** @type {Map<string, { where: string, count: number, messages: Map<string, number> }>} */
  const found = new Map();
  columns.index.forEach((_, place) => {
    const status = columns.status?.[place];
    if (status === undefined || !TOLD.has(status)) return;
    const category = columns.category?.[place] ?? null;
    const name = category ?? status;
    const message = columns.message?.[place] ?? "";
    const known = found.get(name) ?? { where: category === null ? `status=${status}` : `category=${category}`, count: 0, messages: new Map() };
    known.count += 1;
    known.messages.set(message, (known.messages.get(message) ?? 0) + 1);
    found.set(name, known);
  });
  return [...found]
    .map(([name, { where, count, messages }]) => {
      const [message] = [...messages].reduce((one, other) => (other[1] > one[1] ? other : one));
      return { name, message, others: messages.size - 1, count, where };
    })
    .sort((one, other) => other.count - one.count);
};

/** @param {{ id: string, columns: Columns }} props */
export const Reasons = ({ id, columns }) => {
  const found = useMemo(() => reasonsOf(columns), [columns]);
  const rest = found.slice(MOST).reduce((sum, { count }) => sum + count, 0);
  if (!found.length) return null;
  return html`<div class="alert reasons">${found.slice(0, MOST).map(({ name, message, others, count, where }, at) => html`<p key=${at}><strong>${counted(count, "rollout")}: ${visible(name)}</strong>${message && `: ${visible(message)}`}${others > 0 && ` (and ${counted(others, "other message")})`}${" "}
      <a href=${address(["batch", id], { where })}>show</a></p>`)}
    ${rest > 0 && html`<p>${counted(rest, "rollout")} for other reasons</p>`}</div>`;
};
