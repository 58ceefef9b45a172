// Tables of reports as charts: curves over a sorted first column, otherwise bars.
import { h } from "./dom.js";
import { displayValue } from "./format.js";
import { translate } from "./language.js";
import { dataTable, hint } from "./widgets.js";

const LIBRARY = new URL("vendor/uPlot-1.6.32.min.js", import.meta.url).href;
const HEIGHT = 260; // pixels
const COLOURS = 8; // custom properties --curve-1 to --curve-8
const LINE_WIDTH = 2;
const DASH = [6, 4]; // pixels drawn and left out
const MAX_CURVES = 12;
const MAX_BAR_ROWS = 20;
const LARGEST = 1e30; // the library finds no ticks for larger numbers

const darkScheme = matchMedia("(prefers-color-scheme: dark)");

/** True if a table `{name, columns, points}` has numbers to draw. */
export const hasChart = (table) => valueColumns(table).length > 0;

/** True if the first column is sorted, so that the other columns are curves over it. */
export function isCurve({ columns, points }) {
  if (columns.length < 2 || points.length < 2) return false;
  const positions = points.map((point) => point[0]);
  if (!positions.every(isDrawable)) return false;
  return isAscending(positions) || isAscending(reversed(positions));
}

const isDrawable = (value) => Number.isFinite(value) && Math.abs(value) < LARGEST;

const isAscending = (numbers) =>
  numbers.every((number, index) => index === 0 || numbers[index - 1] <= number);

const reversed = (list) => [...list].reverse();

/** The columns with numbers, as `{name, values}`; the first of several is the axis or the name of a row. */
function valueColumns({ columns, points }) {
  const firstColumn = columns.length > 1 ? 1 : 0;
  const all = columns.map((name, index) => ({
    name,
    values: points.map((point) => (isDrawable(point[index]) ? point[index] : null)),
  }));
  const drawable = all.slice(firstColumn).filter(({ values }) => values.some(isNumber));
  return drawable.slice(0, MAX_CURVES);
}

const isNumber = (value) => value !== null;

// ---------------------------------------------------------------- curves

let library = null; // promise of the loaded script

/** Loads the library for curves, once. Its script defines a global, so it cannot be imported. */
function loadLibrary() {
  library ??= new Promise((resolve, reject) => {
    const loaded = () => resolve(globalThis.uPlot);
    document.head.append(h("script", { src: LIBRARY, onload: loaded, onerror: reject }));
  });
  return library;
}

/** A chart of curves whose points can be replaced, such as the loss while a training runs. */
export class CurveChart {
  #chart = null;
  #chartColumns = ""; // of the drawn chart
  #table = null;
  #caption = h("figcaption", { class: "faint" });
  #plot = h("div", { class: "plot", role: "img" });
  #legend = h("div", { class: "legend" });

  /** `label`: the chart's name for screen readers; `signal` aborts when the user leaves the page. */
  constructor(label, signal) {
    this.label = label;
    this.element = h("figure", { class: "chart" }, this.#caption, this.#plot, this.#legend);
    const observer = new ResizeObserver(() => this.#resize());
    observer.observe(this.#plot);
    darkScheme.addEventListener("change", () => this.#draw(true), { signal });
    signal.addEventListener("abort", () => observer.disconnect());
  }

  /** Shows a table with a sorted first column. */
  async show(table) {
    await loadLibrary();
    this.#table = table;
    const [axis] = table.columns;
    const names = valueColumns(table).map(({ name }) => name);
    const label = { name: this.label, columns: names.join(", "), axis, count: table.points.length };
    this.#caption.textContent = table.title ?? table.name;
    this.#plot.setAttribute("aria-label", translate("chart", label));
    this.#draw();
  }

  #resize() {
    if (!this.#chart) return this.#draw();
    const width = this.#plot.clientWidth;
    if (width > 0) this.#chart.setSize({ width, height: HEIGHT });
  }

  /** Draws the points; the chart is created again if its columns changed, or its colours (`recreate`). */
  #draw(recreate = false) {
    if (!this.#table || this.#plot.clientWidth === 0) return; // drawn once it has a size
    const columns = [...valueColumns(this.#table), ...baselineColumns(this.#table)];
    const columnNames = JSON.stringify([this.#table.columns[0], columns.map(({ name }) => name)]);
    const data = chartData(this.#table, columns);
    if (this.#chart && columnNames === this.#chartColumns && !recreate) {
      this.#chart.setData(data);
    } else {
      this.#chart?.destroy();
      this.#legend.replaceChildren();
      this.#chart = new globalThis.uPlot(this.#options(columns), data, this.#plot);
      this.#chartColumns = columnNames;
    }
    showLastPoint(this.#chart);
  }

  #options(columns) {
    const [axisName] = this.#table.columns;
    return {
      width: this.#plot.clientWidth,
      height: HEIGHT,
      scales: scalesOf(this.#table),
      axes: [axisOptions({ label: axisName }), axisOptions()],
      series: [
        { label: axisName, value: legendValue },
        ...columns.map((column, index) => curveOptions(column, styleOf(this.#table, index))),
      ],
      cursor: { drag: { x: false, y: false } }, // dragging would zoom, with no way back by touch
      legend: { mount: (_, legend) => this.#legend.append(legend) },
      hooks: { setCursor: [showLastPoint] },
    };
  }
}

/** Lists of the library: positions in ascending order, then the values of each column. */
function chartData(table, columns) {
  const positions = table.points.map((point) => point[0]);
  const lists = [positions, ...columns.map(({ values }) => values)];
  const ascending = isAscending(positions) ? lists : lists.map(reversed);
  return withBaseline(ascending, columns, table.baseline?.());
}

/** The column of a table's baseline, which has no values at the positions of the curves. */
function baselineColumns({ baseline, points }) {
  if (!baseline) return [];
  const { name } = baseline();
  return [{ name, values: points.map(() => null), isBaseline: true }];
}

/** The lists with the two ends of the baseline, its first point before all and its last after all. */
function withBaseline(lists, columns, baseline) {
  if (!baseline) return lists;
  const [first, last] = baseline.points;
  const ends = [first, last].map(([position, value]) => [
    position,
    ...columns.map(({ isBaseline }) => (isBaseline ? value : null)),
  ]);
  return lists.map((list, index) => [ends[0][index], ...list, ends[1][index]]);
}

/** The scales of a table's view; without ranges of its own the library finds them. */
function scalesOf({ ranges }) {
  const { x, y } = ranges ?? {};
  return { x: { time: false, ...(x && { range: x }) }, ...(y && { y: { range: y } }) };
}

/** The colour of a curve, and whether it is dashed; a table may say so. */
const styleOf = ({ styles }, index) => styles?.[index] ?? { colour: index, dashed: false };

function axisOptions(options = {}) {
  const colour = cssValue("--faint");
  const line = { stroke: cssValue("--line"), width: 1 };
  return { stroke: colour, grid: line, ticks: line, ...options };
}

function curveOptions({ name: label, isBaseline = false }, { colour, dashed }) {
  const stroke = isBaseline ? "--faint" : `--curve-${(colour % COLOURS) + 1}`;
  return {
    label,
    stroke: cssValue(stroke),
    width: isBaseline ? 1 : LINE_WIDTH,
    ...((dashed || isBaseline) && { dash: DASH }),
    spanGaps: true,
    value: legendValue,
    ...(isBaseline && { points: { show: false } }),
  };
}

const legendValue = (_, value) => displayValue(value);

/** Shows the last values in the legend, unless the pointer is over the chart. */
function showLastPoint(chart) {
  if (chart.cursor.idx == null) chart.setLegend({ idx: lastPoint(chart.data) });
}

/** The place of the last point that a curve has: a baseline may end after it. */
function lastPoint([, ...curves]) {
  const places = curves.map((values) => values.findLastIndex(isNumber));
  const [first = -1] = places;
  return Math.max(first, 0);
}

const cssValue = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// ---------------------------------------------------------------- bars

/** A table whose numbers have bars, by the largest number of the table. */
export function barTable(table) {
  const columns = valueColumns(table);
  const numbers = columns.flatMap(({ values }) => values.filter(isNumber));
  const largest = Math.max(...numbers.map(Math.abs)) || 1;
  const shownPoints = table.points.slice(0, MAX_BAR_ROWS);
  const rows = shownPoints.map((point, row) => [
    point[0],
    ...columns.map(({ values }) => barCell(values[row], largest)),
  ]);
  const headers = [table.columns[0], ...columns.map(({ name }) => name)];
  const hidden = table.points.length + (table.left_out ?? 0) - shownPoints.length;
  const note = hidden > 0 && hint(translate("further rows", { count: hidden }));
  return h("div", { class: "bars" }, dataTable(headers, rows), note);
}

function barCell(value, largest) {
  if (value === null) return "";
  const width = `${(100 * Math.abs(value)) / largest}%`;
  const bar = h("span", { class: value < 0 ? "bad" : "", style: { width } });
  return h("div", { class: "bar-cell" }, h("div", { class: "lane" }, bar), displayValue(value));
}
