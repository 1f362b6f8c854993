"use strict";
(() => {
  const footer = document.querySelector("footer");
  const runs = [...document.querySelectorAll(".tokens .run")];
  const radios = [...document.querySelectorAll("[name=view]")];
  const borders = document.getElementById("borders");
  let here = null;

  const at = (piece) => {
    const run = piece.parentElement;
    const index = [...run.children].indexOf(piece);
    const ids = run.dataset.ids.split(" ");
    const before = ids.slice(0, index).join().split(",").filter(Boolean).length;
    return { run, index, id: ids[index], offset: Number(run.dataset.start) + before };
  };

  const fact = (name, value, tag = "span") => {
    const entry = document.createElement("span");
    const label = document.createElement("b");
    const shown = document.createElement(tag);
    label.textContent = name;
    shown.textContent = value;
    entry.append(label, " ", shown);
    return entry;
  };

  const inspect = (piece) => {
    if (here) here.classList.remove("here");
    here = piece;
    here.classList.add("here");
    const { run, index, id, offset } = at(piece);
    const data = run.dataset;
    const logprobs = data.logprobs ? data.logprobs.split(" ")[index] : null;
    const facts = [
      fact(id.includes(",") ? "ids" : "id", id, "code"),
      fact("piece", `“${piece.textContent.replaceAll("↵\n", "↵")}”`, "code"),
      fact("mask", data.mask),
      fact("segment", data.kind),
    ];
    if (logprobs) {
      const chance = logprobs.split(",").map((value) => Math.exp(value).toPrecision(2)).join(", ");
      facts.splice(2, 0, fact("logprob", `${logprobs} (p ${chance})`));
    }
    if (data.turn) facts.push(fact("turn", data.turn));
    if (data.policy) facts.push(fact("policy", data.policy));
    facts.push(fact("position", `${offset} in sample ${run.closest(".sample").dataset.number}`));
    footer.replaceChildren(...facts);
  };

  const remember = () => {
    const view = radios.find((radio) => radio.checked).value;
    history.replaceState(null, "", `#${view}${borders.checked ? "+borders" : ""}`);
  };

  const go = (piece) => {
    if (!piece) return;
    for (let box = piece.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    inspect(piece);
    piece.scrollIntoView({ block: "nearest" });
  };

  const step = (by) => {
    const from = here ? runs.indexOf(here.parentElement) : by > 0 ? -1 : runs.length;
    go(runs[Math.min(Math.max(from + by, 0), runs.length - 1)]?.firstElementChild);
  };

  const token = (by) => {
    if (!here) return step(by);
    const beside = by > 0 ? here.nextElementSibling : here.previousElementSibling;
    if (beside) return go(beside);
    const run = runs[runs.indexOf(here.parentElement) + by];
    go(by > 0 ? run?.firstElementChild : run?.lastElementChild);
  };

  const copy = () => {
    if (here) navigator.clipboard?.writeText(here.parentElement.dataset.ids.replaceAll(" ", ","));
  };

  const keys = {
    j: () => step(1), k: () => step(-1), l: () => token(1), h: () => token(-1), c: copy,
    b: () => borders.click(), 1: () => radios[0].click(), 2: () => radios[1].click(), 3: () => radios[2].click(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key]();
  });
  document.addEventListener("pointerover", (event) => {
    if (event.target.matches(".tokens .run i")) inspect(event.target);
  });
  document.addEventListener("change", remember);

  const [view, drawn] = location.hash.slice(1).split("+");
  for (const radio of radios) if (radio.value === view) radio.checked = true;
  borders.checked = drawn === "borders";
  for (const run of runs) run.removeAttribute("title");
  document.querySelector(".keys").hidden = false;
  footer.hidden = false;
  footer.textContent = "Point at a token, or press j.";
})();
