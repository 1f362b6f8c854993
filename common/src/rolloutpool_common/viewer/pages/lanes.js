// A batch as lanes on the wall clock: who waited, who worked, and who held the others up.
import { html, useMemo, useRef, useState } from "./vendor/htm_preact.js";
import { address, goTo, setParams } from "./address.js";
import { BatchHead, chosen, useBatch } from "./batch.js";
import { Grid } from "./grid.js";
import { Lane, LaneLegend } from "./lane.js";
import { KINDS, lanesOf, stragglersOf } from "./lane_figures.js";
import { FilterBar } from "./parts.js";
import { cell, counted, duration, figure, named, percent, state } from "./text.js";

const WORTH_SAYING = 0.1; // Of the batch's time.
/** @type {Pick<RowPage, "columns" | "created_ms" | "now_ms">} */
const EMPTY = { columns: { index: [] }, created_ms: 0, now_ms: 0 };
const EXPORTED = ["uid", "rollout_id", "status", "start_ms", "end_ms", "queued_ms", "tokenizer_ms", "llm_ms", "tools_ms", "other_ms", "loop_ms", "redis_ms", "longest", "worker"];

/** @param {{ id: string, params: Params }} props */
export const Lanes = ({ id, params }) => {
  const { batch, page, error } = useBatch(id);
  const [selected, setSelected] = useState(-1);
  const search = useRef(/** @type {HTMLInputElement | null} */ (null));
  const where = params.where ?? "";
  const sort = params.sort ?? "-end_ms";
  const all = useMemo(() => lanesOf(page ?? EMPTY), [page]);
  const late = useMemo(() => stragglersOf(all.end_ms), [all]);
  const [order, fault] = useMemo(() => chosen(all, where, sort), [all, where, sort]);
  const end = useMemo(() => all.parts.reduce((most, parts) => Math.max(most, parts.at(-1)?.to ?? 0), 0), [all]);
  // One of these two is all that most batches have: the worker's time is split, or its results are older.
  const kinds = useMemo(() => KINDS.filter((kind) => kind !== "other" || all.parts.some((parts) => parts.some((part) => part.kind === kind))), [all]);
  const worth = late !== null && late.share >= WORTH_SAYING;
  /** @type {GridColumn[]} */
  const columns = [
    { name: "index", title: "#", width: "64px", number: true, show: (place) => figure(all.index[place]) },
    { name: "rollout_id", title: "rollout", width: "minmax(90px, 1fr)", show: (place) => (all.rollout_id?.[place] === all.uid?.[place] ? named(all.index[place], null, undefined) : cell(all.rollout_id?.[place])) },
    { name: "status", title: "status", width: "130px", show: (place) => `${worth && late.places.has(place) ? "late " : ""}${state(all.status?.[place])}` },
    { name: "start_ms", title: `time: 0 to ${duration(end)}`, width: "minmax(220px, 4fr)", show: (place) => html`<${Lane} parts=${all.parts[place]} end=${end} />` },
    { name: "llm_ms", title: "model", width: "84px", number: true, show: (place) => duration(all.llm_ms?.[place]) },
    { name: "tools_ms", title: "tools", width: "84px", number: true, show: (place) => duration(all.tools_ms?.[place]) },
    { name: "other_ms", title: "worker", width: "84px", number: true, show: (place) => duration(all.other_ms[place]) },
    { name: "end_ms", title: "ended after", width: "96px", number: true, show: (place) => duration(all.end_ms[place]) },
    { name: "longest", title: "most in", width: "84px", show: (place) => cell(all.longest[place]) },
  ];
  return html`<div><${BatchHead} id=${id} batch=${batch} error=${error} current="lanes" />
    ${worth && html`<p class="alert mild">The last ${counted(late.places.size, "rollout")} of ${figure(all.index.length)} ran alone for ${duration(late.last - late.cut)}, ${percent(late.share)} of the batch's time: all others had ended after ${duration(late.cut)}.</p>`}
    <${LaneLegend} kinds=${kinds} />
    <p class="soft">Model, tools and tokenizer are sums of a rollout, in this order in its lane. What is left is the worker's: its own work (rendering, checking, encoding), and the waits of the rollout's records for the worker, which was busy with other rollouts, and for Redis, while the worker had nothing to do. The page of a rollout has the times of each turn.</p>
    <${FilterBar} search=${search} where=${where} placeholder="filter: words, status=failed, tools_ms>1000, longest=queued" fault=${fault}
      onWhere=${() => setSelected(-1)} said="${figure(order.length)} of ${figure(all.index.length)} rollouts"
      file="${id}-lanes.csv" columns=${all} names=${EXPORTED} order=${order} />
    <${Grid} label="lanes" columns=${columns} order=${order} sort=${sort} selected=${Math.min(selected, order.length - 1)}
      onSelect=${setSelected} onOpen=${(/** @type {number} */ place) => goTo(address(["rollout", all.uid?.[place] ?? ""]))} onSort=${(/** @type {string} */ by) => setParams({ sort: by === "-end_ms" ? "" : by })} /></div>`;
};
