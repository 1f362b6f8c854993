// One batch: what it waits for, and its rollouts as a table that can be filtered and sorted at once.
import { html, useMemo, useRef, useState } from "./vendor/htm_preact.js";
import { address, goTo, setParams } from "./address.js";
import { useAnswer } from "./api.js";
import { Grid } from "./grid.js";
import { Failure, FilterBar, Id, Tabs } from "./parts.js";
import { Reasons } from "./reasons.js";
import { choose, columnOf, scoreField, scoresOf, withScores } from "./rows.js";
import { cell, counted, duration, figure, named, state, visible } from "./text.js";

/** @type {Columns} */
const NONE = { index: [] };
const LARGE = 1000;

/**
 * Fetches a batch's state and rows; again every few seconds while it runs.
 * @param {string} id
 */
export const useBatch = (id) => {
  const [running, setRunning] = useState(true);
  /** @type {Asked<Batch>} */
  const batch = useAnswer(`/v1/batches/${encodeURIComponent(id)}`, running ? 5000 : 0);
  const total = batch.data?.total ?? 0;
  /** @type {Asked<RowPage>} */
  const rows = useAnswer(`/v1/batches/${encodeURIComponent(id)}/rollouts?limit=10000`, running ? (total > LARGE ? 20_000 : 5000) : 0);
  const now = !batch.data || batch.data.state === "running";
  if (now !== running) setRunning(now);
  const page = useMemo(() => rows.data && { ...rows.data, columns: withScores(rows.data.columns) }, [rows.data]);
  return { batch: batch.data, page, columns: page?.columns ?? NONE, error: batch.error ?? rows.error };
};

/**
 * Chooses places of columns: [order, what is wrong with the filter or null].
 * @param {object} columns
 * @param {string} where
 * @param {string} sort
 * @returns {[number[], Fault | null]}
 */
export const chosen = (columns, where, sort) => {
  try {
    return [choose(columns, where, sort), null];
  } catch (wrong) {
    return [[], { message: wrong instanceof Error ? wrong.message : String(wrong) }];
  }
};

// Views have one element at their root: lists of elements side by side would be moved when a state changes, and lose focus.
/**
 * The head that all views of a batch have.
 * @param {{ id: string, batch: Batch | null, error: Fault | null, current: string }} props
 */
export const BatchHead = ({ id, batch, error, current }) => {
  /** @type {[string, string][]} */
  const tabs = [["rollouts", address(["batch", id])], ["groups", address(["groups", id])], ["lanes", address(["lanes", id])], ["search", address(["search", id])]];
  const counts = Object.entries(batch?.counts ?? {}).filter(([, count]) => count);
  return html`<div><h1>Batch <${Id} id=${id} /></h1>
    <${Failure} error=${error} />
    <p class="chips">${counts.map(([name, count]) => html`<span key=${name} class="chip ${name === "failed" ? "bad" : ""}">${state(name)} ${figure(count)}</span>`)}
      ${Object.entries(batch?.warnings ?? {}).map(([name, count]) => html`<span key=${name} class="chip">⚠ <bdi>${visible(name)}</bdi> ${figure(count)}</span>`)}
      ${Object.entries(batch?.labels ?? {}).map(([name, value]) => html`<span key=${name} class="chip">${visible(name)}=${visible(value)}</span>`)}</p>
    ${(batch?.waiting ?? []).map((entry, at) => html`<${Waiting} key=${at} entry=${entry} />`)}
    <${Tabs} label="views of this batch" tabs=${tabs} current=${current} /></div>`;
};

/**
 * What rollouts wait for.
 * @param {{ entry: WaitingEntry }} props
 */
export const Waiting = ({ entry }) =>
  html`<p class="alert mild"><strong>${entry.waits_for === "paused" ? "Paused" : html`Waits for ${visible(entry.waits_for)}`}</strong> ${entry.endpoint && entry.message.startsWith(entry.endpoint) ? "" : `${visible(entry.endpoint)}:`}
    ${entry.status ? ` ${entry.status}` : ""} ${visible(entry.message)}; ${entry.tries ? `tried ${counted(entry.tries, "time")}, ` : ""}${counted(entry.rollouts, "rollout")}</p>`;

/**
 * Calls of tools, and of how many of them the policy read an error: `12/3`.
 * @param {number | null | undefined} calls
 * @param {number | null | undefined} errors
 */
const called = (calls, errors) => (calls ? `${figure(calls)}${errors ? `/${figure(errors)}` : ""}` : "");

/** @type {{ name: string, title: string, width: string, number?: boolean, show?: (value: any, all: Columns, place: number) => string }[]} */
const COLUMNS = [
  { name: "index", title: "#", width: "64px", number: true },
  { name: "rollout_id", title: "rollout", width: "minmax(120px, 2fr)", show: (name, all, place) => (name === all.uid?.[place] ? named(all.index[place], null, undefined) : cell(name)) },
  { name: "group", title: "group", width: "minmax(70px, 1fr)" },
  { name: "status", title: "status", width: "110px", show: state },
  { name: "why", title: "ended by", width: "minmax(100px, 1.2fr)" },
  { name: "drift", title: "drift", width: "minmax(70px, 1fr)", show: (value) => (value?.length ? `≠ ${cell(value)}` : "") },
  { name: "turns", title: "turns", width: "64px", number: true },
  { name: "tool_errors", title: "tools", width: "84px", number: true, show: (errors, all, place) => called(all.tool_calls?.[place], errors) },
  { name: "sampled_tokens", title: "sampled", width: "84px", number: true },
  { name: "queued_ms", title: "queued", width: "84px", number: true, show: duration },
  { name: "total_ms", title: "ran", width: "84px", number: true, show: duration },
];
/** @type {typeof COLUMNS[number]} */
const VERSIONS = { name: "policy_versions", title: "version", width: "minmax(64px, .6fr)" };

/**
 * Rows of a batch with what they ended by, which is the failure's category or else the reason.
 * @param {Columns} columns
 */
const withReasons = (columns) => ({
  ...columns,
  why: columns.index.map((_, place) => columns.category?.[place] ?? columns.finish_reason?.[place] ?? null),
});

/** @param {{ id: string, params: Params }} props */
export const Batch = ({ id, params }) => {
  const { batch, page, columns, error } = useBatch(id);
  const [selected, setSelected] = useState(-1);
  const search = useRef(/** @type {HTMLInputElement | null} */ (null));
  const where = params.where ?? "";
  const sort = params.sort ?? "index";
  const all = useMemo(() => withReasons(columns), [columns]);
  const [order, fault] = useMemo(() => chosen(all, where, sort), [all, where, sort]);
  /** @param {number} place */
  const open = (place) => goTo(address(["rollout", columns.uid?.[place] ?? ""]));
  const sampledBy = columns.policy_versions?.some((versions) => versions?.length) ? [VERSIONS] : [];
  const shown = COLUMNS.concat(
    sampledBy,
    scoresOf(columns).slice(0, 2).map((name) => ({ name: scoreField(columns, name), title: name, width: "84px", number: true })),
  ).map((column) => ({ ...column, show: (/** @type {number} */ place) => (column.show ?? cell)(columnOf(all, column.name)?.[place], all, place) }));
  return html`<div><${BatchHead} id=${id} batch=${batch} error=${error} current="rollouts" />
    <${Reasons} id=${id} columns=${columns} />
    <${FilterBar} search=${search} where=${where} placeholder="filter: words, status=failed, turns>3, drift~edited, annotations.reward<0.5" fault=${fault}
      onWhere=${() => setSelected(-1)} said="${figure(order.length)} of ${figure(page?.total ?? 0)} rollouts"
      file="${id}.csv" columns=${columns} names=${Object.keys(columns)} order=${order} />
    <${Grid} label="rollouts" columns=${shown} order=${order} sort=${sort} selected=${Math.min(selected, order.length - 1)}
      onSelect=${setSelected} onOpen=${open} onSort=${(/** @type {string} */ by) => setParams({ sort: by === "index" ? "" : by })} /></div>`;
};
