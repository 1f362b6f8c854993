// The proof of a rollout's masks: for every turn, whether the prompt that the trainer echoed is the pool's ledger; and
// where it is not, the first difference of the two, and what forked.
import { html, useMemo } from "./vendor/htm_preact.js";
import { address } from "./address.js";
import { checksOf, differencesOf } from "./differences.js";
import { Failure } from "./parts.js";
import { useReader } from "./pieces.js";
import { readingsOf } from "./readings.js";
import { RolloutHead, useRollout } from "./rollout.js";
import { allRuns, brokenLists } from "./runs.js";
import { counted, figure, visible } from "./text.js";

/** @type {{ [label: string]: string }} */
const AGREE = {
  none: "✓ the echo is the ledger",
  edited: "✓ the agent edited the history; the echo is what was expected of that",
  unverified: "? the trainer echoed no prompt, so there was nothing to compare",
};

/**
 * Texts of a few ids; a dot for one that continues a character.
 * @param {number[]} ids
 * @param {Reader | null} reader
 */
const textsOf = (ids, reader) => readingsOf({ prompt_ids: ids, response_ids: [] }, [{ start: 0, n: ids.length }], reader).map((text) => text || "·");

/** @param {{ uid: string, params: Params }} props */
export const Proof = ({ uid, params }) => {
  const { view, result, error } = useRollout(uid);
  const [reader, note] = useReader(result);
  const fault = result?.samples.map(brokenLists).find(Boolean);
  return html`<div><${RolloutHead} uid=${uid} view=${view} error=${error} params=${params} current="proof" />
    ${note && html`<p class="soft">${note}</p>`}
    ${fault && html`<${Failure} error=${new Error(`This record is broken: a sample has ${fault}.`)} />`}
    ${result && !fault && reader !== undefined && html`<${Body} result=${result} reader=${reader} />`}</div>`;
};

/** @param {{ result: Result, reader: Reader | null }} props */
const Body = ({ result, reader }) => {
  const runs = useMemo(() => allRuns(result.samples), [result]);
  const found = useMemo(() => differencesOf(result), [result]);
  const checks = useMemo(() => checksOf(result, runs), [result]);
  /** @type {{ [alignment: string]: string }} */
  const verdicts = { exact: "✓ exact: every echo agreed with the ledger.", forked: "↳ forked: an echo disagreed, and the rollout was split, so that each sample is what the policy saw.", unverified: "? unverified: the trainer echoed no prompts, and the batch allows that." };
  return html`<div><p class="verdict">${verdicts[result.alignment ?? ""] ?? "Nothing was sampled, so there is nothing to prove."}</p>
    <h2>What the result says of itself</h2>
    <ul class="checks">${checks.map(({ says, holds }) => html`<li key=${says} class=${holds === false ? "bad" : ""}>${holds === null ? "·" : holds ? "✓" : "✕"} ${says}</li>`)}</ul>
    <h2>${counted(result.turns.length, "turn")}</h2>
    ${result.turns.map((turn, place) => html`<${Turn} key=${place} turn=${turn} uid=${result.uid} found=${found.find(({ at }) => at === place)} reader=${reader} />`)}
    ${found.filter(({ at }) => at < 0).map((one) => html`<section key=${one.turn} class="turn drifted" aria-label="what ended it"><h3>Turn ${figure(one.turn)} <span class="drift">≠ its prompt ended the rollout</span></h3>
      <${Difference} found=${one} uid=${result.uid} reader=${reader} /></section>`)}</div>`;
};

/** @param {{ turn: Turn, uid: string, found: Found | undefined, reader: Reader | null }} props */
const Turn = ({ turn, uid, found, reader }) => {
  const says = AGREE[turn.drift];
  return html`<section class=${says ? "turn" : "turn drifted"} aria-label="turn ${turn.turn}"><h3>Turn ${figure(turn.turn)} <span class=${says ? "soft" : "drift"}>${says ?? `≠ ${visible(turn.drift)}`}</span></h3>
    ${found && html`<${Difference} found=${found} uid=${uid} reader=${reader} />`}
    ${!says && !found && html`<p>The result does not hold where they part.</p>`}</section>`;
};

/** @param {{ found: Found, uid: string, reader: Reader | null }} props */
const Difference = ({ found, uid, reader }) => {
  const [before, expected, echoed] = [found.before, found.expected, found.echoed].map((ids) => textsOf(ids, reader));
  const texts = [expected, echoed].map((list) => list.join(""));
  const same = reader && expected.length > 0 && (texts[0].startsWith(texts[1]) || texts[1].startsWith(texts[0])) && texts[1] !== "";
  const { fork } = found;
  /** @param {number} sample @param {number} place */
  const see = (sample, place) => address(["rollout", uid], { at: `${sample}.${Math.max(0, place)}` });
  return html`<div class="difference"><p>They part at position ${figure(found.position)}.
      ${same && " The text is the same and it is split into other ids: rendering the history again would have changed them."}</p>
    <div class="scroll" tabindex="0" role="region" aria-label="first difference"><table>
      <${Row} title="ledger" before=${before} ids=${found.expected} lead=${found.before} texts=${expected} />
      <${Row} title="echo" before=${before} ids=${found.echoed} lead=${found.before} texts=${echoed} /></table></div>
    ${fork && html`<p>↳ Sample ${figure(fork.sample)} ends with the turn before and stays trained as it was sampled, ${counted(fork.kept, "trained token")} from this position on included: <a href=${see(fork.sample - 1, found.position - 1)}>see its tokens</a>.
      Sample ${figure(fork.sample + 1)} begins with the echo: <a href=${see(fork.sample, found.position)}>see it</a>.</p>`}</div>`;
};

/** @param {{ title: string, lead: number[], before: string[], ids: number[], texts: string[] }} props */
const Row = ({ title, lead, before, ids, texts }) =>
  html`<tbody><tr><th scope="row">${title}</th>${before.map((text, at) => html`<td key=${at} class="soft token">${text}</td>`)}
    ${texts.map((text, at) => html`<td key=${at + before.length} class="token ${at ? "" : "parts"}">${text}</td>`)}
    ${!ids.length && html`<td class="token parts">ends here</td>`}</tr>
    <tr><th scope="row" class="soft">ids</th>${lead.map((id, at) => html`<td key=${at} class="soft number">${id}</td>`)}
    ${ids.map((id, at) => html`<td key=${at + lead.length} class="number">${id}</td>`)}</tr></tbody>`;
