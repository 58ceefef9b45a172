// Two jobs side by side: the values of their reports, their parameters, and their curves in one picture.
import { get, segment } from "../api.js";
import { CurveChart } from "../chart.js";
import { curveViews, mergedView, titleOf } from "../curve_views.js";
import { append, h } from "../dom.js";
import { displayValue } from "../format.js";
import { translate } from "../language.js";
import { jobLink } from "../links.js";
import { card, code, hint, table } from "../widgets.js";
import { differences } from "./differences.js";
import { loadReports } from "./job_reports.js";

const MARKS = ["A", "B"]; // of the two jobs

export async function fillPage(body, { ids, signal }) {
  const pairs = await Promise.all(ids.slice(0, 2).map(loadJob));
  const headings = pairs.map(({ job }, index) =>
    h("p", {}, `${MARKS[index]}: `, jobLink(job.job_id), ` ${job.flow_id}`),
  );
  append(
    body,
    h("h1", {}, translate("page compare")),
    card("", headings),
    card("metrics", valueTable(pairs.map(({ reports }) => valuesOf(reports)))),
    await curveCard(pairs, signal),
    card("parameters that differ", parameterTable(pairs.map(({ job }) => job))),
  );
}

async function loadJob(id) {
  const path = `/api/v1/jobs/${segment(id)}`;
  const [job, reports] = await Promise.all([get(path), loadReports(path)]);
  return { job, reports };
}

const markHeaders = () => MARKS.map((mark) => h("span", {}, mark));

const nameOf = ({ task, party, output }) => `${task} ${party} ${output}`;

// ---------------------------------------------------------------- values

/** The values of all reports of a job, by task, party, output and name. */
function valuesOf(reports) {
  const entries = reports.flatMap((report) =>
    Object.entries(report.values).map(([name, value]) => [`${nameOf(report)} ${name}`, value]),
  );
  return new Map(entries);
}

function valueTable([first, second]) {
  const names = new Set([...first.keys(), ...second.keys()]);
  const rows = [...names].map((name) => {
    const values = [first.get(name), second.get(name)];
    return [name, ...values, changeOf(...values)];
  });
  const columns = ["name", ...markHeaders(), "change"];
  return table(columns, rows, "no metrics");
}

/** The difference of two numbers; "" for other values. */
function changeOf(before, after) {
  if (!Number.isFinite(before) || !Number.isFinite(after)) return "";
  const sign = after > before ? "+" : "";
  return `${sign}${displayValue(after - before)}`;
}

function parameterTable([first, second]) {
  const rows = differences(parametersOf(first), parametersOf(second)).map((change) => [
    code(change.path),
    code(displayValue(change.before)),
    code(displayValue(change.after)),
  ]);
  const columns = ["where", ...markHeaders()];
  return table(columns, rows, "no difference");
}

/** The parameters of a job by party, task and name, without their origins. */
function parametersOf({ parameters }) {
  const valueOf = (parameter) =>
    parameter !== null && typeof parameter === "object" && "origin" in parameter
      ? parameter.value
      : parameter;
  return mapValues(parameters ?? {}, (tasks) =>
    mapValues(tasks, (values) => mapValues(values, valueOf)),
  );
}

const mapValues = (object, change) =>
  Object.fromEntries(Object.entries(object).map(([key, value]) => [key, change(value)]));

// ---------------------------------------------------------------- curves

async function curveCard(pairs, signal) {
  const [first, second] = pairs.map(({ reports }) => curvesOf(reports));
  const shared = [...first.keys()].filter((name) => second.has(name));
  const charts = [];
  for (const key of shared) {
    const chart = new CurveChart(first.get(key).name, signal);
    await chart.show(merged(first.get(key), second.get(key)));
    charts.push(h("section", {}, chart.element));
  }
  const content = charts.length > 0 ? charts : hint(translate("no shared curves"));
  return card("curves", h("div", { class: "grid reports" }, content));
}

/** Both curves in one table; its title has the figures of both. */
function merged(first, second) {
  const figures = [first, second].map(({ figure }, index) => figure && `${MARKS[index]} ${figure}`);
  const title = [titleOf({ ...first, figure: "" }), ...figures];
  return { ...mergedView(first, second, MARKS), title: title.filter(Boolean).join(" · ") };
}

/** The curves of a job's reports, by their names. */
function curvesOf(reports) {
  const curves = reports.flatMap((report) =>
    curveViews(report.series).map((view) => {
      const name = `${nameOf(report)} ${view.name}`.trim();
      return [`${name} ${view.kind}`, { ...view, name }];
    }),
  );
  return new Map(curves);
}
