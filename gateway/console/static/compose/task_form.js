// The form of one task: its name, inputs, datasets and parameters.
import { button } from "../dialogs.js";
import { h } from "../dom.js";
import { textIn, translate } from "../language.js";
import { box, hint, option, row } from "../widgets.js";
import { kindOf, objectAt, partiesOf, removeTask, renameTask, ROLES } from "./draft.js";
import { parameterFields } from "./parameters.js";
import { canConnect, connect, inputPorts, outputPorts } from "./ports.js";

/** The form; `findings`: the element with what the plan found about the task. */
export function taskForm(job, task, description, findings, catalog, editor) {
  const { provider, version, componentName } = task;
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
    description && hint(textIn(description, "description")),
    findings,
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
  const ports = inputPorts(task, description).filter(({ index }) => index !== null);
  if (ports.length === 0) return null;
  const place = job.dag.components.indexOf(task);
  const choices = ports.map((input) => {
    const keys = [...outputsFor(job, task, input), input.key].filter(Boolean);
    const change = ({ target }) => {
      connect(task, description, input.index, target.value || null);
      editor.connected(task.name);
    };
    return h(
      "label",
      { title: textIn(description.inputData[input.index], "description") },
      `${translate("input")} ${input.name}`,
      h(
        "select",
        { onchange: change, "data-path": `dag.components[${place}].input[${input.index}]` },
        option("", "", translate("not connected")),
        [...new Set(keys)].map((key) => option(key, input.key)),
      ),
    );
  });
  return row(choices);
}

/** The keys of outputs that an input can read. */
const outputsFor = (job, task, input) =>
  job.dag.components
    .flatMap(outputPorts)
    .filter((output) => canConnect(job, task, input, output))
    .map(({ key }) => key);

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
  const attributes = {
    list: suggestionsId(node),
    value: current ?? "",
    onchange: setDataset,
    "data-path": `config.task_params.${role}.${index}.${task.name}.dataset_id`,
  };
  return h("label", {}, `${translate("dataset")} ${role}.${index}`, h("input", attributes));
}
