// A lane: a bar from left to right for a stretch of time, whose parts differ by colour and by pattern.
import { html } from "./vendor/htm_preact.js";
import { KINDS } from "./lane_figures.js";
import { duration } from "./text.js";

/** @type {{ [kind: string]: string }} */
const NAMES = { queued: "queued", tokenizer: "loading the tokenizer", model: "model", tools: "tools", own: "worker's own work", loop: "waited for the worker", redis: "waited for Redis", other: "worker: its own work and its waits", running: "running" };

/**
 * parts: [{ kind, from, to }], times in ms; end: the time at the right edge.
 * @param {{ parts: LanePart[], end: number }} props
 */
export const Lane = ({ parts, end }) => {
  const says = parts.map(({ kind, from, to }) => `${NAMES[kind]} ${duration(to - from)}`).join(", ");
  /** @param {number} ms */
  const at = (ms) => `${(100 * ms) / (end || 1)}%`;
  return html`<span class="lane" role="img" aria-label=${says || "no times"} title=${says}>
    ${parts.map(({ kind, from, to }, place) => html`<i key=${place} class=${kind} style=${{ left: at(from), width: at(to - from) }}></i>`)}</span>`;
};

/**
 * What the patterns mean.
 * @param {{ kinds?: string[] }} props
 */
export const LaneLegend = ({ kinds = KINDS }) =>
  html`<p class="legend">${kinds.map((kind) => html`<span key=${kind} class="swatch"><span class="lane"><i class=${kind}></i></span> ${NAMES[kind]}</span> `)}</p>`;
