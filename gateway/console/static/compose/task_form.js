// The form of one task: its name, inputs, datasets and parameters.
import { button } from "../dialogs.js";
import { h } from "../dom.js";
import { translate } from "../language.js";
import { box, hint, option, row } from "../widgets.js";
import {
  downstreamTasks,
  kindOf,
  objectAt,
  partiesOf,
  removeTask,
  renameTask,
  ROLES,
} from "./draft.js";
import { parameterFields } from "./parameters.js";

export async function taskForm(job, task, catalog, editor) {
  const { provider, version, componentName } = task;
  const description = await catalog.describe({ provider, version, name: componentName });
  const title = h(
    "h2",
    {},
    componentName,
    " ",
    h("span", { class: "faint" }, `${provider} ${version}`),
  );
  const fields = description
    ? [
        inputChoices(job, task, description, editor),
        datasetInputs(job, task, description, catalog, editor),
        parameterFields(job, task, description.schema, rolesOf(description), editor),
      ]
    : box("wait", translate("component unknown"));
  return h(
    "section",
    { "aria-label": task.name },
    row(title, removeButton(job, task, editor)),
    description?.description && hint(description.description),
    nameInput(job, task, editor),
    fields,
  );
}

const rolesOf = (description) => description.roleList ?? ROLES;

function removeButton(job, task, editor) {
  const remove = async () => {
    removeTask(job, task);
    editor.redraw("");
  };
  return button("remove the task", remove, "danger");
}

function nameInput(job, task, editor) {
  const rename = ({ target }) => {
    const isTaken = job.dag.components.some(
      (other) => other !== task && other.name === target.value,
    );
    target.setCustomValidity(isTaken ? translate("name taken") : "");
    if (!target.reportValidity()) return;
    renameTask(job, task, target.value);
    editor.redraw(task.name);
  };
  const input = h("input", {
    name: "task",
    value: task.name,
    required: true,
    pattern: "[A-Za-z0-9_\\-]+",
    maxlength: 64,
    onchange: rename,
  });
  return h("label", {}, translate("name"), input);
}

// ---------------------------------------------------------------- inputs

/** A choice for each input of the component: an output of a task that does not depend on this one. */
function inputChoices(job, task, description, editor) {
  const slots = description.inputData ?? [];
  if (slots.length === 0) return null;
  const { connected, unmatched } = matchInputs(task.input ?? [], slots);
  const connect = (index, key) => {
    connected[index] = key ? { type: slots[index].category, key } : null;
    task.input = [...connected.filter(Boolean), ...unmatched];
    editor.redraw();
  };
  const choices = slots.map((slot, index) => {
    const current = connected[index]?.key;
    const keys = [...outputsFor(job, task, slot), current].filter(Boolean);
    const change = (event) => connect(index, event.target.value);
    return h(
      "label",
      { title: slot.description },
      `${translate("input")} ${slot.name}`,
      h(
        "select",
        { onchange: change },
        option("", "", translate("not connected")),
        [...new Set(keys)].map((key) => option(key, current)),
      ),
    );
  });
  return row(choices);
}

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

/** The keys of outputs that an input can read. */
function outputsFor(job, task, slot) {
  const kind = kindOf(slot.category);
  const downstream = downstreamTasks(job, task);
  const keys = [];
  for (const other of job.dag.components) {
    if (downstream.has(other.name)) continue;
    for (const output of other.output ?? []) {
      if (kindOf(output.type) === kind) keys.push(`${other.name}.${output.key}`);
    }
  }
  return keys;
}

// ---------------------------------------------------------------- datasets

/** An input for each party's dataset, if the task reads datasets and no outputs of other tasks. */
function datasetInputs(job, task, description, catalog, editor) {
  const isDataset = (type) => kindOf(type) === "dataset";
  const readsDatasets = (description.inputData ?? []).some((slot) => isDataset(slot.category));
  const readsOutputs = (task.input ?? []).some((input) => isDataset(input.type));
  if (!readsDatasets || readsOutputs) return null;
  const roles = rolesOf(description);
  const parties = partiesOf(job);
  const nodes = new Set(parties.map(({ node }) => node));
  return row(
    [...nodes].map((node) => datasetSuggestions(node, catalog)),
    parties
      .filter(({ role }) => roles.includes(role))
      .map((party) => datasetInput(job, task, party, editor)),
  );
}

const suggestionsId = (node) => `datasets-${node}`;

/** The datasets of a node as suggestions of a browser's list, filled when they are loaded. */
function datasetSuggestions(node, catalog) {
  const list = h("datalist", { id: suggestionsId(node) });
  catalog.datasetsOf(node).then((ids) => {
    list.replaceChildren(...ids.map((id) => h("option", { value: id })));
  });
  return list;
}

function datasetInput(job, task, { role, index, node }, editor) {
  const current = job.config.task_params?.[role]?.[index]?.[task.name]?.dataset_id;
  const setDataset = (event) => {
    const id = event.target.value.trim();
    const parameters = objectAt(job.config, "task_params", role, String(index), task.name);
    if (id) parameters.dataset_id = id;
    else delete parameters.dataset_id;
    editor.changed();
  };
  const attributes = { list: suggestionsId(node), value: current ?? "", onchange: setDataset };
  return h("label", {}, `${translate("dataset")} ${role}.${index}`, h("input", attributes));
}
