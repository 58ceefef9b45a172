// The inputs and outputs of tasks, and the connections between them.
import { downstreamTasks, kindOf, objectAt, upstreamTask } from "./draft.js";

// Parameters by which a task writes only the ids of its table, as in the drafts of the command line.
const IDS_ONLY = ["only_output_key"];

/**
 * The inputs of a task as `{index, name, kind, key}`; `key`: "task.output", or null without a connection.
 * Without a description, or for inputs that it lacks, these are the connections of the job (`index` null).
 */
export function inputPorts(task, description) {
  const slots = description?.inputData ?? [];
  const { connected, unmatched } = matchInputs(task.input ?? [], slots);
  const described = slots.map(({ name, category }, index) => ({
    index,
    name,
    kind: kindOf(category),
    key: connected[index]?.key ?? null,
  }));
  const others = unmatched.map(({ type, key }) => ({
    index: null,
    name: type,
    kind: kindOf(type),
    key,
  }));
  return [...described, ...others];
}

/** The outputs of a task as `{name, kind, key}`. */
export const outputPorts = (task) =>
  (task.output ?? []).map(({ type, key }) => ({
    name: key,
    kind: kindOf(type),
    key: `${task.name}.${key}`,
  }));

/** Assigns a task's inputs to the component's, by their kind and in the order of the description. */
function matchInputs(inputs, slots) {
  const unmatched = [...inputs];
  const connected = slots.map((slot) => {
    const kind = kindOf(slot.category);
    const index = unmatched.findIndex((input) => kindOf(input.type) === kind);
    return index < 0 ? null : unmatched.splice(index, 1)[0];
  });
  return { connected, unmatched };
}

/** True if an input of a task can read an output: both are of one kind, and no circle arises. */
export const canConnect = (job, task, input, output) =>
  input.kind === output.kind && !downstreamTasks(job, task).has(upstreamTask(output));

/** Connects the input of a component with an output by its key; null: with none. */
export function connect(task, description, index, key) {
  const slots = description.inputData;
  const { connected, unmatched } = matchInputs(task.input ?? [], slots);
  connected[index] = key ? { type: slots[index].category, key } : null;
  task.input = [...connected.filter(Boolean), ...unmatched];
}

/** Removes what an input reads, also one that the description lacks. */
export function disconnect(task, key) {
  const index = task.input.findIndex((input) => input.key === key);
  task.input.splice(index, 1);
}

/** Connects a task with the first output of another task that one of its inputs can read. */
export function connectTasks(job, source, target, description) {
  const inputs = inputPorts(target, description).filter(({ index }) => index !== null);
  for (const output of outputPorts(source)) {
    const input = inputs.find((candidate) => canConnect(job, target, candidate, output));
    if (!input) continue;
    connect(target, description, input.index, output.key);
    return;
  }
}

/**
 * Has a task write all columns of its table, for a task that reads it. Values that the job sets stay.
 * `description`: that of the task which writes.
 */
export function writeAllColumns(job, task, description) {
  for (const { name, defaultValue } of description?.inputParam ?? []) {
    if (!IDS_ONLY.includes(name) || String(defaultValue).toLowerCase() === "false") continue;
    objectAt(job.config, "task_params", "common", task.name)[name] ??= false;
  }
}
