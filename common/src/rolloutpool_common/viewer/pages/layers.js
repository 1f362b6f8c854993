// What tokens can be coloured by. No layer needs colour: each has underlines, fills or words of its own.
import { figure, visible } from "./text.js";
import { blocksOf, divide } from "./tokens.js";

/** Key, name in the address, and what it is called. */
export const LAYERS = [
  ["1", "mask", "mask"],
  ["2", "kind", "origin"],
  ["3", "prob", "probability"],
  ["4", "version", "policy version"],
  ["0", "plain", "nothing"],
];

/**
 * What the classes of a layer mean: [class of the run, class of the token, words].
 * @param {string} layer
 * @param {string[]} versions
 * @returns {string[][]}
 */
export const legendOf = (layer, versions) => LEGENDS[layer] ?? versions.slice(0, 6).map((version, at) => [`s m v${at}`, "", visible(version)]);

/** @type {{ [layer: string]: string[][] }} */
const LEGENDS = {
  mask: [["s m", "", "mask 1: trained"], ["s u", "", "sampled, not trained"], ["g u", "", "mask 0"]],
  kind: [["s m", "", "sampled by the policy"], ["g u", "", "template and tools"], ["c u", "", "end of a turn that sampled none"], ["o u", "", "prompt"]],
  prob: [["m", "q4", "≥ 0.9"], ["m", "q3", "≥ 0.5"], ["m", "q2", "≥ 0.1"], ["m", "q1", "≥ 0.01"], ["m", "q0", "less"]],
  plain: [],
};

const STEPS = 5; // Classes a0 to a4 of annotations.
const OLD = / ?\ba\d\b/;

/**
 * The scale of a stream: { low, high, zero }. With values on both sides of 0 its middle is 0 and its sides are of one
 * length, so that sign and size can both be seen.
 * @param {(number | null)[][]} lists
 * @returns {Scale | null}
 */
export const scaleOf = (lists) => {
  let low = Infinity;
  let high = -Infinity;
  for (const list of lists)
    for (const value of list)
      if (typeof value === "number") {
        if (value < low) low = value;
        if (value > high) high = value;
      }
  if (low > high) return null;
  if (low >= 0 || high <= 0) return { low, high, zero: false };
  const side = Math.max(-low, high);
  return { low: -side, high: side, zero: true };
};

/**
 * @param {number} value
 * @param {Scale} scale
 */
const classOf = (value, { low, high }) => (high === low ? 2 : Math.min(STEPS - 1, Math.floor((STEPS * (value - low)) / (high - low))));

/**
 * What the classes of a stream mean.
 * @param {Scale} scale
 */
export const streamLegend = ({ low, high }) => {
  if (low === high) return [["s m", "a2", `all ${figure(low)}`]];
  const width = (high - low) / STEPS;
  return Array.from({ length: STEPS }, (_, at) => ["s m", `a${at}`, `${figure(low + at * width)} … ${figure(low + (at + 1) * width)}`]);
};

/**
 * Gives each token of a drawn sample the class of its value; without a scale takes the classes away.
 * @param {HTMLElement} box
 * @param {Sample} sample
 * @param {(number | null)[] | null | undefined} values
 * @param {Scale | null} scale
 */
export const paintStream = (box, sample, values, scale) => {
  const prompt = sample.prompt_ids.length;
  for (const block of blocksOf(box)) {
    const start = Number(block.dataset.start) - prompt;
    if (start < 0) continue;
    const held = values?.slice(start, start + Number(block.dataset.n)) ?? [];
    if (scale && held.some((value) => typeof value === "number")) divide(block);
    let at = 0;
    for (const token of block.children) {
      const value = held[at++];
      const plain = token.className.replace(OLD, "");
      token.className = scale && typeof value === "number" ? `${plain} a${classOf(value, scale)}` : plain;
    }
  }
};
