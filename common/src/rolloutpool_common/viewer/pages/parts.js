// Small parts that several views share.
import { html, useLayoutEffect, useRef, useState } from "./vendor/htm_preact.js";
import { holdsKey, setParams } from "./address.js";
import { storeKey } from "./api.js";
import { csv, save } from "./export.js";
import { short, visible } from "./text.js";

/**
 * Asks for a key. It is never part of an address, and a form that is not sent keeps it out of the browser's history.
 * @param {{ onKey: () => void }} props
 */
export const KeyForm = ({ onKey }) => {
  const [typed, setTyped] = useState("");
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  useLayoutEffect(() => field.current?.focus(), []);
  /** @param {SubmitEvent} event */
  const submit = (event) => {
    event.preventDefault();
    storeKey(typed.trim());
    onKey();
  };
  return html`<form class="bar" onSubmit=${submit}>
    <label>API key <input type="password" autocomplete="off" ref=${field} value=${typed} onInput=${(/** @type {{ target: HTMLInputElement }} */ event) => setTyped(event.target.value)} /></label>
    <button>use it in this tab</button>
  </form>`;
};

/** @type {{ [status: number]: string }} */
const TODO = {
  0: "This page asks again. If it stays so, the pool may be down: whoever runs it can look.",
  401: "This pool has keys. Whoever runs it gives you one; it stays in this tab.",
  403: "Your key may not see this. Whoever runs the pool can give it the scope that is named.",
  404: "Look at the id: it may be cut off, its results may be deleted, or it is of somebody else's key.",
  429: "The pool answers again in a moment.",
  503: "The pool goes on by itself; this page asks again.",
};

/**
 * Says what went wrong, and what its reader can do; without a valid key it asks for one.
 * @param {{ error: Fault | null }} props
 */
export const Failure = ({ error }) =>
  error && html`<div class="alert" role="alert">${visible(error.message)}
    ${TODO[error.status ?? -1] && html`<p>${TODO[error.status ?? -1]}</p>`}
    ${error.status === 401 && html`<${KeyForm} onKey=${() => dispatchEvent(new Event("newkey"))} />`}</div>`;

/**
 * Puts a text on the clipboard. A page that came over HTTP from another machine has none, so its text is marked instead.
 * @param {string} text
 * @param {Element} shown
 */
const copy = (text, shown) => {
  if (navigator.clipboard) navigator.clipboard.writeText(text);
  else getSelection()?.selectAllChildren(shown);
};

/**
 * An id in short. It says the whole of itself where one points at it, and a click on its button copies that.
 * @param {{ id: string, href?: string }} props
 */
export const Id = ({ id, href }) => {
  const whole = useRef(/** @type {HTMLElement | null} */ (null));
  const text = html`<code ref=${whole}>${visible(short(id))}</code>`;
  return html`<span class="id" title=${visible(id)}>${href ? html`<a href=${href}>${text}</a>` : text}<button
    type="button" class="copy" aria-label="copy ${visible(id)}" onClick=${() => whole.current && copy(id, whole.current)}><svg viewBox="0 0 16 16" aria-hidden="true"><path d="M5.5 1.5h9v9h-9zM3.5 5.5h-2v9h9v-2" /></svg></button></span>`;
};

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
  const [warned, setWarned] = useState(false);
  useKeys({ "/": () => search.current?.focus() });
  /** @param {{ target: HTMLInputElement }} event */
  const change = (event) => {
    setWarned(holdsKey(event.target.value));
    onWhere();
    setParams({ where: event.target.value });
  };
  return html`<div><div class="bar">
      <input type="search" ref=${search} value=${where} aria-label="filter" spellcheck="false" placeholder=${placeholder} onInput=${change} />
      ${children}<span class="passes" aria-live="polite">${said}</span>
      <button onClick=${() => save(file, "text/csv", csv(columns, names, order))}>save as CSV</button></div>
    ${warned && html`<p class="alert mild" role="alert">That is an API key. It was not put into the address; the viewer asks for a key where it needs one.</p>`}
    <${Failure} error=${fault} /></div>`;
};
