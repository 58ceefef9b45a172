// The parameters in which two versions of a job differ.
import { displayValue } from "../format.js";
import { objectAt } from "./draft.js";

/**
 * The parameters that differ, as `{keys, task, name, before, after}`; `keys`: those of the entry below
 * `task_params`, as in ["common"] or ["guest", "0"]. An absent value is undefined.
 */
export function parameterChanges(oldJob, newJob) {
  const before = valuesByPath(oldJob);
  const after = valuesByPath(newJob);
  const paths = new Set([...before.keys(), ...after.keys()]);
  const differing = [...paths].filter(
    (path) => JSON.stringify(before.get(path)) !== JSON.stringify(after.get(path)),
  );
  return differing.map((path) => {
    const [keys, task, name] = JSON.parse(path);
    return { keys, task, name, before: before.get(path), after: after.get(path) };
  });
}

/** The values of a job's parameters; the path of each is `[keys, task, name]` as JSON. */
function valuesByPath(job) {
  const values = new Map();
  for (const [keys, byTask] of entriesOf(job.config.task_params ?? {})) {
    for (const [task, parameters] of Object.entries(byTask)) {
      for (const [name, value] of Object.entries(parameters)) {
        values.set(JSON.stringify([keys, task, name]), value);
      }
    }
  }
  return values;
}

/** The entries of `task_params` with their keys. */
function entriesOf({ common, ...roles }) {
  const entries = [[["common"], common ?? {}]];
  for (const [role, byIndex] of Object.entries(roles)) {
    for (const [index, byTask] of Object.entries(byIndex)) entries.push([[role, index], byTask]);
  }
  return entries;
}

/** Changes in the form of `task_params`. */
export function asTaskParams(changes) {
  const taskParams = {};
  for (const { keys, task, name, after } of changes) {
    objectAt(taskParams, ...keys, task)[name] = after;
  }
  return taskParams;
}

/** Gives the removed parameters of a job their old values again. Returns true if there are any. */
export function restoreRemoved(oldJob, newJob) {
  const changes = parameterChanges(oldJob, newJob);
  const removed = changes.filter(({ after }) => after === undefined);
  for (const { keys, task, name, before } of removed) {
    objectAt(newJob.config, "task_params", ...keys, task)[name] = before;
  }
  return removed.length > 0;
}

/** Rows of a table: task, party, name, and the values before and after. */
export const changeRows = (changes) =>
  changes.map(({ keys, task, name, before, after }) => [
    task,
    keys.join("."),
    name,
    displayValue(before),
    displayValue(after),
  ]);
