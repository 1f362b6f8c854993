// Draws the tokens of a sample: real text in the document, so that the browser's own search finds it. Blocks of some 500
// tokens are laid out only where they come into view (`content-visibility`), and a colour changes with one class on
// the container, so 131,072 tokens are no burden. Everything is placed as text.
import { contradicts, idAt, runAt } from "./runs.js";
import { visible } from "./text.js";

const BLOCK = 400; // A block ends at the first end of a line behind so many tokens …
const LONGEST = 600; // … and at the latest after so many.
const LOGPROBS = [0.01, 0.1, 0.5, 0.9].map(Math.log); // Lower edges of the classes q1 to q4.
/** @type {{ [kind: string]: string }} */
const KINDS = { sampled: "s", glue: "g", synth_close: "c", prompt: "o", shared: "o" };
const NO_DRIFT = ["none", "unverified", "edited"];
const VERSIONS = 6; // Classes of policy versions; later ones begin again.

/** @param {number} logprob */
const chance = (logprob) => {
  let q = 0;
  for (const edge of LOGPROBS) if (logprob >= edge) q++;
  return q;
};

/**
 * @param {string} tag
 * @param {string} text
 */
const element = (tag, text, name = "") => {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  return made;
};

// Only trained tokens differ in their looks. A block of others is one text until somebody points at it or paints it.
/** @type {WeakMap<HTMLElement, string[]>} */
const undivided = new WeakMap();

/** @param {string} text */
const tokenElement = (text, q = "") => {
  const made = document.createElement("i");
  const name = text === "" ? `${q} more` : q;
  if (name) made.className = name;
  made.textContent = text;
  return made;
};

/**
 * Gives each token of a block an element of its own.
 * @param {HTMLElement} block
 */
export const divide = (block) => {
  const texts = undivided.get(block);
  if (!texts) return;
  undivided.delete(block);
  block.replaceChildren(...texts.map((text) => tokenElement(text)));
};

/**
 * @param {string[]} texts
 * @param {number} from
 * @param {number} end
 */
const endOfBlock = (texts, from, end) => {
  for (let at = from + BLOCK; at < Math.min(from + LONGEST, end); at++) if (texts[at].endsWith("\n")) return at + 1;
  return Math.min(from + LONGEST, end);
};

/**
 * Makes the elements of a run, in blocks.
 * @param {Run} run
 * @param {Sample} sample
 * @param {string[]} texts
 * @param {string[]} versions
 */
export const drawRun = (run, sample, texts, versions = []) => {
  const prompt = sample.prompt_ids.length;
  const box = document.createElement("div");
  const version = versions.indexOf(run.policy ?? "");
  box.className = `run ${KINDS[run.kind] ?? "x"} ${run.trained ? "m" : "u"}${contradicts(run) ? " contradicts" : ""}${version < 0 ? "" : ` v${version % VERSIONS}`}`;
  if (version >= 0) box.dataset.policy = visible(run.policy);
  const end = run.start + run.n;
  for (let at = run.start; at < end; ) {
    const to = endOfBlock(texts, at, end);
    const held = texts.slice(at, to);
    const block = document.createElement("span");
    block.className = "block";
    block.dataset.start = String(at);
    block.dataset.n = String(held.length);
    if (run.trained) block.append(...held.map((text, n) => tokenElement(text, `q${chance(sample.response_logprobs[at + n - prompt])}`)));
    else {
      undivided.set(block, held);
      // What continues a character has a mark, which only an element can have.
      if (held.includes("")) divide(block);
      else block.textContent = held.join("");
    }
    box.append(block);
    at = to;
  }
  return box;
};

/**
 * @param {HTMLElement[]} where
 * @param {HTMLElement} content
 */
const part = (where, content) => {
  const made = document.createElement("div");
  made.className = "part";
  const label = document.createElement("div");
  label.className = "where";
  label.append(...where);
  content.classList.add("tokens");
  made.append(label, content);
  return made;
};

/**
 * @param {Run} run
 * @param {string} says
 * @param {HTMLElement} made
 */
const folded = (run, says, made) => {
  const details = document.createElement("details");
  details.append(element("summary", `${run.n.toLocaleString("en")} ${says}`), made);
  return details;
};

/**
 * Draws a sample into an element: what is known already folded, then a part for each turn.
 * @param {HTMLElement} into
 * @param {Sample} sample
 * @param {{ runs: Run[], texts: string[], turns: Turn[], versions: string[], number: number, fork: boolean }} what
 */
export const drawSample = (into, sample, { runs, texts, turns, versions, number, fork }) => {
  const records = new Map(turns.map((turn) => [turn.turn, turn]));
  /** @type {HTMLElement[]} */
  const parts = [];
  /** @type {{ turn: number | undefined, box: HTMLElement } | null} */
  let open = null; // The part of the turn that is being filled.
  for (const run of runs) {
    const made = drawRun(run, sample, texts, versions);
    if (run.kind === "shared") {
      parts.push(part([element("b", "prompt"), element("div", `as sample ${number - 1}`)], folded(run, `tokens as in sample ${number - 1}`, made)));
      continue;
    }
    if (run.kind === "prompt") {
      const box = fork ? document.createElement("div") : folded(run, "tokens of the prompt", made);
      if (fork) box.append(made);
      parts.push(part([element("b", "prompt"), ...(fork ? [element("div", `↳ fork of ${number - 1}`, "drift")] : [])], box));
      continue;
    }
    if (!open || open.turn !== run.turn) {
      const record = records.get(run.turn ?? 0);
      const where = [element("b", run.turn === undefined ? "no turn" : `turn ${run.turn}`)];
      const policy = record?.policy_version ?? run.policy;
      if (policy != null) where.push(element("div", `policy ${visible(policy)}`));
      if (record && !NO_DRIFT.includes(record.drift)) where.push(element("div", `≠ ${visible(record.drift)}`, "drift"));
      if (record?.stop && record.stop !== "sampled") where.push(element("div", `stop token ${visible(record.stop)}`));
      open = { turn: run.turn, box: document.createElement("div") };
      parts.push(part(where, open.box));
    }
    open.box.append(made);
  }
  into.replaceChildren(...parts);
};

/**
 * The blocks of tokens in an element.
 * @param {HTMLElement} root
 * @returns {NodeListOf<HTMLElement>}
 */
export const blocksOf = (root) => root.querySelectorAll(".block");

/**
 * The place of an `i` element in its sample.
 * @param {HTMLElement} token
 */
export const placeOf = (token) => {
  const block = token.parentElement;
  return block ? Number(block.dataset.start) + [...block.children].indexOf(token) : 0;
};

/**
 * The facts of a token: { place, id, run, trained, logprob, response }.
 * @param {number} place
 * @param {Sample} sample
 * @param {Run[]} runs
 * @returns {TokenFacts}
 */
export const factsOf = (place, sample, runs) => {
  const response = place - sample.prompt_ids.length;
  const trained = response >= 0 && sample.response_mask[response] === 1;
  return {
    place,
    run: runAt(runs, place) ?? { kind: "unknown", start: place, n: 1, trained: false },
    trained,
    id: idAt(sample, place),
    // At mask 0 the log-probabilities are 0.0, which would read as certain.
    logprob: trained ? sample.response_logprobs[response] : null,
    response,
  };
};

/**
 * Finds the element of a token by its place; opens what is folded around it.
 * @param {HTMLElement | null | undefined} root
 * @param {number} place
 * @returns {HTMLElement | null}
 */
export const tokenAt = (root, place) => {
  for (const block of root ? blocksOf(root) : []) {
    const start = Number(block.dataset.start);
    if (place < start || place >= start + Number(block.dataset.n)) continue;
    divide(block);
    const fold = block.closest("details");
    if (fold) fold.open = true;
    return /** @type {HTMLElement} */ (block.children[place - start]);
  }
  return null;
};
