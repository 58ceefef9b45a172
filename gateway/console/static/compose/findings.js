// The findings of a plan, at the tasks that they concern.
import { h } from "../dom.js";
import { clearProblems, markField } from "../field_errors.js";
import { translate } from "../language.js";
import { checkBadge, toneOf } from "../widgets.js";

const CONCERNS = ["problem", "warning", "waits"]; // worst first
const INDEX_IN_FLOW = /^dag\.components\[(\d+)\]/;

/** The checks of a plan that passed with a concern, each once: `{standing, about, cause, remedy}`. */
export function findingsOfPlan(plan) {
  const checks = plan.nodes.flatMap((node) => node.checks);
  const concerns = checks.filter(({ standing }) => CONCERNS.includes(standing));
  const identified = concerns.map((check) => [`${check.about} ${check.cause}`, check]);
  return [...new Map(identified).values()];
}

/** The problems of a refused request as findings. */
export const findingsOfError = (error) =>
  (error.problems ?? []).map(({ path, rule }) => ({
    standing: "problem",
    about: path,
    cause: rule,
    remedy: "",
  }));

/** The findings about each task, by its name, the worst first. */
export function findingsByTask(job, findings) {
  const byTask = new Map();
  const ordered = CONCERNS.flatMap((standing) =>
    findings.filter((finding) => finding.standing === standing),
  );
  for (const finding of ordered) {
    const task = taskOf(job, finding.about);
    if (!task) continue;
    if (!byTask.has(task)) byTask.set(task, []);
    byTask.get(task).push(finding);
  }
  return byTask;
}

/** The task that a path in the job names, by its name or by its place in the flow. */
function taskOf(job, path) {
  const names = job.dag.components.map(({ name }) => name);
  const index = INDEX_IN_FLOW.exec(path)?.[1];
  if (index !== undefined) return names[Number(index)];
  const steps = path.split(/[^\w-]+/);
  return steps.find((step) => names.includes(step));
}

/** The name of the parameter at the end of a path, or "" if the path names none. */
const parameterOf = (path) => (path.includes("task_params") ? (path.split(".").at(-1) ?? "") : "");

/**
 * Shows findings at the fields of an element that they are about: the field with the longest beginning of the
 * finding's path in `data-path`. Returns the findings without a field.
 */
export function placeFindings(element, findings) {
  clearProblems(element);
  const fields = [...element.querySelectorAll("[data-path]")];
  const located = findings.map((finding) => ({ finding, field: fieldOf(fields, finding.about) }));
  const placed = located.filter(({ field }) => field);
  for (const { finding, field } of placed) {
    markField(field, findingText(finding), { tone: toneOf(finding.standing) });
  }
  return located.filter(({ field }) => !field).map(({ finding }) => finding);
}

function fieldOf(fields, path) {
  const matching = fields.filter(({ dataset }) => isWithin(path, dataset.path));
  const longestFirst = matching.toSorted(
    (one, other) => other.dataset.path.length - one.dataset.path.length,
  );
  return longestFirst[0];
}

/** True if a path is another one, or leads on from that. */
const isWithin = (path, beginning) =>
  path.startsWith(beginning) && /^([.[]|$)/.test(path.slice(beginning.length));

function findingText({ cause, remedy }) {
  return remedy ? `${cause} → ${remedy}` : cause;
}

/** The findings of a task as elements. */
export function findingList(findings) {
  if (findings.length === 0) return null;
  const lines = findings.map((finding) => {
    const name = parameterOf(finding.about);
    return h(
      "li",
      {},
      checkBadge(finding.standing),
      " ",
      name && h("code", {}, name),
      name && " ",
      finding.cause,
      finding.remedy && h("small", {}, ` ${translate("next step")}: ${finding.remedy}`),
    );
  });
  return h("ul", { class: "findings" }, lines);
}
