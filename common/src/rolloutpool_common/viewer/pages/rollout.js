// One rollout: how it went, then every token with its origin.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/htm_preact.js";
import { address, setParams } from "./address.js";
import { useAnswer } from "./api.js";
import { Failure, useKeys } from "./parts.js";
import { duration, figure, state, visible } from "./text.js";
import { drawSample, factsOf, tokenAt } from "./tokens.js";

const COLOURS = [["mask", "mask"], ["kind", "segment"], ["prob", "probability"], ["plain", "none"]];

export const Rollout = ({ uid, params }) => {
  const path = `/v1/rollouts/${encodeURIComponent(uid)}`;
  const [open, setOpen] = useState(true);
  const answer = useAnswer(path, open ? 3000 : 0);
  const ended = Boolean(answer.data?.result);
  if (answer.data && ended === open) setOpen(!ended);
  const history = useAnswer(`${path}/history`, open ? 3000 : 0);
  const annotations = useAnswer(answer.data ? `${path}/annotations` : null);
  const { data } = answer;
  const result = data?.result;
  const batch = uid.replace(/-\d+$/, "");
  const number = Number(uid.slice(batch.length + 1));
  const beside = (by) => {
    if (number + by >= 0) location.hash = address(["rollout", `${batch}-${number + by}`], { colour: params.colour });
  };
  useKeys({ n: () => beside(1), p: () => beside(-1) });
  return html`<div><h1>${visible(data?.rollout_id ?? uid)}</h1>
    <p class="soft"><code>${visible(uid)}</code>${data?.group ? ` in group ${visible(data.group)}` : ""}</p>
    <${Failure} error=${answer.error} />
    ${data && !result && html`<p>${state(data.status)}${data.worker ? ` at ${visible(data.worker)}` : ""}, attempt ${figure(data.attempt)}, ${figure(data.turns)} turns so far</p>`}
    ${result && html`<${Head} result=${result} scalars=${annotations.data?.scalars ?? {}} />`}
    ${history.data && html`<${History} history=${history.data} />`}
    ${result && html`<${Turns} turns=${result.turns} />`}
    ${result && html`<${Samples} key=${uid} result=${result} streams=${annotations.data?.streams ?? {}} params=${params} />`}
    ${result && html`<${Messages} messages=${result.messages} />`}</div>`;
};

const Head = ({ result, scalars }) => {
  const { failure, spans } = result;
  return html`<div><p class="chips"><span class="chip ${result.status === "completed" ? "" : "bad"}">${state(result.status)}</span>
      <span class="chip">ended by ${visible(result.finish_reason)}</span>
      <span class="chip">${visible(result.alignment ?? "nothing sampled")}</span>
      ${Object.entries(result.drift).map(([name, count]) => html`<span key=${name} class="chip drift">≠ ${visible(name)} in ${figure(count)} turns</span>`)}
      ${result.warnings.map((name) => html`<span key=${name} class="chip">⚠ ${visible(name)}</span>`)}
      ${Object.entries(result.labels).map(([name, value]) => html`<span key=${name} class="chip">${visible(name)}=${visible(value)}</span>`)}
      ${Object.entries(scalars).map(([name, value]) => html`<span key=${name} class="chip">${visible(name)} ${figure(value)}</span>`)}</p>
    ${failure && html`<p class="alert"><strong>${visible(failure.category)}</strong> (${visible(failure.kind)} at ${visible(failure.boundary)}${failure.turn == null ? "" : `, turn ${failure.turn}`}): ${visible(failure.message)}</p>`}
    ${result.waited_for && html`<p class="alert mild">It waited for ${visible(result.waited_for.waits_for)} ${visible(result.waited_for.endpoint)}: ${visible(result.waited_for.status ?? "")} ${visible(result.waited_for.message)}</p>`}
    <dl><dt>time</dt><dd>queued ${duration(spans.queued_ms)}, then ran ${duration(spans.total_ms)}: model ${duration(spans.llm_ms)}, tools ${duration(spans.tools_ms)}, tokenizer ${duration(spans.tokenizer_ms)}</dd>
      <dt>calls</dt><dd>${figure(result.num_llm_calls)} of the model, ${figure(result.num_tool_calls)} of tools</dd>
      <dt>tokens</dt><dd>${figure(result.response_tokens)} sampled, longest context ${figure(result.max_context_tokens)}</dd>
      <dt>worker</dt><dd>${visible(result.worker ?? "none")}, attempt ${figure(result.attempt)}</dd></dl></div>`;
};

const History = ({ history }) => {
  const told = history.attempts.some((attempt) => attempt.reason) || history.not_before_ms;
  if (!told && history.attempts.length < 2) return null;
  const since = (ms) => (ms == null ? "" : duration(ms - history.accepted_ms));
  return html`<details open=${history.status !== "completed"}><summary>History: ${figure(history.attempts.length)} attempts</summary>
    <div class="scroll" tabindex="0" role="region" aria-label="attempts"><table><thead><tr><th>attempt</th><th>worker</th><th>claimed after</th><th>ended after</th><th class="number">turns</th><th>outcome</th><th>why</th></tr></thead>
    <tbody>${history.attempts.map((one) => html`<tr key=${one.attempt}><td>${figure(one.attempt)}</td><td>${visible(one.worker)}</td><td>${since(one.claimed_ms)}</td><td>${since(one.ended_ms)}</td>
      <td class="number">${figure(one.turns)}</td><td>${visible(one.outcome)}</td><td>${visible(one.reason)}${one.detail ? `: ${visible(one.detail)}` : ""}${one.delay_ms ? `, then waited ${duration(one.delay_ms)}` : ""}</td></tr>`)}</tbody></table></div></details>`;
};

const Turns = ({ turns }) =>
  turns.length > 0 && html`<details><summary>${figure(turns.length)} turns</summary>
    <div class="scroll" tabindex="0" role="region" aria-label="turns"><table><thead><tr><th>turn</th><th class="number">prompt</th><th class="number">sampled</th><th class="number">mask sent</th><th class="number">tools</th><th>finish</th><th>stop token</th><th>policy</th><th>drift</th></tr></thead>
    <tbody>${turns.map((turn) => html`<tr key=${turn.turn}><td>${figure(turn.turn)}</td><td class="number">${figure(turn.prompt_tokens)}</td><td class="number">${figure(turn.sampled_tokens)}</td><td class="number">${figure(turn.mask_sent) || "none"}</td>
      <td class="number">${figure(turn.tool_calls)}</td><td>${visible(turn.finish_reason ?? "none")}</td><td>${visible(turn.stop)}</td><td>${visible(turn.policy_version ?? "none")}</td>
      <td class=${["none", "edited"].includes(turn.drift) ? "" : "drift"}>${["none", "edited"].includes(turn.drift) ? "" : "≠ "}${visible(turn.drift)}</td></tr>`)}</tbody></table></div></details>`;

const Samples = ({ result, streams, params }) => {
  const boxes = useRef([]);
  const root = useRef(null);
  const here = useRef(null);
  const [facts, setFacts] = useState(null);
  const colour = COLOURS.some(([name]) => name === params.colour) ? params.colour : "mask";
  const runs = useRef([]);
  useLayoutEffect(() => {
    runs.current = result.samples.map((sample, at) => drawSample(boxes.current[at], sample, { turns: result.turns }));
  }, [result]);
  const inspect = (token) => {
    if (!token || token === here.current) return;
    here.current?.classList.remove("here");
    here.current = token;
    token.classList.add("here");
    const at = boxes.current.findIndex((box) => box?.contains(token));
    setFacts({ sample: at, text: token.textContent, ...factsOf(token, result.samples[at], runs.current[at]) });
  };
  const go = (token, block = "nearest") => {
    if (!token) return;
    inspect(token);
    token.scrollIntoView({ block });
  };
  const trained = () => {
    const order = runs.current.flatMap((list, sample) => list.filter((run) => run.trained).map((run) => [sample, run.start]));
    if (order.length) go(tokenAt(boxes.current[order[0][0]], order[0][1]), "center");
  };
  const step = (by) => {
    const order = runs.current.flatMap((list, sample) => list.map((run) => [sample, run.start]));
    const now = here.current ? factsAt() : null;
    const at = now ? order.findIndex(([sample, start]) => sample === now.sample && start === now.run.start) : by > 0 ? -1 : order.length;
    const to = order[Math.min(Math.max(at + by, 0), order.length - 1)];
    if (to) go(tokenAt(boxes.current[to[0]], to[1]), "center");
  };
  const factsAt = () => {
    const sample = boxes.current.findIndex((box) => box?.contains(here.current));
    return { sample, ...factsOf(here.current, result.samples[sample], runs.current[sample]) };
  };
  const token = (by) => {
    if (!here.current) return step(by);
    const { sample, at } = factsAt();
    return go(tokenAt(boxes.current[sample], at + by));
  };
  const paint = (name) => setParams({ colour: name === "mask" ? "" : name });
  useKeys({
    j: () => step(1), k: () => step(-1), l: () => token(1), h: () => token(-1), t: trained,
    ...Object.fromEntries(COLOURS.map(([name], at) => [String(at + 1), () => paint(name)])),
  });
  useEffect(() => {
    const [sample, at] = (params.at ?? "").split(".").map(Number);
    if (params.at && boxes.current[sample]) go(tokenAt(boxes.current[sample], at), "center");
  }, [result]);
  const counts = useMemo(() => {
    let all = 0;
    let masked = 0;
    for (const sample of result.samples) {
      all += sample.prompt_ids.length + sample.response_ids.length;
      for (const value of sample.response_mask) masked += value;
    }
    return { all, masked };
  }, [result]);
  const link = facts && address(["rollout", result.uid], { colour: params.colour, at: `${facts.sample}.${facts.at}` });
  return html`<section><h2>Tokens: trained ${figure(counts.masked)} of ${figure(counts.all)}</h2>
    <div class="bar"><fieldset><legend>colour by</legend>
      ${COLOURS.map(([name, title]) => html`<label key=${name}><input type="radio" name="colour" checked=${colour === name} onChange=${() => paint(name)} /> ${title}</label>`)}</fieldset>
      <button onClick=${trained}>first trained run <kbd>t</kbd></button>
      <span class="soft"><kbd>j</kbd> <kbd>k</kbd> runs, <kbd>h</kbd> <kbd>l</kbd> tokens, <kbd>n</kbd> <kbd>p</kbd> next and previous rollout</span></div>
    <${Legend} colour=${colour} />
    <div ref=${root} class="by-${colour}" onPointerOver=${(event) => event.target.matches?.(".block > i") && inspect(event.target)}>
      ${result.samples.map((sample, at) => html`<div key=${at} class="sample"><h3>Sample ${at + 1} <span class="soft">${figure(sample.prompt_ids.length)} + ${figure(sample.response_ids.length)} tokens</span></h3>
        <div ref=${(box) => { boxes.current[at] = box; }}></div></div>`)}
      ${!result.samples.length && html`<p>There are no samples: no turn was proved.</p>`}</div>
    <footer class="inspector" role="status">${facts
      ? html`<span><b>id</b> <code>${facts.id}</code></span><span><b>reads</b> <code>${facts.text}</code></span>
        ${facts.logprob != null && html`<span><b>log-prob</b> ${facts.logprob.toFixed(4)} (p ${Math.exp(facts.logprob).toPrecision(2)})</span>`}
        <span><b>mask</b> ${facts.trained ? 1 : 0}</span><span><b>from</b> ${visible(facts.run.kind)}</span>
        ${facts.run.turn != null && html`<span><b>turn</b> ${figure(facts.run.turn)}</span>`}
        ${facts.run.policy != null && html`<span><b>policy</b> ${visible(facts.run.policy)}</span>`}
        ${Object.entries(streams).map(([name, lists]) => lists[facts.sample]?.[facts.response] != null && html`<span key=${name}><b>${visible(name)}</b> ${figure(lists[facts.sample][facts.response])}</span>`)}
        <span><b>position</b> <a href=${link}>${figure(facts.at)} in sample ${facts.sample + 1}</a></span>`
      : "Point at a token, or press j."}</footer></section>`;
};

const LEGENDS = {
  mask: [["m", "", "mask 1"], ["s u", "", "sampled, not trained"], ["g u", "", "mask 0"]],
  kind: [["s m", "", "sampled by the policy"], ["g u", "", "template and tools"], ["c u", "", "end of a turn that sampled none"], ["o u", "", "prompt"]],
  prob: [["m", "q4", "≥ 0.9"], ["m", "q3", "≥ 0.5"], ["m", "q2", "≥ 0.1"], ["m", "q1", "≥ 0.01"], ["m", "q0", "less"]],
  plain: [],
};

const Legend = ({ colour }) =>
  html`<p class="legend by-${colour}">${LEGENDS[colour].map(([run, q, says]) => html`<span key=${says} class="run ${run}"><i class=${q}>${says}</i></span> `)}</p>`;

const Messages = ({ messages }) =>
  html`<section><h2>Messages</h2>${messages.map((message, at) => html`<details key=${at} class="message" open=${at > messages.length - 3}>
    <summary><b>${visible(message.role)}</b> <span class="soft">${message.tool_call_id ? `answers ${visible(message.tool_call_id)}` : ""}</span></summary>
    ${message.content && html`<pre>${visible(typeof message.content === "string" ? message.content : JSON.stringify(message.content, null, 1))}</pre>`}
    ${message.reasoning_content && html`<pre class="soft">${visible(message.reasoning_content)}</pre>`}
    ${(message.tool_calls ?? []).map((call, n) => html`<pre key=${n}>calls ${visible(call.function?.name)} ${visible(call.function?.arguments)}</pre>`)}</details>`)}</section>`;
