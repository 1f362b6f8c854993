// The messages of a rollout. Where the address says what is sought, its matches are marked, and the one that the address
// names is brought into view.
import { html, useLayoutEffect, useMemo, useRef } from "./vendor/htm_preact.js";
import { address, batchOf } from "./address.js";
import { CARRIED } from "./api.js";
import { drawnOf, finderOf, spansOf } from "./finding.js";
import { counted, figure, visible } from "./text.js";

const OPEN = 5; // So many of the last messages are open.
const MOST_MARKS = 2000;

/** @typedef {{ kind: string, text: string, spans: [number, number][], first: number }} DrawnText */

/**
 * Messages with their texts and the places of matches; `first` counts the matches of the message before a text.
 * @param {Message[]} messages
 * @param {RegExp | null} finder
 */
const textsAndSpans = (messages, finder) => {
  let left = MOST_MARKS;
  return messages.map((message) => {
    let first = 0;
    return drawnOf(message).map(([kind, text]) => {
      const spans = finder && kind !== "part" ? spansOf(text, finder, left) : [];
      left -= spans.length;
      first += spans.length;
      return { kind, text, spans, first: first - spans.length };
    });
  });
};

/**
 * A text with its matches marked; `chosen` is the number of the one that the address names.
 * @param {DrawnText} drawn
 * @param {number} chosen
 */
const marked = ({ text, spans, first }, chosen) => {
  if (!spans.length) return visible(text);
  const starts = [0, ...spans.map(([, to]) => to)];
  return starts.map((start, at) => {
    const span = spans[at];
    if (!span) return visible(text.slice(start));
    const here = first + at === chosen;
    return [visible(text.slice(start, span[0])), html`<mark class=${here ? "here" : undefined} tabindex=${here ? -1 : undefined}>${visible(text.slice(...span))}</mark>`];
  });
};

/**
 * Whether a message is a tool's that says what went wrong; the policy read it so.
 * @param {Message} message
 */
const isError = ({ role, content }) => role === "tool" && typeof content === "string" && content.startsWith("Error:");

/**
 * `settled`: whether what stands beside the messages is there, so that nothing moves them any more.
 * @param {{ uid: string, messages: Message[], failure: Result["failure"], params: Params, settled: boolean }} props
 */
export const Messages = ({ uid, messages, failure, params, settled }) => {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const { find, case: matchCase } = params;
  const named = params.message === undefined ? -1 : Number(params.message);
  const match = Number(params.match ?? 0);
  const drawn = useMemo(() => textsAndSpans(messages, finderOf(find, matchCase === "1")), [messages, find, matchCase]);
  const marks = drawn.flat().reduce((sum, { spans }) => sum + spans.length, 0);
  useLayoutEffect(() => {
    const message = box.current?.querySelectorAll(".message")[named];
    if (!(message instanceof HTMLDetailsElement)) return;
    message.open = true;
    const mark = message.querySelector("mark.here");
    const to = mark instanceof HTMLElement ? mark : message;
    to.focus({ preventScroll: true });
    to.scrollIntoView({ block: "center" });
  }, [drawn, named, match, settled]);
  const all = address(["search", batchOf(uid)], { q: find, case: matchCase });
  return html`<aside aria-label="messages" ref=${box}><h2>${counted(messages.length, "message")}</h2>
    ${find && html`<p class="found">${marks < MOST_MARKS ? "" : "The first "}${marks === 1 ? "1 match" : `${figure(marks)} matches`} of “${visible(find)}”${CARRIED ? "" : html` · <a href=${all}>in the whole batch</a>`}</p>`}
    ${messages.map((message, at) => html`<details key=${at} class="message" open=${at >= messages.length - OPEN}>
    <summary><b>${visible(message.role)}</b> <span class="soft">${message.tool_call_id ? `answers ${visible(message.tool_call_id)}` : ""}</span>${isError(message) && html` <span class="bad">✕ error</span>`}</summary>
    ${drawn[at].map((text, n) => html`<pre key=${n} class=${text.kind} tabindex="0">${text.kind === "call" ? "calls " : ""}${marked(text, at === named ? match : -1)}</pre>`)}</details>`)}
    ${failure && html`<p class="bad">✕ ${visible(failure.category)}${failure.turn == null ? "" : ` in turn ${figure(failure.turn)}`}</p>`}</aside>`;
};
