// The viewer: reads the address, shows its view, and keeps what all views share.
import { html, render, useEffect, useState } from "./vendor/htm_preact.js";
import { address, readAddress } from "./address.js";
import { storeKey, storedKey } from "./api.js";
import { Batch } from "./batch.js";
import { Batches } from "./batches.js";
import { useKeys } from "./parts.js";
import { Rollout } from "./rollout.js";
import { visible } from "./text.js";

const HELP = [
  ["j k", "next and previous row"],
  ["Enter", "open the row"],
  ["/", "filter"],
  ["1 2 3 4", "in a rollout: colour by mask, segment, probability, none"],
  ["t", "first trained run"],
  ["j k h l", "next and previous run, previous and next token"],
  ["n p", "next and previous rollout"],
  ["u", "up: from a rollout to its batch, from a batch to the list"],
  ["?", "this list"],
];

const View = ({ parts: [kind, id], params }) => {
  if (!kind || kind === "batches") return html`<${Batches} params=${params} />`;
  if (kind === "batch" && id) return html`<${Batch} key=${id} id=${id} params=${params} />`;
  if (kind === "rollout" && id) return html`<${Rollout} key=${id} uid=${id} params=${params} />`;
  return html`<div><h1>There is no such view</h1><p><a href="#/">All batches</a></p></div>`;
};

/** The way up from a view: pairs of name and address, the outermost first. */
const path = ([kind, id]) => {
  const way = [["batches", "#/"]];
  if (!id) return way;
  const batch = kind === "batch" ? id : id.replace(/-\d+$/, "");
  way.push([batch, address(["batch", batch])]);
  if (kind !== "batch") way.push([id, address([kind, id])]);
  return way;
};

const App = () => {
  const [where, setWhere] = useState(readAddress(location.hash));
  const [round, setRound] = useState(0);
  const [help, setHelp] = useState(false);
  useEffect(() => {
    const moved = () => setWhere(readAddress(location.hash));
    const newKey = () => setRound((n) => n + 1);
    addEventListener("hashchange", moved);
    addEventListener("newkey", newKey);
    return () => {
      removeEventListener("hashchange", moved);
      removeEventListener("newkey", newKey);
    };
  }, []);
  const way = path(where.parts);
  const title = way.length > 1 ? `${visible(way.at(-1)[0])} · rolloutpool` : "rolloutpool";
  useEffect(() => {
    document.title = title;
  }, [title]);
  useKeys({
    "?": () => setHelp(!help),
    Escape: () => setHelp(false),
    u: () => way.length > 1 && (location.hash = way.at(-2)[1]),
  });
  const forget = () => {
    storeKey("");
    setRound(round + 1);
  };
  return html`<div><header class="top"><strong>rolloutpool</strong>
      <nav aria-label="where you are">${way.map(([name, href], at) => html`<span key=${href}>${at ? "› " : ""}<a href=${href}>${visible(name)}</a></span>`)}</nav>
      ${storedKey() && html`<button onClick=${forget}>forget the key</button>`}
      <button onClick=${() => setHelp(!help)} aria-expanded=${help}>keys <kbd>?</kbd></button></header>
    ${help && html`<dl class="help">${HELP.map(([key, means]) => html`<dt key=${key}><kbd>${key}</kbd></dt><dd>${means}</dd>`)}</dl>`}
    <main><${View} key=${round} ...${where} /></main></div>`;
};

render(html`<${App} />`, document.getElementById("viewer"));
