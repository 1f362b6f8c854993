// The groups of a batch: which of them teach something. A group whose rewards are all equal does not.
import { html, useMemo, useRef, useState } from "./vendor/htm_preact.js";
import { address, goTo, setParams } from "./address.js";
import { BatchHead, chosen, useBatch } from "./batch.js";
import { Grid } from "./grid.js";
import { groupFigures } from "./group_figures.js";
import { FilterBar } from "./parts.js";
import { scoresOf } from "./rows.js";
import { counted, figure, visible } from "./text.js";

const EXPORTED = ["group", "size", "ended", "not_completed", "annotated", "mean", "deviation", "min", "max", "zero_spread", "sampled_tokens"];
const MOST_DRAWN = 64;

/**
 * The values of a group on the scale of all groups.
 * @param {{ values: number[], low: number, high: number }} props
 */
export const Strip = ({ values, low, high }) => {
  /** @param {number} value */
  const at = (value) => (high > low ? 3 + (94 * (value - low)) / (high - low) : 50);
  const drawn = values.slice(0, MOST_DRAWN);
  return html`<svg class="strip" viewBox="0 0 100 20" preserveAspectRatio="none" role="img" aria-label=${drawn.map(figure).join(", ") || "none"}>
    <line class="axis" x1="0" x2="100" y1="10" y2="10" />
    ${drawn.map((value, place) => html`<line key=${place} x1=${at(value)} x2=${at(value)} y1="3" y2="17" />`)}</svg>`;
};

/**
 * The figure that groups are compared by: the address's, else the reward, else the first.
 * @param {Columns} columns
 * @param {Params} params
 * @returns {[string[], string | null]}
 */
export const comparedBy = (columns, params) => {
  const known = scoresOf(columns);
  return [known, [params.of, "reward", known[0]].find((name) => name !== undefined && known.includes(name)) ?? null];
};

/** @param {{ known: string[], of: string | null }} props */
export const AnnotationChoice = ({ known, of }) =>
  known.length > 0 && html`<label>compared by <select value=${of} onChange=${(/** @type {{ target: HTMLSelectElement }} */ event) => setParams({ of: event.target.value })}>
    ${known.map((name) => html`<option key=${name} value=${name}>${visible(name)}</option>`)}</select></label>`;

/** @param {{ id: string, params: Params }} props */
export const Groups = ({ id, params }) => {
  const { batch, page, columns, error } = useBatch(id);
  const [selected, setSelected] = useState(-1);
  const search = useRef(/** @type {HTMLInputElement | null} */ (null));
  const where = params.where ?? "";
  const sort = params.sort ?? "index";
  const [known, of] = comparedBy(columns, params);
  const all = useMemo(() => groupFigures(columns, of), [columns, of]);
  const [order, fault] = useMemo(() => chosen(all, where, sort), [all, where, sort]);
  const [low, high] = useMemo(() => all.values.flat().reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]), [all]);
  const flat = all.zero_spread.filter((is) => is === "yes").length;
  /** @param {"size" | "ended" | "not_completed" | "mean" | "deviation" | "sampled_tokens"} name @param {string} title @returns {GridColumn} */
  const number = (name, title, width = "84px") => ({ name, title, width, number: true, show: (place) => figure(all[name][place]) });
  /** @type {GridColumn[]} */
  const columnsShown = [
    { name: "group", title: "group", width: "minmax(100px, 2fr)", show: (place) => visible(all.group[place]) },
    number("size", "rollouts"), number("ended", "ended"), number("not_completed", "not completed", "118px"),
    number("mean", of === null ? "mean" : `mean ${visible(of)}`, "110px"), number("deviation", "spread (sd)", "100px"),
    { name: "max", title: of === null ? "values" : `${figure(low)} to ${figure(high)}`, width: "minmax(140px, 3fr)", show: (place) => html`<${Strip} values=${all.values[place]} low=${low} high=${high} />` },
    { name: "zero_spread", title: "all equal", width: "110px", show: (place) => (all.zero_spread[place] === "yes" ? html`<span class="bad">= no spread</span>` : "") },
    number("sampled_tokens", "sampled", "96px"),
  ];
  /** @param {number} place */
  const open = (place) => goTo(address(["group", id, all.group[place]], { of: params.of }));
  return html`<div><${BatchHead} id=${id} batch=${batch} error=${error} current="groups" />
    ${page && !all.index.length && html`<p>No rollout of this batch has a group.</p>`}
    ${all.index.length > 0 && of === null && html`<p class="soft">Nothing was said of these rollouts yet: <code>POST /v1/batches/${visible(id)}/annotations</code> adds rewards.</p>`}
    ${flat > 0 && html`<p class="alert mild">${counted(flat, "group")} of ${figure(all.index.length)} ${flat === 1 ? "has" : "have"} no spread of <b>${visible(of)}</b>: such a group teaches nothing. <a href=${address(["groups", id], { of: params.of, where: "zero_spread=yes" })}>Show only those</a></p>`}
    <${FilterBar} search=${search} where=${where} placeholder="filter: words, zero_spread=yes, mean>0.5, size<8" fault=${fault}
      onWhere=${() => setSelected(-1)} said="${figure(order.length)} of ${counted(all.index.length, "group")}"
      file="${id}-groups.csv" columns=${all} names=${EXPORTED} order=${order}><${AnnotationChoice} known=${known} of=${of} /></${FilterBar}>
    <${Grid} label="groups" columns=${columnsShown} order=${order} sort=${sort} selected=${Math.min(selected, order.length - 1)}
      marked=${(/** @type {number} */ place) => all.zero_spread[place] === "yes"}
      onSelect=${setSelected} onOpen=${open} onSort=${(/** @type {string} */ by) => setParams({ sort: by === "index" ? "" : by })} /></div>`;
};
