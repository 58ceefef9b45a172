// The reports of a job's runs here: values, charts and tables, which grow while a training runs.
import { get } from "../api.js";
import { barTable, CurveChart, hasChart, isCurve } from "../chart.js";
import { curveViews, titleOf } from "../curve_views.js";
import { h, setChildren } from "../dom.js";
import { displayValue } from "../format.js";
import { translate } from "../language.js";
import { box, dataFacts, dataTable } from "../widgets.js";

const MAX_TABLE_ROWS = 200;

/** The cards of all reports of a job. */
export class ReportCards {
  element = h("div");
  #path;
  #signal;
  #shown = ""; // reports as JSON
  #curves = new Map(); // charts by the report's address, the view's kind and the table's name

  constructor(path, signal) {
    this.#path = path;
    this.#signal = signal;
  }

  /** Loads the reports, and shows them if they changed. Folded tables stay as the user left them. */
  async load() {
    const reports = await loadReports(this.#path);
    const content = JSON.stringify(reports);
    if (content === this.#shown) return;
    const cards = [];
    for (const report of reports) cards.push(await this.#card(report));
    const openTables = [...this.element.querySelectorAll("details")].map(({ open }) => open);
    setChildren(this.element, h("div", { class: "grid reports" }, cards));
    this.element.querySelectorAll("details").forEach((details, index) => {
      details.open = openTables[index] ?? false;
    });
    this.#shown = content;
  }

  async #card(report) {
    const values = Object.entries(report.values);
    const charts = await this.#charts(report);
    return h(
      "section",
      {},
      h("h2", {}, `${report.output} · ${report.task} ${report.party}`),
      report.problem && box("wait", report.problem),
      values.length > 0 && dataFacts(values.map(([name, value]) => [name, displayValue(value)])),
      charts,
      report.series.map(foldedTable),
    );
  }

  /** The charts of a report: its curves, and bars for the other tables with numbers. */
  async #charts(report) {
    const charts = [];
    for (const view of curveViews(report.series)) charts.push(await this.#curve(report, view));
    const others = report.series.filter((table) => hasChart(table) && !isCurve(table));
    return [...charts, ...others.map(barTable)];
  }

  /** A curve. It is kept and gets the new points, so that the pointer stays on its point. */
  async #curve(report, view) {
    const key = `${report.url} ${view.kind} ${view.name}`;
    const label = [report.output, view.name].filter(Boolean).join(" ");
    if (!this.#curves.has(key)) this.#curves.set(key, new CurveChart(label, this.#signal));
    const chart = this.#curves.get(key);
    await chart.show({ ...view, title: titleOf(view) });
    return chart.element;
  }
}

/** The reports that are written, each with its present content or the problem of reading it. */
export async function loadReports(path) {
  const { reports } = await get(`${path}/reports`).catch(() => ({ reports: [] }));
  const written = reports.filter((report) => report.there);
  return Promise.all(written.map(loadReport));
}

async function loadReport(report) {
  try {
    return { ...report, ...(await get(report.url)) };
  } catch (error) {
    return { ...report, problem: error.message, values: {}, series: [] };
  }
}

function foldedTable({ name, columns, points }) {
  const title = `${name || translate("table")} (${points.length})`;
  const rows = dataTable(columns, points.slice(0, MAX_TABLE_ROWS));
  return h("details", {}, h("summary", {}, title), rows);
}
