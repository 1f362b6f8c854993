// Two rollouts side by side, at the first token where they part.
import { html, useLayoutEffect, useMemo, useRef } from "./vendor/htm_preact.js";
import { address, goTo, setParams } from "./address.js";
import { Failure, useKeys } from "./parts.js";
import { useReader } from "./pieces.js";
import { readingsOf } from "./readings.js";
import { useRollout } from "./rollout.js";
import { allRuns, commonIds, lengthOf, runsBetween } from "./runs.js";
import { duration, figure, state, visible } from "./text.js";
import { drawRun, factsOf, tokenAt } from "./tokens.js";

const BEFORE = 60; // Tokens in common that are shown …
const AFTER = 600; // … and tokens from where they part.

/**
 * Where two samples part: { at, ends: [whether the first, whether the second ends there] }; null if they are the same.
 * @param {Sample} one
 * @param {Sample} other
 */
export const parting = (one, other) => {
  const at = commonIds(one, other);
  const ends = [at === lengthOf(one), at === lengthOf(other)];
  return ends[0] && ends[1] ? null : { at, ends };
};

/**
 * @param {{ ends: boolean[] }} part
 * @param {(TokenFacts | null)[]} facts
 */
const why = ({ ends }, [one, other]) => {
  if (ends[0] || ends[1]) return `The ${ends[0] ? "first" : "second"} one ends here, and the other goes on.`;
  if (!one || !other) return "";
  if (one.run.kind === "sampled" && other.run.kind === "sampled") return "The policy sampled another token.";
  if (one.run.kind === "prompt" || other.run.kind === "prompt") return "Their prompts differ.";
  if (one.run.kind === other.run.kind) return "What the tools or the template added differs.";
  return `Here the one has what is ${visible(one.run.kind)}, and the other what is ${visible(other.run.kind)}.`;
};

/** @param {{ uids: [string, string | undefined], params: Params }} props */
export const Compare = ({ uids: [first, second], params }) => {
  const sides = [useRollout(first), useRollout(second ?? null)];
  const results = sides.map(({ result }) => result);
  const readers = [useReader(results[0]), useReader(results[1])];
  const head = html`<h1>Compare two rollouts</h1>`;
  const failures = sides.map(({ error }, at) => html`<${Failure} key=${at} error=${error} />`);
  if (!second) return html`<div>${head}<p>There is no second rollout in this address.</p></div>`;
  if (results.some((result) => !result)) return html`<div>${head}${failures}<p>${sides.some(({ error }) => error) ? "" : "Waits until both have ended."}</p></div>`;
  if (readers.some(([reader]) => reader === undefined)) return html`<div>${head}${failures}<p>…</p></div>`;
  return html`<div>${head}${failures}<${Sides} results=${results} readers=${readers.map(([reader]) => reader)} params=${params} /></div>`;
};

/** @param {{ results: Result[], readers: (Reader | null)[], params: Params }} props */
const Sides = ({ results, readers, params }) => {
  const boxes = useRef(/** @type {(HTMLElement | null)[]} */ ([]));
  const chosen = [params.a, params.b].map((text, side) => Math.min(Math.max(Number(text) || 0, 0), results[side].samples.length - 1));
  const samples = results.map((result, side) => result.samples[chosen[side]]);
  const runs = useMemo(() => results.map((result, side) => allRuns(result.samples)[chosen[side]]), [...results, ...chosen]);
  const part = useMemo(() => (samples[0] && samples[1] ? parting(samples[0], samples[1]) : null), samples);
  const facts = part && samples.map((sample, side) => (part.ends[side] ? null : factsOf(part.at, sample, runs[side])));
  useLayoutEffect(() => {
    if (!part) return;
    samples.forEach((sample, side) => {
      const window_ = runsBetween(runs[side], part.at - BEFORE, part.at + AFTER);
      const texts = readingsOf(sample, window_, readers[side]);
      boxes.current[side]?.replaceChildren(
        ...runsBetween(window_, 0, part.at).map((run) => drawRun(run, sample, texts)),
        ...runsBetween(window_, part.at, Infinity).map((run) => drawRun(run, sample, texts)),
      );
      tokenAt(boxes.current[side], part.at)?.classList.add("parts");
    });
  }, [part, ...readers]);
  /** @param {number} side */
  const open = (side) => address(["rollout", results[side].uid], { at: part ? `${chosen[side]}.${part.at}` : "" });
  useKeys({ 1: () => goTo(open(0)), 2: () => goTo(open(1)) });
  const said = !samples.every(Boolean)
    ? "One of them has no samples: no turn of it was proved."
    : part === null
      ? `All ${figure(lengthOf(samples[0]))} tokens are the same.`
      : `The first ${figure(part.at)} tokens are the same. ${facts ? why(part, facts) : ""}`;
  return html`<div><p class="alert mild"><strong>${said}</strong></p>
    <p class="legend by-mask"><span class="run s m"><i>mask 1: trained</i></span> <span class="run s u"><i>sampled, not trained</i></span> <span class="run g u"><i>mask 0</i></span> <i class="parts">where they part</i></p>
    <div class="sides">${results.map((result, side) => html`<section key=${side} aria-label="rollout ${side + 1}">
      <h2><a href=${open(side)}>${visible(result.rollout_id)}</a> <kbd>${side + 1}</kbd></h2>
      <p class="chips"><span class="chip">${state(result.status)}</span><span class="chip">ended by ${visible(result.finish_reason)}</span>
        <span class="chip">${figure(result.response_tokens)} sampled</span><span class="chip">${figure(result.turns.length)} turns</span><span class="chip">ran ${duration(result.spans.total_ms)}</span></p>
      ${result.samples.length > 1 && html`<label>sample <select value=${chosen[side]} onChange=${(/** @type {{ target: HTMLSelectElement }} */ event) => setParams({ [side ? "b" : "a"]: event.target.value })}>
        ${result.samples.map((_sample, at) => html`<option key=${at} value=${at}>${at + 1}</option>`)}</select></label>`}
      ${facts && facts[side] && html`<dl><dt>from</dt><dd>${visible(facts[side].run.kind)}${facts[side].run.turn == null ? "" : `, turn ${figure(facts[side].run.turn)}`}</dd>
        <dt>id</dt><dd><code>${facts[side].id}</code></dd><dt>log-prob</dt><dd>${facts[side].logprob === null ? "none" : facts[side].logprob.toFixed(4)}</dd>
        <dt>policy</dt><dd>${visible(facts[side].run.policy ?? "none")}</dd></dl>`}
      <div class="sample" hidden=${!part}><div class="tokens by-mask" tabindex="0" role="region" aria-label="tokens of rollout ${side + 1}" ref=${(/** @type {HTMLElement | null} */ box) => { boxes.current[side] = box; }}></div></div></section>`)}</div></div>`;
};
