// The viewer: reads the address, shows its view, and keeps what all views share.
import { html, render, useEffect, useLayoutEffect, useState } from "./vendor/htm_preact.js";
import { address, batchOf, goTo, here } from "./address.js";
import { CARRIED, storeKey, storedKey } from "./api.js";
import { Batch } from "./batch.js";
import { Batches } from "./batches.js";
import { Compare } from "./compare.js";
import { Group } from "./group.js";
import { Groups } from "./groups.js";
import { Lanes } from "./lanes.js";
import { useKeys } from "./parts.js";
import { Pool } from "./pool.js";
import { Proof } from "./proof.js";
import { Rollout } from "./rollout.js";
import { Search } from "./search.js";
import { short, visible } from "./text.js";

const HELP = [
  ["j k", "next and previous row; in a rollout: run of tokens"],
  ["h l", "previous and next token; in a group: rollout"],
  ["Enter", "open the row"],
  ["/", "filter"],
  ["f", "search in the texts of the batch; in the list of batches: of all"],
  ["1 2 3 4 5 0", "in a rollout: colour by mask, origin, probability, policy version, annotation, nothing"],
  ["t T", "first trained run, next trained run"],
  ["b y", "borders of tokens, copy the ids of the run"],
  ["n p", "next and previous rollout of the group; in a group: group"],
  ["c", "compare this rollout with the next"],
  ["u", "up: from a rollout to its group or batch, from a batch to the list"],
  ["?", "this list"],
];
const OF_BATCH = new Set(["batch", "groups", "group", "lanes", "search"]);

/** @param {Place} where */
const View = ({ parts: [kind, id, second], params }) => {
  if (!kind || kind === "batches") return html`<${Batches} params=${params} />`;
  if (kind === "pool") return html`<${Pool} />`;
  if (kind === "batch" && id) return html`<${Batch} key=${id} id=${id} params=${params} />`;
  if (kind === "groups" && id) return html`<${Groups} key=${id} id=${id} params=${params} />`;
  if (kind === "group" && id && second) return html`<${Group} key=${`${id}/${second}`} id=${id} name=${second} params=${params} />`;
  if (kind === "lanes" && id) return html`<${Lanes} key=${id} id=${id} params=${params} />`;
  if (kind === "search") return html`<${Search} key=${id} id=${id} params=${params} />`;
  if (kind === "rollout" && id) return html`<${Rollout} key=${id} uid=${id} params=${params} />`;
  if (kind === "proof" && id) return html`<${Proof} key=${id} uid=${id} params=${params} />`;
  if (kind === "compare" && id) return html`<${Compare} key=${`${id}/${second}`} uids=${[id, second]} params=${params} />`;
  return html`<div><h1>There is no such view</h1><p><a href="#/">All batches</a></p></div>`;
};

/**
 * The way up from a view: pairs of name and address, the outermost first.
 * @param {Place} where
 * @returns {[string, string][]}
 */
const path = ({ parts: [kind, id, second], params }) => {
  /** @type {[string, string][]} */
  const way = CARRIED ? [] : [["batches", "#/"]];
  if (kind === "pool") way.push(["pool", address(["pool"])]);
  if (kind === "search" && !id) way.push(["search", address(["search"])]);
  if (!id) return way;
  const batch = OF_BATCH.has(kind) ? id : batchOf(id);
  if (!CARRIED) way.push([short(batch), address(["batch", batch])]);
  if (kind === "groups" || kind === "group") way.push(["groups", address(["groups", batch])]);
  if (kind === "lanes" || kind === "search") way.push([kind, address([kind, batch])]);
  if (kind === "group" && second) way.push([`group ${second}`, address(["group", batch, second])]);
  if (OF_BATCH.has(kind)) return way;
  if (params.group) way.push([`group ${params.group}`, address(["group", batch, params.group])]);
  way.push([`#${id.slice(batch.length + 1)}`, address(["rollout", id], { group: params.group })]);
  if (kind === "proof") way.push(["proof", address(["proof", id], { group: params.group })]);
  if (kind === "compare" && second) way.push(["compare", address(["compare", id, second])]);
  return way;
};

const App = () => {
  const [where, setWhere] = useState(here());
  const [round, setRound] = useState(0);
  const [help, setHelp] = useState(false);
  // Keys act as soon as the page is there, so what they change has to be heard from then on.
  useLayoutEffect(() => {
    const moved = () => setWhere(here());
    const newKey = () => setRound((n) => n + 1);
    addEventListener("hashchange", moved);
    addEventListener("newkey", newKey);
    return () => {
      removeEventListener("hashchange", moved);
      removeEventListener("newkey", newKey);
    };
  }, []);
  const way = path(where);
  const [kind, id] = where.parts;
  const search = address(id ? ["search", OF_BATCH.has(kind) ? id : batchOf(id)] : ["search"]);
  const title = way.length > 1 ? `${visible(way.at(-1)?.[0])} · rolloutpool` : "rolloutpool";
  useEffect(() => {
    // A file that carries its answers has a title of its own.
    if (!CARRIED) document.title = title;
  }, [title]);
  useKeys({
    "?": () => setHelp(!help),
    Escape: () => setHelp(false),
    u: () => {
      const above = way.at(-2);
      if (above) goTo(above[1]);
    },
    ...(CARRIED || kind === "search" ? {} : { f: () => goTo(search) }),
  });
  const forget = () => {
    storeKey("");
    setRound(round + 1);
  };
  return html`<div><header class="top"><strong>rolloutpool</strong>
      <nav aria-label="where you are">${way.map(([name, href], at) => html`<span key=${href}>${at ? "› " : ""}<a href=${href}>${visible(name)}</a></span>`)}</nav>
      ${!CARRIED && kind !== "pool" && html`<a href="#/pool">pool</a>`}
      ${storedKey() && html`<button onClick=${forget}>forget the key</button>`}
      <button onClick=${() => setHelp(!help)} aria-expanded=${help}>keys <kbd>?</kbd></button></header>
    ${help && html`<section class="help" aria-label="keys"><dl>${HELP.map(([key, means]) => html`<dt key=${key}><kbd>${key}</kbd></dt><dd>${means}</dd>`)}</dl></section>`}
    <main><${View} key=${round} ...${where} /></main></div>`;
};

const root = document.getElementById("viewer");
if (root) render(html`<${App} />`, root);
