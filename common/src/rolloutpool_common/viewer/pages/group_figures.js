// Figures of a batch's groups, from the columns of its table, by the same rules as `GET …/group-statistics`. Pure.
import { columnOf, scoreField, withScores } from "./rows.js";

const ENDED = new Set(["completed", "failed", "cancelled", "expired"]);
const names = new Intl.Collator("en", { numeric: true });

/** @param {number[]} values */
const meanOf = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

/**
 * @param {number[]} values
 * @param {number | null} mean
 * @returns {number | null}
 */
const deviationOf = (values, mean) => {
  if (!values.length) return null;
  // Equal values have none, whatever rounding makes of their mean.
  if (values.every((value) => value === values[0])) return 0;
  return Math.sqrt(meanOf(values.map((value) => (value - (mean ?? 0)) ** 2)) ?? 0);
};

/**
 * Places of the rollouts of each group, by its name; rollouts without a group are in none.
 * @param {Columns} columns
 * @returns {Map<string, number[]>}
 */
export const membersOf = (columns) => {
  /** @type {Map<string, number[]>} */
  const members = new Map();
  (columns.group ?? []).forEach((group, place) => {
    if (group === null || group === undefined) return;
    const known = members.get(group);
    if (known) known.push(place);
    else members.set(group, [place]);
  });
  return new Map([...members].sort(([one], [two]) => names.compare(one, two)));
};

/**
 * Columns with a place per group; `values` are those of the figure `of` in it.
 * @param {Columns} columns
 * @param {string | null} of
 * @returns {GroupColumns}
 */
export const groupFigures = (columns, of) => {
  const scored = withScores(columns);
  const score = (of !== null && columnOf(scored, scoreField(scored, of))) || [];
  const groups = [...membersOf(columns)].map(([group, places]) => {
    const ended = places.filter((place) => ENDED.has(columns.status?.[place] ?? ""));
    const completed = ended.filter((place) => columns.status?.[place] === "completed").length;
    const values = places.map((place) => score[place]).filter((value) => typeof value === "number");
    return { group, size: places.length, ended, completed, values, mean: meanOf(values) };
  });
  return {
    index: groups.map((_, place) => place),
    group: groups.map(({ group }) => group),
    size: groups.map(({ size }) => size),
    ended: groups.map(({ ended }) => ended.length),
    not_completed: groups.map(({ ended, completed }) => ended.length - completed),
    annotated: groups.map(({ values }) => values.length),
    mean: groups.map(({ mean }) => mean),
    deviation: groups.map(({ values, mean }) => deviationOf(values, mean)),
    min: groups.map(({ values }) => (values.length ? Math.min(...values) : null)),
    max: groups.map(({ values }) => (values.length ? Math.max(...values) : null)),
    zero_spread: groups.map(({ values }) => (values.length > 1 && values.every((value) => value === values[0]) ? "yes" : "no")),
    sampled_tokens: groups.map(({ ended }) => meanOf(ended.map((place) => columns.sampled_tokens?.[place]).filter((value) => typeof value === "number"))),
    values: groups.map(({ values }) => values),
  };
};
