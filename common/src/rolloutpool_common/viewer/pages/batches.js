// The list of batches, newest first.
import { html, useLayoutEffect, useRef, useState } from "./vendor/htm_preact.js";
import { address, setParams } from "./address.js";
import { ask, useAnswer } from "./api.js";
import { Failure, Id } from "./parts.js";
import { heldUp, useOverview, Verdict } from "./pool.js";
import { duration, figure, state, visible } from "./text.js";

/** @type {("queued" | "running" | "grading")[]} */
const OPEN = ["queued", "running", "grading"];
/** @type {("expired" | "cancelled")[]} */
const LOST = ["expired", "cancelled"];

/** @typedef {{ query: string, batches: BatchLine[], cursor: string | null, error: Fault | null }} Older */

/** @param {{ params: Params }} props */
export const Batches = ({ params }) => {
  const query = new URLSearchParams({ limit: "200" });
  for (const name of ["state", "run", "owner", "label"]) query.set(name, params[name] ?? "");
  for (const [name, value] of [...query]) if (!value) query.delete(name);
  /** @type {Asked<BatchList>} */
  const first = useAnswer(`/v1/batches?${query}`, 5000);
  const { data: pool } = useOverview();
  const [older, setOlder] = useState(/** @type {Older} */ ({ query: "", batches: [], cursor: null, error: null }));
  const mine = older.query === String(query) ? older : { query: "", batches: [], cursor: null, error: null };
  const cursor = mine.batches.length ? mine.cursor : first.data?.next_cursor;
  const chosen = useRef("");
  chosen.current = String(query);
  const more = async () => {
    const asked = String(query);
    /** @param {Omit<Older, "query">} found */
    const settle = (found) => {
      // Another filter may have been chosen meanwhile, and older ones of that may already be there.
      if (chosen.current === asked) setOlder({ ...found, query: asked });
    };
    try {
      /** @type {BatchList} */
      const page = await ask(`/v1/batches?${query}&cursor=${encodeURIComponent(cursor ?? "")}`);
      settle({ batches: mine.batches.concat(page.batches), cursor: page.next_cursor, error: null });
    } catch (error) {
      settle({ ...mine, error: /** @type {Fault} */ (error) });
    }
  };
  const shown = new Map((first.data?.batches ?? []).concat(mine.batches).map((batch) => [batch.batch_id, batch]));
  /** @param {string} name @returns {(event: { target: HTMLInputElement }) => void} */
  const choice = (name) => (event) => setParams({ [name]: event.target.value });
  return html`<div><h1>Batches</h1>
    <${Verdict} pool=${pool} />
    <div class="bar">
      <label>state <select value=${params.state ?? ""} onChange=${choice("state")}>
        <option value="">all</option><option value="running">running</option><option value="complete">complete</option></select></label>
      <label>run <${Choice} value=${params.run ?? ""} onChange=${choice("run")} /></label>
      <label>label <${Choice} placeholder="name=value" value=${params.label ?? ""} onChange=${choice("label")} /></label>
      <a href=${address(["search"])}>search in texts <kbd>f</kbd></a>
    </div>
    <${Failure} error=${first.error ?? mine.error} />
    ${first.data && !shown.size && html`<p>${query.size > 1
      ? html`No batch passes this filter. <a href=${address(["batches"])}>Show all</a>`
      : html`There is no batch yet: <code>client.submit(…)</code> or <code>rolloutpool submit FILE</code> makes one, and it appears here by itself.`}</p>`}
    ${shown.size > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="list of batches"><table class="list">
      <thead><tr><th>batch</th><th>state</th><th class="number">ended</th><th>not completed</th><th>run</th><th>labels</th><th>owner</th>
        <th class="number">age</th><th class="number">took</th><th class="number">turns</th><th class="number">sampled</th></tr></thead>
      <tbody>${[...shown.values()].map((batch) => html`<${Line} key=${batch.batch_id} batch=${batch} held=${heldUp(pool, batch.batch_id)} />`)}</tbody></table></div>`}
    ${cursor && html`<p><button onClick=${more}>older ones</button></p>`}</div>`;
};

/**
 * A field that is asked for when its text is complete. It keeps what is typed, because the list is drawn anew meanwhile.
 * @param {{ value: string, placeholder?: string, onChange: (event: { target: HTMLInputElement }) => void }} props
 */
const Choice = ({ value, placeholder, onChange }) => {
  const [typed, setTyped] = useState(value);
  useLayoutEffect(() => setTyped(value), [value]);
  return html`<input placeholder=${placeholder} value=${typed} onInput=${(/** @type {{ target: HTMLInputElement }} */ event) => setTyped(event.target.value)} onChange=${onChange} />`;
};

/** @param {{ batch: BatchLine, held: string | null }} props */
const Line = ({ batch, held }) => {
  const open = OPEN.reduce((sum, name) => sum + (batch.counts[name] ?? 0), 0);
  const failures = Object.entries(batch.failures).map(([name, count]) => `${figure(count)} ${visible(name)}`).join(", ");
  const lost = LOST.filter((name) => batch.counts[name]).map((name) => `${figure(batch.counts[name])} ${name}`);
  const failed = batch.counts.failed === batch.total;
  const labels = Object.entries(batch.labels).map(([name, value]) => (name === "label" ? visible(value) : `${visible(name)}=${visible(value)}`)).join(" ");
  return html`<tr>
    <td><${Id} id=${batch.batch_id} href=${address(["batch", batch.batch_id])} /></td>
    <td class=${failed || held ? "bad" : ""}>${failed ? state("failed") : held ? `◷ ${held}` : state(batch.state)}${batch.cancelled ? ", cancelled" : ""}</td>
    <td class="number">${figure(batch.total - open)} of ${figure(batch.total)}</td>
    <td class=${failures || lost.length ? "wrap bad" : ""}>${[failures, ...lost].filter(Boolean).join(", ")}</td>
    <td class="wrap">${batch.run && html`<a href=${address(["batches"], { run: batch.run })} title="all batches of this run">${visible(batch.run)}</a>`}</td><td class=${labels ? "wrap labels" : "wrap"}>${labels}</td><td>${visible(batch.owner)}</td>
    <td class="number">${duration(batch.age_s && batch.age_s * 1000)}</td><td class="number">${duration(batch.seconds && batch.seconds * 1000)}</td>
    <td class="number">${figure(batch.turns)}</td><td class="number">${figure(batch.sampled_tokens)}</td></tr>`;
};
