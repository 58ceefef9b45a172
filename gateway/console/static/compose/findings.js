// The findings of a plan, at the tasks that they concern.
import { h } from "../dom.js";
import { translate } from "../language.js";
import { checkBadge } from "../widgets.js";

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
