// The body of a job while it is composed, and its changes.

export const ROLES = ["guest", "host", "arbiter"];

/** A job without tasks, whose only party is this node. */
export const newJob = (node) => ({
  flow_id: "",
  dag: { version: "2.0", components: [] },
  config: {
    version: "2.0.0",
    initiator: { role: "guest", node_id: node },
    role: { guest: [node] },
    job_params: { common: { sync_type: "poll" } },
    task_params: { common: {} },
  },
});

/** The object below these keys; missing objects are created. */
export function objectAt(object, ...keys) {
  let current = object;
  for (const key of keys) {
    current[key] ??= {};
    current = current[key];
  }
  return current;
}

// ---------------------------------------------------------------- parties

/** The parties of a job as `{role, node, index}`. */
export function partiesOf(job) {
  return Object.entries(job.config.role).flatMap(([role, nodes]) =>
    nodes.map((node, index) => ({ role, node, index })),
  );
}

/** Removes a party, and moves the parameters of the later parties of its role up. */
export function removeParty(job, { role, index }) {
  const roles = job.config.role;
  roles[role].splice(index, 1);
  if (roles[role].length === 0) delete roles[role];
  for (const parameters of [job.config.job_params, job.config.task_params]) {
    if (parameters?.[role]) parameters[role] = withoutIndex(parameters[role], index);
  }
}

function withoutIndex(parametersByIndex, removed) {
  const remaining = {};
  for (const [text, parameters] of Object.entries(parametersByIndex)) {
    const index = Number(text);
    if (index < removed) remaining[index] = parameters;
    if (index > removed) remaining[index - 1] = parameters;
  }
  return remaining;
}

// ---------------------------------------------------------------- tasks

/** Kind of an input or output by its type, as connections have to be of one kind. */
export function kindOf(type) {
  if (/data|set/.test(type)) return "dataset";
  return /model/.test(type) ? "model" : "report";
}

/** The task that writes an input, whose key is "task.output". */
export const upstreamTask = (input) => input.key.split(".")[0];

/**
 * Adds a task of a component. Its dataset is the output of the last task that writes one.
 * Returns the name of the task.
 */
export function addTask(job, component, description) {
  const name = unusedName(job, component.name);
  const dataset = (description.inputData ?? []).find(({ category }) => isDataset(category));
  const lastOutput = lastDatasetOutput(job);
  job.dag.components.push({
    name,
    componentName: component.name,
    provider: component.provider,
    version: component.version,
    input: dataset && lastOutput ? [{ type: dataset.category, key: lastOutput }] : [],
    output: (description.outputData ?? []).map(({ category, name: key }) => ({
      type: category,
      key,
    })),
  });
  return name;
}

const isDataset = (type) => kindOf(type) === "dataset";

/** The component's name in snake case with the first free number. */
function unusedName(job, componentName) {
  const stem = componentName.replace(/([a-z0-9])([A-Z])/g, "$1_$2").toLowerCase();
  const names = job.dag.components.map((task) => task.name);
  let number = 1;
  while (names.includes(`${stem}_${number}`)) number += 1;
  return `${stem}_${number}`;
}

function lastDatasetOutput(job) {
  const outputs = job.dag.components.flatMap((task) => {
    const dataset = (task.output ?? []).find(({ type }) => isDataset(type));
    return dataset ? [`${task.name}.${dataset.key}`] : [];
  });
  return outputs.at(-1);
}

/** Renames a task, also in the inputs of other tasks and in the parameters. */
export function renameTask(job, task, name) {
  for (const other of job.dag.components) {
    for (const input of other.input ?? []) {
      if (upstreamTask(input) === task.name) input.key = name + input.key.slice(task.name.length);
    }
  }
  for (const parameters of parametersByTask(job)) {
    if (!(task.name in parameters)) continue;
    parameters[name] = parameters[task.name];
    delete parameters[task.name];
  }
  task.name = name;
}

/** Removes a task, its parameters, and the inputs that read from it. */
export function removeTask(job, task) {
  job.dag.components.splice(job.dag.components.indexOf(task), 1);
  for (const other of job.dag.components) {
    other.input &&= other.input.filter((input) => upstreamTask(input) !== task.name);
  }
  for (const parameters of parametersByTask(job)) delete parameters[task.name];
}

/** The objects that hold parameters by task: the common ones and those of each party. */
function parametersByTask(job) {
  const { common, ...roles } = objectAt(job.config, "task_params");
  const ofParties = Object.values(roles).flatMap((byIndex) => Object.values(byIndex));
  return [common, ...ofParties].filter(Boolean);
}

/** The names of a task and of those that read from it, directly or not: it cannot read from these. */
export function downstreamTasks(job, task) {
  const names = new Set([task.name]);
  let previousSize = 0;
  while (names.size > previousSize) {
    previousSize = names.size;
    for (const other of job.dag.components) {
      const readsFromSet = (other.input ?? []).some((input) => names.has(upstreamTask(input)));
      if (readsFromSet) names.add(other.name);
    }
  }
  return names;
}
