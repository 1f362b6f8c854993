// The tokens of a rollout: drawn once, then coloured by one of the layers, inspected by pointer and keys.
import { html, useLayoutEffect, useMemo, useRef, useState } from "./vendor/htm_preact.js";
import { address, setParams } from "./address.js";
import { LAYERS, legendOf, paintStream, scaleOf, streamLegend } from "./layers.js";
import { Failure, useKeys } from "./parts.js";
import { readingsOf } from "./readings.js";
import { allRuns, brokenLists, contradicts, hasLines, idAt, isFork, lengthOf, versionsOf } from "./runs.js";
import { figure, visible } from "./text.js";
import { blocksOf, divide, drawSample, factsOf, placeOf, tokenAt } from "./tokens.js";

const STREAM = "stream:";

/** @param {Sample[]} samples */
const countsOf = (samples) => {
  let all = 0;
  let trained = 0;
  for (const sample of samples) {
    all += lengthOf(sample);
    for (const value of sample.response_mask) trained += value;
  }
  return { all, trained };
};

/**
 * `reader` gives the bytes of ids; null shows the ids. `streams` are annotations per token.
 * @param {{ result: Result, streams: Streams, reader: Reader | null, params: Params }} props
 */
export const Samples = ({ result, streams, reader, params }) => {
  const fault = result.samples.map(brokenLists).find(Boolean);
  if (fault) return html`<${Failure} error=${new Error(`This record is broken: a sample has ${fault}. Fetch it again, and report it if it stays so.`)} />`;
  return html`<${Drawn} result=${result} streams=${streams} reader=${reader} params=${params} />`;
};

/** @param {{ result: Result, streams: Streams, reader: Reader | null, params: Params }} props */
const Drawn = ({ result, streams, reader, params }) => {
  const boxes = useRef(/** @type {(HTMLElement | null)[]} */ ([]));
  const here = useRef(/** @type {HTMLElement | null} */ (null)); // The element of the token that is inspected.
  const [facts, setFacts] = useState(/** @type {Inspected | null} */ (null));
  const { samples } = result;
  const runs = useMemo(() => allRuns(samples), [samples]);
  const versions = useMemo(() => versionsOf(runs), [runs]);
  const counts = useMemo(() => countsOf(samples), [samples]);
  const names = Object.keys(streams);
  const stream = params.colour?.startsWith(STREAM) ? params.colour.slice(STREAM.length) : null;
  const painted = stream !== null && names.includes(stream) ? stream : null;
  const layer = painted !== null ? "stream" : (LAYERS.find(([, name]) => name === params.colour)?.[1] ?? "mask");
  const scale = useMemo(() => (painted !== null ? scaleOf(streams[painted]) : null), [painted, streams]);

  useLayoutEffect(() => {
    here.current = null;
    setFacts(null);
    samples.forEach((sample, at) => {
      const texts = readingsOf(sample, runs[at], reader);
      const box = boxes.current[at];
      // Where there are several lines, a turn's number does not say which of them its record is of.
      const turns = hasLines(result) ? [] : result.turns;
      if (box) drawSample(box, sample, { runs: runs[at], texts, turns, versions, number: at + 1, fork: isFork(result, at) });
    });
  }, [samples, reader]);
  useLayoutEffect(() => {
    if (!names.length) return;
    samples.forEach((sample, at) => {
      const box = boxes.current[at];
      if (box) paintStream(box, sample, painted !== null ? streams[painted][at] : null, scale);
    });
  }, [samples, reader, scale]);

  /** @param {HTMLElement | null} token */
  const inspect = (token) => {
    if (!token || token === here.current) return;
    here.current?.classList.remove("here");
    here.current = token;
    token.classList.add("here");
    const sample = boxes.current.findIndex((box) => box?.contains(token));
    setFacts({ sample, text: token.textContent ?? "", ...factsOf(placeOf(token), samples[sample], runs[sample]) });
  };
  /** @param {HTMLElement | null} token */
  const go = (token) => {
    if (!token || token === here.current) return;
    inspect(token);
    token.scrollIntoView({ block: "center" });
  };
  const where = () => {
    if (!here.current) return null;
    const token_ = here.current;
    const sample = boxes.current.findIndex((box) => box?.contains(token_));
    return { sample, ...factsOf(placeOf(token_), samples[sample], runs[sample]) };
  };
  const starts = () => runs.flatMap((list, sample) => list.map((run) => ({ sample, ...run })));
  /** @param {(Run & { sample: number }) | undefined} run */
  const goTo = (run) => run && go(tokenAt(boxes.current[run.sample], run.start));
  /** @param {number} by */
  const step = (by) => {
    const order = starts();
    const now = where();
    const at = now ? order.findIndex((run) => run.sample === now.sample && run.start === now.run.start) : by > 0 ? -1 : order.length;
    goTo(order[Math.min(Math.max(at + by, 0), order.length - 1)]);
  };
  const nextTrained = () => {
    const now = where();
    goTo(starts().find((run) => run.trained && (!now || run.sample > now.sample || (run.sample === now.sample && run.start > now.place))));
  };
  const firstTrained = () => goTo(starts().find((run) => run.trained));
  /** @param {number} by */
  const token = (by) => {
    const now = where();
    if (!now) return step(by);
    return go(tokenAt(boxes.current[now.sample], now.place + by));
  };
  /** @param {string} name */
  const paint = (name) => setParams({ colour: name === "mask" ? "" : name });
  const nextStream = () => {
    if (names.length) paint(`${STREAM}${names[(names.indexOf(stream ?? "") + 1) % names.length]}`);
  };
  const borders = params.borders === "1";
  const outline = () => setParams({ borders: borders ? "" : "1" });
  const copy = () => {
    const now = where();
    if (!now) return;
    const ids = Array.from({ length: now.run.n }, (_, n) => idAt(samples[now.sample], now.run.start + n));
    navigator.clipboard?.writeText(ids.join(","));
  };
  useKeys({
    b: outline, y: copy,
    j: () => step(1), k: () => step(-1), l: () => token(1), h: () => token(-1),
    t: firstTrained, T: nextTrained, 5: nextStream,
    ...Object.fromEntries(LAYERS.map(([key, name]) => [key, () => paint(name)])),
  });
  useLayoutEffect(() => {
    const [sample, place] = (params.at ?? "").split(".").map(Number);
    if (params.at && samples[sample]) go(tokenAt(boxes.current[sample], place));
  }, [samples, reader, params.at]);

  useLayoutEffect(() => {
    if (borders) for (const box of boxes.current) if (box) blocksOf(box).forEach(divide);
  }, [samples, reader, borders]);

  /** @param {MouseEvent} event */
  const pointed = ({ target, clientX, clientY }) => {
    if (!(target instanceof HTMLElement)) return null;
    if (!target.matches(".block")) return target.matches(".block > i") ? target : null;
    divide(target);
    const under = document.elementFromPoint(clientX, clientY);
    return under instanceof HTMLElement && under.matches(".block > i") ? under : null;
  };
  /** @param {MouseEvent} event */
  const pin = (event) => {
    const token_ = pointed(event);
    inspect(token_);
    const now = where();
    if (token_ && now) setParams({ at: `${now.sample}.${now.place}` });
  };
  /** @param {number} at */
  const lineOf = (at) => {
    const found = result.harness?.lines.find(({ samples: own }) => own.includes(at));
    return found ? ` of line ${figure(found.line)} (${visible(found.kind)})` : "";
  };
  const wrong = runs.some((list) => list.some(contradicts));
  return html`<section aria-label="tokens"><h2>Tokens: trained ${figure(counts.trained)} of ${figure(counts.all)}</h2>
    ${wrong && html`<p class="alert"><strong>This record contradicts itself:</strong> mask 1 on tokens that were not sampled. Do not train on it, and report it.</p>`}
    <div class="bar"><fieldset><legend>colour by</legend>
      ${LAYERS.map(([key, name, title]) => html`<label key=${name}><input type="radio" name="colour" checked=${layer === name} onChange=${() => paint(name)} /> ${title} <kbd>${key}</kbd></label>`)}
      ${names.length > 0 && html`<label>annotation <kbd>5</kbd> <select value=${layer === "stream" ? stream : ""} onChange=${(/** @type {{ target: HTMLSelectElement }} */ event) => paint(event.target.value && `${STREAM}${event.target.value}`)}>
        <option value="">none</option>${names.map((name) => html`<option key=${name} value=${name}>${visible(name)}</option>`)}</select></label>`}</fieldset>
      <label><input type="checkbox" checked=${borders} onChange=${outline} /> token borders <kbd>b</kbd></label>
      <button onClick=${firstTrained}>first trained run <kbd>t</kbd></button></div>
    <p class="legend by-${layer}">${(layer === "stream" ? (scale ? streamLegend(scale) : []) : legendOf(layer, versions)).map(
      ([run, token_, says], at) => html`<span key=${at} class="run ${run}"><i class=${token_}>${says}</i></span> `,
    )}</p>
    <div class="by-${layer} ${borders ? "borders" : ""}" onPointerOver=${(/** @type {PointerEvent} */ event) => inspect(pointed(event))} onClick=${pin}>
      ${samples.map((sample, at) => html`<div key=${at} class="sample"><h3>Sample ${at + 1} <span class="soft">${figure(sample.prompt_ids.length)} + ${figure(sample.response_ids.length)} tokens${lineOf(at)}</span></h3>
        <div ref=${(/** @type {HTMLElement | null} */ box) => { boxes.current[at] = box; }}></div></div>`)}
      ${!samples.length && html`<p>There are no samples: no turn was proved.</p>`}</div>
    <${Inspector} facts=${facts} streams=${streams} uid=${result.uid} colour=${params.colour} /></section>`;
};

/** @param {string} text */
const bytesOf = (text) => (text === "" ? "continues the character before it" : text);

/** @param {{ facts: Inspected | null, streams: Streams, uid: string, colour: string | undefined }} props */
const Inspector = ({ facts, streams, uid, colour }) => {
  if (!facts) return html`<div class="inspector" role="status">Point at a token, or press j.</div>`;
  const { run } = facts;
  const link = address(["rollout", uid], { colour, at: `${facts.sample}.${facts.place}` });
  return html`<div class="inspector" role="status"><span><b>id</b> <code>${facts.id}</code></span><span><b>reads</b> <code>${bytesOf(facts.text)}</code></span>
    ${facts.logprob !== null && html`<span><b>log-prob</b> ${facts.logprob.toFixed(4)} (p ${Math.exp(facts.logprob).toPrecision(2)})</span>`}
    <span><b>mask</b> ${facts.trained ? 1 : 0}</span><span><b>from</b> ${visible(run.kind)}</span>
    ${run.turn != null && html`<span><b>turn</b> ${figure(run.turn)}</span>`}
    ${run.policy != null && html`<span><b>policy</b> ${visible(run.policy)}</span>`}
    ${Object.entries(streams).map(([name, lists]) => {
      const value = lists[facts.sample]?.[facts.response];
      return value != null && html`<span key=${name}><b>${visible(name)}</b> ${figure(value)}</span>`;
    })}
    <span><b>position</b> <a href=${link}>${figure(facts.place)} in sample ${facts.sample + 1}</a></span></div>`;
};
