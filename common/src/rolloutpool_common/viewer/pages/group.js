// One group: its rollouts side by side.
import { html, useMemo, useState } from "./vendor/htm_preact.js";
import { address, goTo, setParams } from "./address.js";
import { useBatch } from "./batch.js";
import { AnnotationChoice, comparedBy, Strip } from "./groups.js";
import { groupFigures, membersOf } from "./group_figures.js";
import { Lane, LaneLegend } from "./lane.js";
import { lanesOf } from "./lane_figures.js";
import { Failure, useKeys } from "./parts.js";
import { columnOf, scoreField, scoresOf } from "./rows.js";
import { cell, counted, duration, figure, state, visible } from "./text.js";

const MOST = 64;
/** @type {[string, string, ((value: any) => string)?][]} */
const ROWS = [
  ["status", "state", state],
  ["finish_reason", "ended by"],
  ["category", "failure"],
  ["turns", "turns"],
  ["tool_calls", "tool calls"],
  ["sampled_tokens", "sampled tokens"],
  ["samples", "samples"],
  ["drift", "drift", (value) => (value?.length ? `≠ ${cell(value)}` : "none")],
  ["mean_logprob", "mean log-prob"],
  ["policy_versions", "policy"],
  ["end_ms", "ended after", duration],
  ["worker", "worker"],
];

/** @param {{ id: string, name: string, params: Params }} props */
export const Group = ({ id, name, params }) => {
  const { page, columns, error } = useBatch(id);
  const [at, setAt] = useState(0);
  const members = useMemo(() => membersOf(columns), [columns]);
  const lanes = useMemo(() => page && lanesOf(page), [page]);
  const [known, of] = comparedBy(columns, params);
  const figures = useMemo(() => groupFigures(columns, of), [columns, of]);
  const groups = [...members.keys()];
  const mine = groups.indexOf(name);
  const places = (members.get(name) ?? []).slice(0, MOST);
  const base = Math.max(0, places.findIndex((place) => columns.uid?.[place] === params.base));
  const here = Math.max(0, Math.min(at, places.length - 1));
  /** @param {number} place */
  const uidOf = (place) => columns.uid?.[place] ?? "";
  /** @param {number} place */
  const rolloutOf = (place) => address(["rollout", uidOf(place)], { group: name });
  /** @param {number} by */
  const beside = (by) => {
    if (groups[mine + by] !== undefined) goTo(address(["group", id, groups[mine + by]], { of: params.of }));
  };
  useKeys({
    h: () => setAt(here - 1), l: () => setAt(here + 1),
    Enter: () => {
      if (places.length) goTo(rolloutOf(places[here]));
    },
    n: () => beside(1), p: () => beside(-1),
  });
  if (!page || !lanes) return html`<div><h1>Group ${visible(name)}</h1><${Failure} error=${error} /></div>`;
  if (mine < 0) return html`<div><h1>Group ${visible(name)}</h1><${Failure} error=${error} /><p>This batch has no such group.</p></div>`;
  const end = Math.max(1, ...places.map((place) => lanes.parts[place].at(-1)?.to ?? 0));
  /** @type {typeof ROWS} */
  const scores = scoresOf(columns).map((of_) => [scoreField(columns, of_), visible(of_), cell]);
  const rows = [...scores, ...ROWS].filter(([field]) => places.some((place) => columnOf(lanes, field)?.[place] != null));
  const flat = figures.zero_spread[mine] === "yes";
  const values = figures.values[mine];
  return html`<div><h1>Group ${visible(name)}</h1>
    <${Failure} error=${error} />
    <div class="bar"><span>${counted(figures.size[mine], "rollout")}, ${figure(figures.ended[mine])} ended</span>
      <${AnnotationChoice} known=${known} of=${of} />
      ${values.length > 0 && html`<span>mean ${figure(figures.mean[mine])}, spread ${figure(figures.deviation[mine])}, from ${figure(figures.min[mine])} to ${figure(figures.max[mine])}</span>`}
      ${mine > 0 && html`<a href=${address(["group", id, groups[mine - 1]], { of: params.of })}>previous group <kbd>p</kbd></a>`}
      ${mine < groups.length - 1 && html`<a href=${address(["group", id, groups[mine + 1]], { of: params.of })}>next group <kbd>n</kbd></a>`}
      <span class="soft"><kbd>h</kbd> <kbd>l</kbd> choose one, <kbd>Enter</kbd> opens it</span></div>
    ${values.length > 1 && html`<p class="wide"><${Strip} values=${values} low=${figures.min[mine]} high=${figures.max[mine]} /></p>`}
    ${flat && html`<p class="alert mild"><strong>= no spread:</strong> all values of ${visible(of)} are ${figure(values[0])}. Such a group teaches nothing.</p>`}
    ${figures.size[mine] > MOST && html`<p>The first ${MOST} of ${counted(figures.size[mine], "rollout")}.</p>`}
    <${LaneLegend} />
    <div class="scroll" tabindex="0" role="region" aria-label="rollouts side by side"><table class="siblings">
      <thead><tr><th scope="col">rollout</th>${places.map((place, column) => html`<th key=${place} scope="col" aria-current=${column === here ? "true" : undefined}><a href=${rolloutOf(place)}>#${figure(columns.index[place])}</a></th>`)}</tr></thead>
      <tbody>
        ${rows.map(([field, title, show]) => html`<tr key=${field}><th scope="row">${title}</th>${places.map((place) => html`<td key=${place}>${(show ?? cell)(columnOf(lanes, field)?.[place])}</td>`)}</tr>`)}
        <tr><th scope="row">time</th>${places.map((place) => html`<td key=${place}><${Lane} parts=${lanes.parts[place]} end=${end} /></td>`)}</tr>
        <tr><th scope="row">compare</th>${places.map((place, column) => html`<td key=${place}>${column === base
          ? "with this one"
          : html`<a href=${address(["compare", uidOf(places[base]), uidOf(place)])}>compare</a> <button onClick=${() => setParams({ base: uidOf(place) })} aria-label="compare the others with #${columns.index[place]}">⌂</button>`}</td>`)}</tr>
      </tbody></table></div></div>`;
};
