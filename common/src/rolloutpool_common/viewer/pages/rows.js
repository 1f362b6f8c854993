// Filter and order of a batch's table, over columns. The same conditions as `where` of the API; any other word is
// searched in names and messages.

const CONDITION = /^([a-z_]+(?:\.[A-Za-z0-9_.-]+)?)(>=|<=|!=|=|>|<|~)(.*)$/s;
const SEARCHED = ["rollout_id", "uid", "group", "message", "category", "worker"];
const ORDER = { ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b };

const asText = (value) => (value == null ? "" : Array.isArray(value) ? value.join("+") : String(value));

/** Makes a test of a place in the columns from a text; throws an Error that says what is wrong with it. */
export const parseFilter = (text, columns) => {
  const tests = text.split(/\s+/).filter(Boolean).map((word) => parseWord(word, columns));
  return (place) => tests.every((test) => test(place));
};

const parseWord = (word, columns) => {
  const [, field, operator, value] = CONDITION.exec(word) ?? [];
  if (!field) {
    const sought = word.toLowerCase();
    const texts = SEARCHED.map((name) => columns[name]).filter(Boolean);
    return (place) => texts.some((column) => column[place] != null && String(column[place]).toLowerCase().includes(sought));
  }
  const column = columns[field];
  if (!column) throw new Error(`${field} is no field; there are ${Object.keys(columns).join(", ")}`);
  if (ORDER[operator]) {
    const limit = Number(value);
    if (value === "" || Number.isNaN(limit)) throw new Error(`${operator} compares numbers`);
    return (place) => typeof column[place] === "number" && ORDER[operator](column[place], limit);
  }
  if (operator === "~") return (place) => column[place] != null && typeof column[place] !== "number" && column[place].includes(value);
  const values = new Set(value.split(","));
  return (place) => values.has(asText(column[place])) === (operator === "=");
};

/** Puts the places that pass in order: `-` in front of the field is the largest first; null comes last. */
export const choose = (columns, filter, sort) => {
  const total = columns.index?.length ?? 0;
  const passes = parseFilter(filter, columns);
  const name = sort.replace(/^-/, "");
  const column = columns[name] ?? columns.index;
  const key = (value) => (Array.isArray(value) ? value.length : value);
  const withValue = [];
  const without = [];
  for (let place = 0; place < total; place++) if (passes(place)) (column[place] == null ? without : withValue).push(place);
  const keys = column.map(key);
  const down = sort.startsWith("-") ? -1 : 1;
  withValue.sort((a, b) => (keys[a] < keys[b] ? -down : keys[a] > keys[b] ? down : a - b));
  return withValue.concat(without);
};
