// Small parts that several views share.
import { html, useEffect, useState } from "./vendor/htm_preact.js";
import { storeKey } from "./api.js";
import { visible } from "./text.js";

/** Asks for a key. It is never part of an address, and a form that is not sent keeps it out of the browser's history. */
export const KeyForm = ({ onKey }) => {
  const [typed, setTyped] = useState("");
  const submit = (event) => {
    event.preventDefault();
    storeKey(typed.trim());
    onKey();
  };
  return html`<form class="bar" onSubmit=${submit}>
    <label>API key <input type="password" autocomplete="off" value=${typed} onInput=${(e) => setTyped(e.target.value)} /></label>
    <button>use it in this tab</button>
  </form>`;
};

/** Says what went wrong; without a valid key it asks for one. */
export const Failure = ({ error }) =>
  error && html`<div class="alert" role="alert">${visible(error.message)}
    ${error.status === 401 && html`<${KeyForm} onKey=${() => dispatchEvent(new Event("newkey"))} />`}</div>`;

/** Acts on keys of the page, but not while somebody types, and not on a browser's own. */
export const useKeys = (keys) =>
  useEffect(() => {
    const act = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
      if (event.target.closest?.("input:not([type=radio], [type=checkbox]), select, textarea")) return;
      if (event.key === "Enter" && event.target.closest?.("a, button, summary")) return;
      event.preventDefault();
      keys[event.key](event);
    };
    document.addEventListener("keydown", act);
    return () => document.removeEventListener("keydown", act);
  });

/** Tabs of a batch. */
export const Tabs = ({ tabs, current }) =>
  html`<nav class="tabs" aria-label="views of this batch">
    ${tabs.map(([name, href]) => html`<a key=${name} href=${href} aria-current=${name === current ? "page" : undefined}>${name}</a>`)}
  </nav>`;
