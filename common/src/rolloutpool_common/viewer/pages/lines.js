// The lines of talk of a program that led a rollout: what each is, why, and what is trained of it, as a tree.
import { html } from "./vendor/htm_preact.js";
import { address } from "./address.js";
import { counted, figure, visible } from "./text.js";

const INDENT = "\u2003";
// Deeper ones stand as deep: a program that compacts often has a long chain, which would leave the page.
const DEEPEST = 6;

/**
 * How deep a line stands below those that it continues or leaves.
 * @param {HarnessLine} line
 * @param {HarnessLine[]} lines
 */
const depth = (line, lines) => {
  let found = 0;
  for (let at = line; at.parent != null && found < DEEPEST; found += 1) {
    const parent = lines.find((one) => one.line === at.parent);
    if (!parent) break;
    at = parent;
  }
  return found;
};

/**
 * A link to the first token that a sample was trained on, or sampled.
 * @param {Result} result
 * @param {number} place
 */
const toSample = (result, place) => html`<a key=${place} href=${address(["rollout", result.uid], { at: `${place}.${result.samples[place]?.prompt_ids.length ?? 0}` })}>${figure(place + 1)}</a> `;

/**
 * How the program asked, besides its messages and tools: each way once, as it has sent it.
 * @param {{ asked: HarnessReport["asked"] }} props
 */
const Asked = ({ asked }) => asked?.length ? html`<details><summary>how it asked: ${counted(asked.length, "way")}</summary>
  ${asked.map((way, place) => html`<section key=${place} aria-label=${`way ${place + 1}`}><p>${visible(way.dialect)}, ${way.calls.length > 1 ? "calls" : "call"} ${ranges(way.calls)}</p>
    <pre>${visible(JSON.stringify(way.fields, null, 1))}</pre></section>`)}</details>` : null;

/**
 * Numbers that follow each other as a range: 1–3, 7.
 * @param {number[]} numbers
 */
const ranges = (numbers) => {
  /** @type {[number, number][]} */
  const found = [];
  for (const n of numbers) {
    const last = found[found.length - 1];
    if (last && n === last[1] + 1) last[1] = n;
    else found.push([n, n]);
  }
  return found.map(([from, to]) => (from === to ? figure(from) : `${figure(from)}–${figure(to)}`)).join(", ");
};

/** @param {{ result: Result, report: HarnessReport }} props */
export const HarnessLines = ({ result, report }) => {
  const { lines, calls, places } = report;
  const started = places > 1 ? `, its program was started ${counted(places, "time")}` : "";
  return html`<details open=${lines.length <= 12}><summary>${counted(lines.length, "line")} of talk, ${counted(calls, "call")}${started}</summary>
    <div class="scroll" tabindex="0" role="region" aria-label="lines of talk"><table class="list"><thead><tr><th>line</th><th>kind</th><th class="number">turns</th><th class="number">sampled</th><th class="number">trained</th><th>left out</th><th>samples</th><th>why</th></tr></thead>
    <tbody>${lines.map((line) => html`<tr key=${line.line}><td>${INDENT.repeat(depth(line, lines))}${line.parent == null ? "" : "└ "}${figure(line.line)}</td>
      <td>${visible(line.kind)}</td><td class="number">${figure(line.turns)}</td><td class="number">${figure(line.tokens)}</td><td class="number">${figure(line.trained_tokens)}</td>
      <td class="wrap labels">${Object.entries(line.left_out).map(([why, tokens]) => `${visible(why)} ${figure(tokens)}`).join(", ")}</td>
      <td>${line.samples.map((place) => toSample(result, place))}</td><td class="why">${visible(line.why)}</td></tr>`)}</tbody></table></div><${Asked} asked=${report.asked} /></details>`;
};
