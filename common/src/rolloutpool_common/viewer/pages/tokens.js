// Draws the tokens of a sample: real text in the document, so that the browser's own search finds it. Blocks of 500
// tokens are laid out only where they come into view (`content-visibility`), and a colour changes with one class on
// the container, so 131,072 tokens are no burden. Everything is placed as text.
import { visible } from "./text.js";

const BLOCK = 500;
const PROBABILITIES = [0.01, 0.1, 0.5, 0.9]; // Lower edges of the classes q1 to q4, as in `rolloutpool show --html`.
const LOGPROBS = PROBABILITIES.map(Math.log);
const KINDS = { sampled: "s", glue: "g", synth_close: "c" };

/** Cuts a sample into runs of one origin: [{ kind, start, n, turn, policy, trained }], prompt first, offsets into all ids. */
export const runsOf = (sample) => {
  const prompt = sample.prompt_ids.length;
  const mask = sample.response_mask;
  const runs = prompt ? [{ kind: "prompt", start: 0, n: prompt, trained: false }] : [];
  const add = (kind, from, to, segment) => {
    for (let at = from; at < to; ) {
      const begin = at;
      while (at < to && mask[at] === mask[begin]) at++;
      const more = segment ? { turn: segment.turn, policy: segment.policy_version } : {};
      runs.push({ kind, start: prompt + begin, n: at - begin, trained: mask[begin] === 1, ...more });
    }
  };
  let reached = 0;
  for (const segment of sample.segments) {
    if (segment.start > reached) add("unknown", reached, segment.start, null);
    add(segment.kind, segment.start, segment.start + segment.n, segment);
    reached = segment.start + segment.n;
  }
  add("unknown", reached, sample.response_ids.length, null);
  return runs;
};

const chance = (logprob) => {
  let q = 0;
  for (const edge of LOGPROBS) if (logprob >= edge) q++;
  return q;
};

/** What a token reads: its piece, or its id where no pieces are known. */
const reading = (id, pieces) => {
  const piece = pieces?.[id];
  return piece === undefined || piece === null ? `${id} ` : visible(piece).replaceAll("\n", "↵\n") || "␀";
};

/** Makes the elements of a run, in blocks. */
const runElement = (run, sample, pieces) => {
  const prompt = sample.prompt_ids.length;
  const box = document.createElement("div");
  box.className = `run ${KINDS[run.kind] ?? "o"} ${run.trained ? "m" : "u"}${run.trained && run.kind !== "sampled" && run.kind !== "unknown" ? " contradicts" : ""}`;
  box.dataset.start = run.start;
  const token = document.createElement("i");
  for (let from = run.start; from < run.start + run.n; from += BLOCK) {
    const block = document.createElement("span");
    block.className = "block";
    block.dataset.start = from;
    const to = Math.min(from + BLOCK, run.start + run.n);
    for (let at = from; at < to; at++) {
      const made = token.cloneNode(false);
      if (run.trained) made.className = `q${chance(sample.response_logprobs[at - prompt])}`;
      made.textContent = reading(at < prompt ? sample.prompt_ids[at] : sample.response_ids[at - prompt], pieces);
      block.append(made);
    }
    box.append(block);
  }
  return box;
};

const labelled = (where, content) => {
  const part = document.createElement("div");
  part.className = "part";
  const label = document.createElement("div");
  label.className = "where";
  label.append(...where);
  content.classList.add("tokens");
  part.append(label, content);
  return part;
};

const element = (tag, text, name = "") => {
  const made = document.createElement(tag);
  made.textContent = visible(text);
  if (name) made.className = name;
  return made;
};

/** Draws a sample into an element: its prompt folded, then a part for each turn. */
export const drawSample = (into, sample, { turns = [], pieces = null } = {}) => {
  const runs = runsOf(sample);
  const records = new Map(turns.map((turn) => [turn.turn, turn]));
  const parts = [];
  let waiting = null; // The part of the turn that is being filled.
  for (const run of runs) {
    const made = runElement(run, sample, pieces);
    if (run.kind === "prompt") {
      const details = document.createElement("details");
      const summary = element("summary", `${run.n.toLocaleString("en")} tokens of the prompt`);
      details.append(summary, made);
      parts.push(labelled([element("b", "prompt")], details));
      continue;
    }
    if (!waiting || waiting.turn !== run.turn) {
      const record = records.get(run.turn);
      const where = [element("b", run.turn === undefined ? "no turn" : `turn ${run.turn}`)];
      if (record?.policy_version ?? run.policy) where.push(element("div", `policy ${record?.policy_version ?? run.policy}`));
      if (record && !["none", "edited"].includes(record.drift)) where.push(element("div", `≠ ${record.drift}`, "drift"));
      if (record?.stop && record.stop !== "sampled") where.push(element("div", `stop token ${record.stop}`));
      waiting = { turn: run.turn, box: document.createElement("div") };
      parts.push(labelled(where, waiting.box));
    }
    waiting.box.append(made);
  }
  into.replaceChildren(...parts);
  return runs;
};

/** The facts of a token: { at, id, text, logprob, run } for an `i` element in a drawn sample. */
export const factsOf = (token, sample, runs) => {
  const at = Number(token.parentElement.dataset.start) + [...token.parentElement.children].indexOf(token);
  const prompt = sample.prompt_ids.length;
  const run = runs.find((one) => at >= one.start && at < one.start + one.n);
  const trained = at >= prompt && sample.response_mask[at - prompt] === 1;
  return {
    at,
    run,
    trained,
    id: at < prompt ? sample.prompt_ids[at] : sample.response_ids[at - prompt],
    logprob: trained ? sample.response_logprobs[at - prompt] : null,
    response: at - prompt,
  };
};

/** Finds the element of a token by its offset into prompt and response; opens what is folded around it. */
export const tokenAt = (root, at) => {
  for (const block of root.querySelectorAll(".block")) {
    const start = Number(block.dataset.start);
    if (at < start || at >= start + block.children.length) continue;
    const fold = block.closest("details");
    if (fold) fold.open = true;
    return block.children[at - start];
  }
  return null;
};
