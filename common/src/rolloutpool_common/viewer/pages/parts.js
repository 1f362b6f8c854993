// Small parts that several views share.
import { html, useLayoutEffect, useState } from "./vendor/htm_preact.js";
import { setParams } from "./address.js";
import { storeKey } from "./api.js";
import { csv, save } from "./export.js";
import { visible } from "./text.js";

/**
 * Asks for a key. It is never part of an address, and a form that is not sent keeps it out of the browser's history.
 * @param {{ onKey: () => void }} props
 */
export const KeyForm = ({ onKey }) => {
  const [typed, setTyped] = useState("");
  /** @param {SubmitEvent} event */
  const submit = (event) => {
    event.preventDefault();
    storeKey(typed.trim());
    onKey();
  };
  return html`<form class="bar" onSubmit=${submit}>
    <label>API key <input type="password" autocomplete="off" value=${typed} onInput=${(/** @type {{ target: HTMLInputElement }} */ event) => setTyped(event.target.value)} /></label>
    <button>use it in this tab</button>
  </form>`;
};

/**
 * Says what went wrong; without a valid key it asks for one.
 * @param {{ error: Fault | null }} props
 */
export const Failure = ({ error }) =>
  error && html`<div class="alert" role="alert">${visible(error.message)}
    ${error.status === 401 && html`<${KeyForm} onKey=${() => dispatchEvent(new Event("newkey"))} />`}</div>`;

/**
 * Acts on keys of the page, but not while somebody types, and not on a browser's own. From the moment on at which the
 * page is there: an effect after the next frame would miss the first key, and act on the last view's state.
 * @param {Keys} keys
 */
export const useKeys = (keys) =>
  useLayoutEffect(() => {
    /** @param {KeyboardEvent} event */
    const act = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
      const on = event.target instanceof Element ? event.target : null;
      if (on?.closest("input:not([type=radio], [type=checkbox]), select, textarea")) return;
      if (event.key === "Enter" && on?.closest("a, button, summary")) return;
      event.preventDefault();
      keys[event.key](event);
    };
    document.addEventListener("keydown", act);
    return () => document.removeEventListener("keydown", act);
  });

/**
 * Tabs: pairs of name and address.
 * @param {{ label: string, tabs: [string, string][], current: string }} props
 */
export const Tabs = ({ label, tabs, current }) =>
  html`<nav class="tabs" aria-label=${label}>
    ${tabs.map(([name, href]) => html`<a key=${name} href=${href} aria-current=${name === current ? "page" : undefined}>${name}</a>`)}
  </nav>`;

/**
 * The line above a table: its filter (kept in the address), how many rows pass, and the table as a file.
 * @param {{ search: { current: HTMLInputElement | null }, where: string, placeholder: string, fault: Fault | null, onWhere: () => void,
 * said: string, file: string, columns: object, names: string[], order: number[], children?: Shown }} props
 */
export const FilterBar = ({ search, where, placeholder, fault, onWhere, said, file, columns, names, order, children }) => {
  useKeys({ "/": () => search.current?.focus() });
  /** @param {{ target: HTMLInputElement }} event */
  const change = (event) => {
    onWhere();
    setParams({ where: event.target.value });
  };
  return html`<div><div class="bar">
      <input type="search" ref=${search} value=${where} aria-label="filter" spellcheck="false" placeholder=${placeholder} onInput=${change} />
      ${children}<span class="passes" aria-live="polite">${said}</span>
      <button onClick=${() => save(file, "text/csv", csv(columns, names, order))}>save as CSV</button></div>
    <${Failure} error=${fault} /></div>`;
};
