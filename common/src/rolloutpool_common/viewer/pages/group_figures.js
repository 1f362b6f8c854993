// Figures of a batch's groups, from the columns of its table, by the same rules as `GET …/group-statistics`. Pure.

const ENDED = new Set(["completed", "failed", "cancelled", "expired"]);
const names = new Intl.Collator("en", { numeric: true });

const meanOf = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

const deviationOf = (values, mean) => {
  if (!values.length) return null;
  // Equal values have none, whatever rounding makes of their mean.
  if (values.every((value) => value === values[0])) return 0;
  return Math.sqrt(meanOf(values.map((value) => (value - mean) ** 2)));
};

/** Places of the rollouts of each group, by its name; rollouts without a group are in none. */
export const membersOf = (columns) => {
  const members = new Map();
  (columns.group ?? []).forEach((group, place) => {
    if (group === null || group === undefined) return;
    if (!members.has(group)) members.set(group, []);
    members.get(group).push(place);
  });
  return new Map([...members].sort(([one], [two]) => names.compare(one, two)));
};

/** Columns with a place per group; `values` are those of the annotation `of` in it. */
export const groupFigures = (columns, of) => {
  const annotation = columns[`annotations.${of}`] ?? [];
  const made = { index: [], group: [], size: [], ended: [], not_completed: [], annotated: [], mean: [], deviation: [], min: [], max: [], zero_spread: [], sampled_tokens: [], values: [] };
  for (const [group, places] of membersOf(columns)) {
    const ended = places.filter((place) => ENDED.has(columns.status[place]));
    const completed = ended.filter((place) => columns.status[place] === "completed").length;
    const values = places.map((place) => annotation[place]).filter((value) => typeof value === "number");
    const mean = meanOf(values);
    const figures = {
      index: made.index.length,
      group,
      size: places.length,
      ended: ended.length,
      not_completed: ended.length - completed,
      annotated: values.length,
      mean,
      deviation: deviationOf(values, mean),
      min: values.length ? Math.min(...values) : null,
      max: values.length ? Math.max(...values) : null,
      zero_spread: values.length > 1 && values.every((value) => value === values[0]) ? "yes" : "no",
      sampled_tokens: meanOf(ended.map((place) => columns.sampled_tokens?.[place]).filter((value) => typeof value === "number")),
      values,
    };
    for (const name of Object.keys(made)) made[name].push(figures[name]);
  }
  return made;
};
