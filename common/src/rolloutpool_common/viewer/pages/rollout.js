// One rollout: how it went, then every token with its origin, beside its messages.
import { html, useEffect, useMemo } from "./vendor/htm_preact.js";
import { address, goTo, replaceAddress } from "./address.js";
import { CARRIED, useAnswer } from "./api.js";
import { Waiting } from "./batch.js";
import { save } from "./export.js";
import { Lane, LaneLegend } from "./lane.js";
import { turnParts } from "./lane_figures.js";
import { HarnessLines } from "./lines.js";
import { remember } from "./loaded.js";
import { Messages } from "./messages.js";
import { Failure, Id, Tabs, useKeys } from "./parts.js";
import { useReader } from "./pieces.js";
import { Samples } from "./samples.js";
import { counted, duration, figure, named, short, state, visible } from "./text.js";

const EVERY = 3000;
const NO_DRIFT = ["none", "unverified", "edited"];

/**
 * Fetches a rollout, again until it has ended: { view, result, error }.
 * @param {string | null} uid
 * @returns {{ view: RolloutView | null, result: Result | null, error: Fault | null }}
 */
export const useRollout = (uid) => {
  /** @type {Asked<RolloutView>} */
  const answer = useAnswer(uid !== null && `/v1/rollouts/${encodeURIComponent(uid)}`, (data) => (data?.result ? 0 : EVERY));
  const result = answer.data?.result ?? null;
  useEffect(() => {
    if (result) remember(result);
  }, [result]);
  return { view: answer.data, result, error: answer.error };
};

/**
 * Uids of a rollout's group in their order, none until they are known; without a group of those beside it in the batch.
 * @param {RolloutView | null} view
 * @returns {string[]}
 */
const useSiblings = (view) => {
  const group = view?.group;
  const which = group ? `1000&where=${encodeURIComponent(`group=${group}`)}` : "1";
  /** @type {Asked<RowPage>} */
  const { data, error } = useAnswer(view && !CARRIED && `/v1/batches/${encodeURIComponent(view.batch_id)}/rollouts?fields=uid&limit=${which}`);
  if (!view || CARRIED || (!data && !error)) return [];
  const uids = data?.columns.uid ?? [];
  if (group && uids.includes(view.uid)) return uids;
  const total = data?.total ?? Infinity;
  return [view.index - 1, view.index, view.index + 1].filter((index) => index >= 0 && index < total).map((index) => `${view.batch_id}-${index}`);
};

/**
 * The head that all views of a rollout have.
 * @param {{ uid: string, view: RolloutView | null, error: Fault | null, params: Params, current: string }} props
 */
export const RolloutHead = ({ uid, view, error, params, current }) => {
  const keep = { group: params.group };
  useEffect(() => {
    // A caller's own name for it is no uid; the address that is sent on should be one.
    if (view && view.uid !== uid) replaceAddress(address([current === "proof" ? "proof" : "rollout", view.uid], params));
  }, [view?.uid]);
  const siblings = useSiblings(view);
  const at = siblings.indexOf(view?.uid ?? "");
  const kind = current === "proof" ? "proof" : "rollout";
  const [before, after] = at < 0 ? [] : [siblings[at - 1], siblings[at + 1]];
  /** @param {string | undefined} to */
  const go = (to) => {
    if (to) goTo(address([kind, to], { ...keep, colour: params.colour }));
  };
  const other = after ?? before;
  const compare = view && other && address(["compare", view.uid, other]);
  useKeys({ n: () => go(after), p: () => go(before), c: () => { if (compare) goTo(compare); } });
  /** @type {[string, string][]} */
  const tabs = [["tokens", address(["rollout", uid], keep)], ["proof", address(["proof", uid], keep)]];
  return html`<div><h1>Rollout ${view ? named(view.index, view.rollout_id, view.uid) : visible(short(uid))}</h1>
    <p class="soft"><${Id} id=${view?.uid ?? uid} />${view?.group != null && html`<span> in group ${CARRIED ? visible(view.group) : html`<a href=${address(["group", view.batch_id, view.group])}>${visible(view.group)}</a>`}</span>`}
      ${before && html`<span> · <a href=${address([kind, before], keep)}>previous <kbd>p</kbd></a></span>`}
      ${after && html`<span> · <a href=${address([kind, after], keep)}>next <kbd>n</kbd></a></span>`}
      ${compare && html`<span> · <a href=${compare}>compare with ${after ? "the next" : "the one before"} <kbd>c</kbd></a></span>`}
      ${view?.result && html`<span> · <button onClick=${() => save(`${view.uid}.json`, "application/json", JSON.stringify(view.result))}>save as JSON</button></span>`}</p>
    <${Failure} error=${error} />
    ${view && !view.result && html`<p>${state(view.status)}${view.worker ? ` at ${visible(view.worker)}` : ""}, attempt ${figure(view.attempt)}, ${counted(view.turns, "turn")} so far</p>`}
    ${view?.waiting && html`<${Waiting} entry=${view.waiting} />`}
    <${Tabs} label="views of this rollout" tabs=${tabs} current=${current} /></div>`;
};

/** @param {{ uid: string, params: Params }} props */
export const Rollout = ({ uid, params }) => {
  const { view, result, error } = useRollout(uid);
  const path = `/v1/rollouts/${encodeURIComponent(view?.uid ?? uid)}`;
  /** @type {Asked<RolloutHistory>} */
  const history = useAnswer(view && `${path}/history`, () => (result ? 0 : EVERY));
  /** @type {Asked<Annotations>} */
  const annotations = useAnswer(result && `${path}/annotations`);
  const said = annotations.data;
  const known = Boolean(said || annotations.error);
  const streams = useMemo(() => streamsOf(result, said), [result, said]);
  const [reader, note] = useReader(result);
  return html`<div><${RolloutHead} uid=${uid} view=${view} error=${error} params=${params} current="tokens" />
    ${result && html`<${Facts} result=${result} scalars=${said?.scalars ?? {}} />`}
    ${history.data && html`<${History} history=${history.data} />`}
    ${result?.harness && html`<${HarnessLines} result=${result} report=${result.harness} />`}
    ${result && html`<${Turns} result=${result} />`}
    ${note && html`<p class="soft">${note}</p>`}
    ${result && html`<div class="columns">${known && reader !== undefined
      ? html`<${Samples} key=${result.uid} result=${result} streams=${streams} reader=${reader} params=${params} />`
      : html`<p>…</p>`}<${Messages} uid=${result.uid} messages=${result.messages} failure=${result.failure} params=${params} settled=${known && reader !== undefined} /></div>`}</div>`;
};

/**
 * Numbers per token: those of the grader, and what was annotated.
 * @param {Result | null} result
 * @param {Annotations | null} said
 * @returns {Streams}
 */
const streamsOf = (result, said) => ({ ...(result?.token_rewards ? { token_rewards: result.token_rewards } : {}), ...said?.streams });

/** @param {{ result: Result, scalars: { [name: string]: number } }} props */
const Facts = ({ result, scalars }) => {
  const { failure, spans } = result;
  return html`<div><p class="chips"><span class="chip ${result.status === "completed" ? "" : "bad"}">${state(result.status)}</span>
      <span class="chip">ended by ${visible(result.finish_reason)}</span>
      <span class="chip">${visible(result.alignment ?? "nothing sampled")}</span>
      ${Object.entries(result.drift).map(([name, count]) => html`<span key=${name} class="chip drift">≠ ${visible(name)} in ${counted(count, "turn")}</span>`)}
      ${result.warnings.map((name) => html`<span key=${name} class="chip">⚠ ${visible(name)}</span>`)}
      ${Object.entries(result.labels).map(([name, value]) => html`<span key=${name} class="chip">${visible(name)}=${visible(value)}</span>`)}
      ${Object.entries(scalars).map(([name, value]) => html`<span key=${name} class="chip">${visible(name)} ${figure(value)}</span>`)}</p>
    ${failure && html`<div><p class="alert"><strong>${visible(failure.category)}</strong> (${visible(failure.kind)} at ${visible(failure.boundary)}${failure.turn == null ? "" : `, turn ${failure.turn}`}): ${visible(failure.message)}</p>
      <p class="soft">What the log says of it: <code>rolloutpool logs --id ${visible(result.uid)}</code></p></div>`}
    ${result.stale_versions && html`<p class="alert mild">Too old: sampled by version ${visible(result.stale_versions.sampled)}; the run was at ${visible(result.stale_versions.run)}, and version ${visible(result.stale_versions.allowed)} was allowed</p>`}
    ${result.waited_for && html`<p class="alert mild">It waited for ${visible(result.waited_for.waits_for)} ${visible(result.waited_for.endpoint)}: ${visible(result.waited_for.status ?? "")} ${visible(result.waited_for.message)}</p>`}
    <dl><dt>time</dt><dd>queued ${duration(spans.queued_ms)}, then ran ${duration(spans.total_ms)}: model ${duration(spans.llm_ms)}, tools ${duration(spans.tools_ms)}, tokenizer ${duration(spans.tokenizer_ms)}${spans.loop_ms != null && html`, waited ${duration(spans.loop_ms)} for the worker and ${duration(spans.redis_ms)} for Redis`}</dd>
      <dt>calls</dt><dd>${figure(result.num_llm_calls)} of the model, ${figure(result.num_tool_calls)} of tools</dd>
      <dt>tokens</dt><dd>${figure(result.response_tokens)} sampled, longest context ${figure(result.max_context_tokens)}</dd>
      ${result.reward != null && html`<dt>reward</dt><dd>${figure(result.reward)}${Object.entries(result.reward_parts ?? {}).map(([name, value]) => html`, ${visible(name)} ${figure(value)}`)}${result.grade && html`, by ${visible(result.grade.grader)}`}</dd>`}
      <dt>worker</dt><dd>${visible(result.worker ?? "none")}, attempt ${figure(result.attempt)}</dd></dl></div>`;
};

/** @param {{ history: RolloutHistory }} props */
const History = ({ history }) => {
  const told = history.attempts.some((attempt) => attempt.reason) || history.not_before_ms;
  if (!told && history.attempts.length < 2) return null;
  /** @param {number | null} ms */
  const since = (ms) => (ms == null ? "" : duration(ms - history.accepted_ms));
  return html`<details open=${history.status !== "completed"}><summary>History: ${counted(history.attempts.length, "attempt")}</summary>
    <div class="scroll" tabindex="0" role="region" aria-label="attempts"><table class="list"><thead><tr><th>attempt</th><th>worker</th><th>claimed after</th><th>ended after</th><th class="number">turns</th><th>outcome</th><th>why</th></tr></thead>
    <tbody>${history.attempts.map((one) => html`<tr key=${one.attempt}><td>${figure(one.attempt)}</td><td>${visible(one.worker)}</td><td>${since(one.claimed_ms)}</td><td>${since(one.ended_ms)}</td>
      <td class="number">${figure(one.turns)}</td><td>${visible(one.outcome)}</td><td class="why">${visible(one.reason)}${one.detail ? `: ${visible(one.detail)}` : ""}${one.delay_ms ? `, then waited ${duration(one.delay_ms)}` : ""}</td></tr>`)}</tbody></table></div></details>`;
};

/** @param {Turn["tools"][number]} call @param {number} at */
const tool = ({ name, ms, ok, error }, at) => html`<span key=${at}>${at ? ", " : ""}<bdi>${visible(name)}</bdi> ${ok ? "✓" : "✕"}${error ? ` ${visible(error)}` : ""} ${duration(ms)}</span>`;

/** @param {{ result: Result }} props */
const Turns = ({ result }) => {
  const { turns, spans, uid } = result;
  const parts = useMemo(() => turns.map(turnParts), [turns]);
  if (!turns.length) return null;
  const timed = parts.some((list) => list.length);
  const end = Math.max(1, ...parts.map((list) => list.at(-1)?.to ?? 0));
  const queued = { kind: "queued", from: 0, to: Math.min(spans.queued_ms, parts.find((list) => list.length)?.[0].from ?? 0) };
  return html`<details open=${turns.length <= 12}><summary>${counted(turns.length, "turn")}</summary>
    ${timed && html`<${LaneLegend} kinds=${["queued", "model", "tools"]} />`}
    <div class="scroll" tabindex="0" role="region" aria-label="turns"><table class="list"><thead><tr><th>turn</th>${timed && html`<th class="wide">time: 0 to ${duration(end)}</th>`}<th class="number">model</th><th>tools</th><th class="number">prompt</th><th class="number">sampled</th><th class="number">mask sent</th><th>finish</th><th>stop token</th><th>policy</th><th>drift</th></tr></thead>
    <tbody>${turns.map((turn, at) => html`<tr key=${at}><td>${figure(turn.turn)}</td>
      ${timed && html`<td><${Lane} parts=${at || !queued.to ? parts[at] : [queued, ...parts[at]]} end=${end} /></td>`}
      <td class="number">${duration(turn.llm_ms)}</td><td class="wrap labels">${turn.tools?.length ? turn.tools.map(tool) : figure(turn.tool_calls || null)}</td>
      <td class="number">${figure(turn.prompt_tokens)}</td><td class="number">${figure(turn.sampled_tokens)}</td><td class="number">${figure(turn.mask_sent) || "none"}</td>
      <td>${visible(turn.finish_reason ?? "none")}</td><td>${visible(turn.stop)}</td><td class="wrap">${visible(turn.policy_version ?? "none")}</td>
      <td class=${NO_DRIFT.includes(turn.drift) ? "" : "drift"}>${NO_DRIFT.includes(turn.drift) ? visible(turn.drift) : html`<a class="drift" href=${address(["proof", uid])}>≠ ${visible(turn.drift)}</a>`}</td></tr>`)}</tbody></table></div></details>`;
};
