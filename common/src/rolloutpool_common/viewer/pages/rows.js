// Filter and order of a batch's table, over columns. The same conditions as `where` of the API; any other word is
// searched in names and messages.

const CONDITION = /^([a-z_]+(?:\.[A-Za-z0-9_.-]+)?)(>=|<=|!=|=|>|<|~)(.*)$/s;
const SEARCHED = ["rollout_id", "uid", "group", "message", "category", "worker"];
/** @type {{ [operator: string]: (a: number, b: number) => boolean }} */
const ORDER = { ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b };

/**
 * A column by a name that is known only now; undefined where there is none.
 * @param {object} columns
 * @param {string} name
 * @returns {Cell[] | undefined}
 */
export const columnOf = (columns, name) => (Object.hasOwn(columns, name) ? /** @type {{ [name: string]: Cell[] }} */ (columns)[name] : undefined);

const ANNOTATION = "annotations.";

/**
 * Names of the figures that some rollout has, in columns that `withScores` returned: the reward first, then annotations.
 * @param {Columns} columns
 * @returns {string[]}
 */
export const scoresOf = (columns) => {
  const said = Object.keys(columns).filter((name) => name.startsWith(ANNOTATION)).map((name) => name.slice(ANNOTATION.length));
  return columns.reward?.some((value) => value != null) ? ["reward", ...said.filter((name) => name !== "reward")] : said;
};

/**
 * The field of a figure in the columns that `withScores` returns.
 * @param {Columns} columns
 * @param {string} name
 */
export const scoreField = (columns, name) => (name === "reward" && columns.reward ? "reward" : `${ANNOTATION}${name}`);

/**
 * Columns whose reward is what was annotated, where something was, and else the rollout's own.
 * @param {Columns} columns
 * @returns {Columns}
 */
export const withScores = (columns) => {
  const said = columnOf(columns, `${ANNOTATION}reward`);
  if (!columns.reward || !said) return columns;
  return { ...columns, reward: columns.reward.map((value, place) => /** @type {number | null} */ (said[place] ?? value)) };
};

/** @param {Cell} value */
const asText = (value) => (value == null ? "" : Array.isArray(value) ? value.join("+") : String(value));

/**
 * Makes a test of a place in the columns from a text; throws an Error that says what is wrong with it.
 * @param {string} text
 * @param {object} columns
 * @returns {(place: number) => boolean}
 */
export const parseFilter = (text, columns) => {
  const tests = text.split(/\s+/).filter(Boolean).map((word) => parseWord(word, columns));
  return (place) => tests.every((test) => test(place));
};

/**
 * @param {string} word
 * @param {object} columns
 * @returns {(place: number) => boolean}
 */
const parseWord = (word, columns) => {
  const [, field, operator, value] = CONDITION.exec(word) ?? [];
  if (!field) {
    const sought = word.toLowerCase();
    const texts = SEARCHED.flatMap((name) => [columnOf(columns, name) ?? []]);
    return (place) => texts.some((column) => column[place] != null && String(column[place]).toLowerCase().includes(sought));
  }
  const column = columnOf(columns, field);
  if (!column) throw new Error(`${field} is no field; there are ${Object.keys(columns).join(", ")}`);
  if (ORDER[operator]) {
    const limit = Number(value);
    if (value === "" || Number.isNaN(limit)) throw new Error(`${operator} compares numbers`);
    return (place) => {
      const held = column[place];
      return typeof held === "number" && ORDER[operator](held, limit);
    };
  }
  if (operator === "~")
    return (place) => {
      const held = column[place];
      return Array.isArray(held) ? held.some((entry) => entry === value) : typeof held === "string" && held.includes(value);
    };
  const values = new Set(value.split(","));
  return (place) => values.has(asText(column[place])) === (operator === "=");
};

/** @type {WeakMap<Cell[], { up?: number[], down?: number[] }>} */
const orders = new WeakMap(); // By column. Columns never change, so each is put in order once, and then only filtered.

/**
 * The places of a column in the order of its values; places without a value come last.
 * @param {Cell[]} column
 * @param {"up" | "down"} direction
 */
const orderOf = (column, direction) => {
  const known = orders.get(column) ?? {};
  const found = known[direction];
  if (found) return found;
  const keys = column.map((value) => (Array.isArray(value) ? value.length : (value ?? "")));
  /** @type {number[]} */
  const withValue = [];
  /** @type {number[]} */
  const without = [];
  column.forEach((value, place) => (value == null ? without : withValue).push(place));
  const down = direction === "down" ? -1 : 1;
  withValue.sort((a, b) => (keys[a] < keys[b] ? -down : keys[a] > keys[b] ? down : a - b));
  const order = withValue.concat(without);
  orders.set(column, { ...known, [direction]: order });
  return order;
};

/**
 * Puts the places that pass in order: `-` in front of the field is the largest first; null comes last.
 * @param {object} columns
 * @param {string} filter
 * @param {string} sort
 */
export const choose = (columns, filter, sort) => {
  const column = columnOf(columns, sort.replace(/^-/, "")) ?? columnOf(columns, "index") ?? [];
  return orderOf(column, sort.startsWith("-") ? "down" : "up").filter(parseFilter(filter, columns));
};
