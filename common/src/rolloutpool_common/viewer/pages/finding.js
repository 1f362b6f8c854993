// Finds a text in what rollouts say: as it is written, in any case of its letters, never as a pattern. The rules are those
// of `rolloutpool view FILE`, which searches files by itself, so that both count a message's matches alike.

const BEFORE = 40; // Characters that are shown around a match.
const AFTER = 120;

/**
 * What a message says, in the order in which it is drawn: pairs of kind and text. A `part` is no text and is not searched.
 * @param {Message} message
 * @returns {[string, string][]}
 */
export const drawnOf = ({ reasoning_content: thinking, content, tool_calls: calls }) => {
  /** @type {[string, string][]} */
  const texts = [];
  if (typeof thinking === "string") texts.push(["thinking", thinking]);
  if (typeof content === "string") texts.push(["content", content]);
  for (const part of Array.isArray(content) ? content : []) {
    const { type, text, ...rest } = part;
    if (typeof text === "string") texts.push(["content", text]);
    const more = typeof text === "string" ? rest : part;
    if (Object.keys(more).length) texts.push(["part", JSON.stringify(more, null, 1)]);
  }
  for (const { function: call } of calls ?? [])
    texts.push(["call", `${call?.name ?? ""} ${typeof call?.arguments === "string" ? call.arguments : JSON.stringify(call?.arguments ?? null)}`]);
  return texts.filter(([, text]) => text);
};

/**
 * Makes an expression that finds a text; null for an empty one.
 * @param {string | undefined} sought
 * @param {boolean} matchCase
 */
export const finderOf = (sought, matchCase) => (sought ? new RegExp(sought.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), matchCase ? "gu" : "giu") : null);

/**
 * The places of a text's matches: pairs of the first character and the one after the last.
 * @param {string} text
 * @param {RegExp} finder
 * @returns {[number, number][]}
 */
export const spansOf = (text, finder, most = Infinity) => {
  /** @type {[number, number][]} */
  const spans = [];
  for (const found of text.matchAll(finder)) {
    if (spans.length >= most) break;
    spans.push([found.index, found.index + found[0].length]);
  }
  return spans;
};

/**
 * A place moved by one, where it would cut a character in two.
 * @param {string} text
 * @param {number} at
 */
const whole = (text, at) => (/^[\udc00-\udfff]/.test(text.charAt(at)) ? at + 1 : at);

/**
 * A match with what stands around it.
 * @param {string} text
 * @param {[number, number]} span
 */
export const around = (text, [from, to]) => ({
  before: text.slice(whole(text, Math.max(0, from - BEFORE)), from),
  found: text.slice(from, to),
  after: text.slice(to, whole(text, to + AFTER)),
});
