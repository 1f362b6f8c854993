// Search in the texts of rollouts: of a whole file where `rolloutpool view FILE` serves it, and otherwise of what this tab
// has loaded, which the view says. A match leads to its place in the rollout.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/htm_preact.js";
import { address, goTo, setParams } from "./address.js";
import { ask, OF_FILE, useAnswer } from "./api.js";
import { BatchHead, chosen } from "./batch.js";
import { csv, save } from "./export.js";
import { Grid } from "./grid.js";
import { countLoaded, isComplete, isFull, loadMore, searchLoaded } from "./loaded.js";
import { Failure, useKeys } from "./parts.js";
import { counted, figure, visible } from "./text.js";

const MOST = 1000; // Matches, until somebody asks for more.
const EXPORTED = ["uid", "rollout_id", "where", "text"];

/**
 * Searches on.
 * @param {Sought} sought
 * @param {string} cursor
 * @param {AbortSignal} signal
 * @returns {Promise<SearchPage>}
 */
const searched = (sought, cursor, signal) => {
  if (!OF_FILE) return searchLoaded(sought, Number(cursor));
  const query = new URLSearchParams({ q: sought.q, after: cursor });
  if (sought.matchCase) query.set("case", "1");
  if (sought.batch !== undefined) query.set("batch", sought.batch);
  return ask(`/search?${query}`, signal);
};

/** @typedef {{ key: string, matches: TextMatch[], searched: number, total: number, cut: number, unread: number, cursor: string | null, most: number, error: Fault | null, selected: number }} SearchState */

/** @param {string} key @returns {SearchState} */
const begun = (key) => ({ key, matches: [], searched: 0, total: 0, cut: 0, unread: 0, cursor: "0", most: MOST, error: null, selected: -1 });

/** The last search of this tab, so that the way back from a rollout shows it at once. */
let last = begun("");

/**
 * Searches while the view is shown: the search as far as it has come, and what goes on with it.
 * @param {Sought} sought
 * @returns {[SearchState, (change: Partial<SearchState>) => void]}
 */
const useSearch = (sought) => {
  const key = JSON.stringify(sought);
  const [, setRound] = useState(0);
  const [asked, setAsked] = useState(0);
  if (last.key !== key) last = begun(key);
  /** @param {Partial<SearchState>} change */
  const change = (change) => {
    // What comes late belongs to the search that has asked for it, and another one may have begun.
    if (last.key !== key) return;
    last = { ...last, ...change };
    setRound((n) => n + 1);
  };
  useEffect(() => {
    if (!sought.q) return undefined;
    const stop = new AbortController();
    const go = async () => {
      // What was loaded since then is searched too.
      if (!OF_FILE && last.cursor === null && last.searched < countLoaded(sought.batch)) change({ cursor: String(last.searched) });
      while (last.cursor !== null && last.matches.length < last.most) {
        const before = last;
        const page = await searched(sought, last.cursor, stop.signal);
        if (stop.signal.aborted || last !== before) return;
        const { matches, cut, unread, next_cursor: cursor, ...reached } = page;
        change({ ...reached, matches: last.matches.concat(matches), cut: last.cut + cut, unread: last.unread + unread, cursor });
      }
    };
    go().catch((error) => {
      if (!stop.signal.aborted) change({ error });
    });
    return () => stop.abort();
  }, [key, asked]);
  /** @param {Partial<SearchState>} from */
  const goOn = (from) => {
    change({ error: null, ...from });
    setAsked((n) => n + 1);
  };
  return [last, goOn];
};

/** @param {TextMatch} match */
const whereOf = ({ message, role, kind, sample, turn }) => {
  if (message === null) return `sample ${(sample ?? 0) + 1}, ${turn === null ? "prompt" : `turn ${turn}`}`;
  const part = kind === "content" ? "" : kind === "call" ? ", calls" : `, ${kind}`;
  return `message ${message + 1}, ${visible(role)}${part}`;
};

/**
 * @param {TextMatch} match
 * @param {Params} params
 */
const addressOf = ({ uid, message, number, sample, place }, { q, case: matchCase }) =>
  address(["rollout", uid], message === null ? { at: `${sample}.${place}` } : { find: q, case: matchCase, message, match: number });

/**
 * How far a search has come, in words.
 * @param {SearchState} search
 * @param {string | undefined} batch
 * @param {number | null} all Rollouts that there are, where that is known.
 */
const saidOf = ({ matches, searched: count, total, cursor, most, error, cut, unread }, batch, all) => {
  const found = `${matches.length === 1 ? "1 match" : `${figure(matches.length)} matches`} in ${counted(new Set(matches.map(({ uid }) => uid)).size, "rollout")}`;
  const where = `of this ${batch === undefined ? "file" : "batch"}`;
  const of = OF_FILE
    ? `searched ${figure(count)} of ${counted(total, "rollout")} ${where}`
    : all === null
      ? `searched ${counted(count, "rollout")}: those that this tab has loaded`
      : `searched ${figure(count)} of ${counted(all, "rollout")} of this batch: those that this tab has loaded`;
  return [
    `${found}; ${of}`,
    cursor !== null && !error && (matches.length < most ? "searching …" : `stopped after ${figure(matches.length)} matches`),
    cut > 0 && `of ${counted(cut, "rollout")} only the first matches are listed`,
    unread > 0 && `${counted(unread, "rollout")} could not be searched: they have tokens and no messages, and what their tokens read is not known here`,
  ].filter(Boolean).join("; ");
};

/** @param {{ id: string | undefined, params: Params }} props */
export const Search = ({ id, params }) => {
  /** @type {Asked<Batch>} */
  const batch = useAnswer(id && `/v1/batches/${encodeURIComponent(id)}`);
  const box = useRef(/** @type {HTMLInputElement | null} */ (null));
  const sought = { q: params.q ?? "", matchCase: params.case === "1", batch: id };
  const [search, goOn] = useSearch(sought);
  const { matches } = search;
  const [selected, setSelected] = useState(search.selected);
  const [typed, setTyped] = useState(sought.q);
  const sort = params.sort ?? "index";
  const columns = useMemo(() => ({
    index: matches.map((_, at) => at), number: matches.map(({ index }) => index),
    uid: matches.map(({ uid }) => uid), rollout_id: matches.map(({ rollout_id }) => rollout_id),
    where: matches.map(whereOf), text: matches.map(({ before, found, after }) => `${before}${found}${after}`),
  }), [matches]);
  const [order] = useMemo(() => chosen(columns, "", sort), [columns, sort]);
  useKeys({ "/": () => box.current?.focus(), f: () => box.current?.focus() });
  useLayoutEffect(() => {
    if (!sought.q) box.current?.focus();
  }, []);
  useLayoutEffect(() => setTyped(sought.q), [sought.q]);
  /** @param {SubmitEvent} event */
  const submit = (event) => {
    event.preventDefault();
    // From here on keys choose among the matches.
    if (typed) box.current?.blur();
    setSelected(-1);
    if (typed === sought.q) goOn(begun(search.key));
    else setParams({ q: typed });
  };
  /** @param {number} at */
  const select = (at) => {
    last.selected = at;
    setSelected(at);
  };
  const more = async () => {
    try {
      await loadMore(id ?? "");
      goOn({});
    } catch (error) {
      goOn({ error: /** @type {Fault} */ (error) });
    }
  };
  /** @type {GridColumn[]} */
  const shown = [
    { name: "number", title: "#", width: "64px", number: true, show: (place) => figure(matches[place].index) },
    { name: "rollout_id", title: "rollout", width: "minmax(110px, 1fr)", show: (place) => html`<a href=${addressOf(matches[place], params)}>${visible(matches[place].rollout_id)}</a>` },
    { name: "where", title: "where", width: "minmax(150px, 1fr)", show: (place) => columns.where[place] },
    { name: "text", title: "text", width: "minmax(300px, 6fr)", show: (place) => html`<span>${visible(matches[place].before)}<mark>${visible(matches[place].found)}</mark>${visible(matches[place].after)}</span>` },
  ];
  return html`<div>${id ? html`<${BatchHead} id=${id} batch=${batch.data} error=${batch.error} current="search" />` : html`<h1>Search in texts</h1>`}
    <form class="bar" role="search" onSubmit=${submit}>
      <input type="search" ref=${box} value=${typed} maxlength="1000" aria-label="text to find" spellcheck="false" placeholder="find in messages, tool calls and what tools answered; Enter searches"
        onInput=${(/** @type {{ target: HTMLInputElement }} */ event) => setTyped(event.target.value)} />
      <label><input type="checkbox" checked=${sought.matchCase} onChange=${(/** @type {{ target: HTMLInputElement }} */ event) => setParams({ case: event.target.checked ? "1" : "" })} /> match case</label>
      <button>search</button></form>
    <${Failure} error=${search.error} />
    ${sought.q
      ? html`<p class="bar"><span class="searched" role="status">${saidOf(search, id, batch.data?.total ?? null)}.</span>
        ${search.cursor !== null && matches.length >= search.most && html`<button onClick=${() => goOn({ most: search.most + MOST })}>search on</button>`}
        ${matches.length > 0 && html`<button onClick=${() => save(`${id ?? "file"}-found.csv`, "text/csv", csv(columns, EXPORTED, order))}>save as CSV</button>`}</p>`
      : html`<p>${OF_FILE ? "All texts of this file are searched." : "Texts are searched in this tab, as far as it has loaded them: each rollout that you open, and those that you load here."}</p>`}
    ${!OF_FILE && id && !isComplete(id) && (isFull()
      ? html`<p>This tab holds as many texts as it can: save the results as a file, and search that with <code>rolloutpool view FILE</code>.</p>`
      : html`<p><button onClick=${more}>load more rollouts of this batch</button> <span class="soft">${counted(countLoaded(id), "rollout")} loaded</span></p>`)}
    ${matches.length > 0 && html`<${Grid} label="matches" columns=${shown} order=${order} sort=${sort} selected=${Math.min(selected, order.length - 1)}
      onSelect=${select} onOpen=${(/** @type {number} */ place) => goTo(addressOf(matches[place], params))}
      onSort=${(/** @type {string} */ by) => setParams({ sort: by === "index" ? "" : by })} />`}</div>`;
};
