// The curves that people of this field know, from the tables of a report: ROC, precision–recall, lift, KS, loss.
import { hasChart, isCurve } from "./chart.js";
import { displayValue } from "./format.js";
import { translate } from "./language.js";

const AUC_DIGITS = 4; // after the point: reports leave points out
const UNIT = [0, 1]; // the range of a rate
const FALSE_RATE = ["fpr", "false_positive_rate"];
const TRUE_RATE = ["tpr", "true_positive_rate"];
const RECALL = ["recall", "recalls", "tpr", "true_positive_rate"];
const PRECISION = ["precision", "precisions", "ppv"];
const POPULATION = ["population", "depth", "percentile", "proportion", "quantile"];
const LIST_COLUMNS = ["index", "value"]; // of a table that was a plain list of numbers

// The views over another column than the first, by the names of their two columns.
const DERIVED = [
  {
    kind: "roc",
    x: FALSE_RATE,
    y: TRUE_RATE,
    ranges: { x: UNIT, y: UNIT },
    ends: [
      [0, 0],
      [1, 1],
    ],
    baseline: chance,
  },
  { kind: "precision recall", x: RECALL, y: PRECISION, ranges: { x: UNIT, y: UNIT } },
  { kind: "lift", x: POPULATION, y: ["lift", "lifts"] },
];
// The views over the first column, by the name of another one.
const OVER_FIRST_COLUMN = [
  { kind: "ks", column: /^ks$/ },
  { kind: "lift", column: /^lifts?$/ },
  { kind: "loss", column: /loss/ },
];

/**
 * The curves in a report's tables, as tables for `CurveChart` with `kind` ("" for others) and `figure`, such as
 * the area below a ROC curve; `ranges` and `baseline` where the kind has them.
 */
export function curveViews(series) {
  const views = listGroups(series).map((group) => ({ group, derived: derivedViews(group) }));
  const groups = views.filter(({ derived }) => derived.length > 0);
  const grouped = new Set(groups.flatMap(({ group }) => group.lists));
  const others = series.filter((table) => !grouped.has(table));
  return [
    ...others.flatMap((table) => [...ownView(table), ...derivedViews(table)]),
    ...groups.flatMap(({ derived }) => derived),
  ];
}

/** The view of a table over its first column; none if a derived view has that axis. */
function ownView(table) {
  if (!hasChart(table) || !isCurve(table) || DERIVED.some((view) => isOver(table, view))) return [];
  const names = table.columns.slice(1).map(plainName);
  const known = OVER_FIRST_COLUMN.find(({ column }) => names.some((name) => column.test(name)));
  return [withFigure({ ...table, kind: known?.kind ?? "" })];
}

/** True if a view of rates has the table's first column as its axis. */
const isOver = (table, view) => view.ranges && pairOf(table, view)?.x === 0;

function derivedViews(table) {
  const pairs = DERIVED.map((view) => ({ ...view, pair: pairOf(table, view) }));
  const derived = pairs.filter(({ pair, ranges }) => pair && (ranges || pair.x > 0));
  return derived.map((view) => derivedView(table, view));
}

/** The table of a view: the two columns, sorted by the first. */
function derivedView(table, { kind, pair, ranges, baseline, ends = [] }) {
  const pairs = table.points.map((point) => [point[pair.x], point[pair.y]]);
  const numbers = [...ends, ...pairs].filter((point) => point.every(Number.isFinite));
  const points = numbers.sort(([x, y], [otherX, otherY]) => x - otherX || y - otherY);
  const columns = [table.columns[pair.x], table.columns[pair.y]];
  return withFigure({ name: table.name, columns, points, kind, ranges, baseline });
}

/** The places of a view's two columns in a table; null if it lacks one. */
function pairOf({ columns, points }, view) {
  const names = columns.map(plainName);
  const x = names.findIndex((name) => view.x.includes(name));
  const y = names.findIndex((name, index) => view.y.includes(name) && index !== x);
  return x >= 0 && y >= 0 && points.length > 1 ? { x, y } : null;
}

const plainName = (name) =>
  String(name)
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "_");

/** Tables of the plain lists of numbers below the same path, such as `roc.fpr` and `roc.tpr`. */
function listGroups(series) {
  const byParent = new Map();
  for (const table of series.filter(isList)) {
    const parent = table.name.split(".").slice(0, -1).join(".");
    byParent.set(parent, [...(byParent.get(parent) ?? []), table]);
  }
  return [...byParent].map(([name, lists]) => ({
    lists,
    name,
    columns: lists.map((list) => list.name.split(".").at(-1)),
    points: lists[0].points.map((_, row) => lists.map(({ points }) => points[row]?.[1])),
  }));
}

const isList = ({ columns }) => columns.join() === LIST_COLUMNS.join();

// ---------------------------------------------------------------- titles, figures and baselines

/** The title of a chart: what it is, its name in the report, and its figure. */
export function titleOf({ kind, name, figure }) {
  const kindName = kind && translate(`view ${kind}`);
  return [kindName, name, figure].filter(Boolean).join(" · ");
}

function withFigure(view) {
  if (view.kind === "roc")
    return { ...view, figure: `AUC ${area(view.points).toFixed(AUC_DIGITS)}` };
  if (view.kind === "ks") return { ...view, figure: largestDistance(view) };
  return { ...view, figure: "" };
}

/** The area below points that are sorted by x. */
function area(points) {
  return points.slice(1).reduce((sum, [x, y], index) => {
    const [lastX, lastY] = points[index];
    return sum + ((x - lastX) * (y + lastY)) / 2;
  }, 0);
}

/** The largest KS, and where it is. */
function largestDistance({ columns, points }) {
  const place = columns.findIndex((name) => plainName(name) === "ks");
  const best = points.reduce((one, other) => (other[place] > one[place] ? other : one));
  return `KS ${displayValue(best[place])} (${columns[0]} ${displayValue(best[0])})`;
}

/** The points of a classifier that guesses. */
function chance() {
  return { name: translate("by chance"), points: [UNIT, UNIT].map((_, end) => [end, end]) };
}

// ---------------------------------------------------------------- two jobs

/**
 * One table with the curves of two jobs over the positions of either; `marks`: the names of the jobs. The second
 * job's curves are dashed in `styles`.
 */
export function mergedView(first, second, marks) {
  const shared = first.columns.slice(1).filter((column) => second.columns.includes(column));
  const rows = new Map();
  [first, second].forEach((view, job) => {
    for (const [key, point] of keyedPoints(view)) {
      const values = shared.map((column) => point[view.columns.indexOf(column)]);
      const row = rows.get(key) ?? emptyRow(point[0], shared.length * marks.length);
      values.forEach((value, index) => (row[1 + index * marks.length + job] = value));
      rows.set(key, row);
    }
  });
  return {
    ...first,
    columns: [
      first.columns[0],
      ...shared.flatMap((column) => marks.map((mark) => `${column} ${mark}`)),
    ],
    points: [...rows.values()].sort(([one], [other]) => one - other),
    styles: shared.flatMap((_, column) => marks.map((_, job) => jobStyle(column, job, shared))),
  };
}

/** The style of a job's curve: colours tell columns apart, or the jobs if there is only one column. */
const jobStyle = (column, job, { length }) => ({
  colour: length === 1 ? job : column,
  dashed: job > 0,
});

/** The points of a view, each with its position and how often that occurred before. */
function keyedPoints({ points }) {
  const counts = new Map();
  return points.map((point) => {
    const count = counts.get(point[0]) ?? 0;
    counts.set(point[0], count + 1);
    return [`${point[0]} ${count}`, point];
  });
}

const emptyRow = (position, count) => [position, ...Array(count).fill(null)];
