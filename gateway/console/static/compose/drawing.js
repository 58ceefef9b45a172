// The drawing of a job: its parties, its tasks, and the form of the selected task.
import { button } from "../dialogs.js";
import { h } from "../dom.js";
import { flowPicture } from "../graph.js";
import { translate } from "../language.js";
import { card, hint, option, row, table } from "../widgets.js";
import { addTask, partiesOf, removeParty, ROLES, upstreamTask } from "./draft.js";
import { taskForm } from "./task_form.js";

/**
 * The elements of the drawing. `editor.changed()` is called after a change that the drawing shows already,
 * `editor.redraw(task)` after one for which it has to be drawn again, with the task to select.
 */
export async function drawing(job, selectedTask, catalog, editor) {
  const task = job.dag.components.find(({ name }) => name === selectedTask);
  return [
    card(
      "",
      flowInput(job, editor),
      partyTable(job, catalog, editor),
      partyForm(job, catalog, editor),
    ),
    card("tasks", picture(job, selectedTask, editor), newTaskForm(job, catalog, editor)),
    task ? await taskForm(job, task, catalog, editor) : "",
  ];
}

function flowInput(job, editor) {
  const change = (event) => {
    job.flow_id = event.target.value.trim();
    editor.changed();
  };
  const attributes = { name: "flow", value: job.flow_id ?? "", maxlength: 128, onchange: change };
  return h("label", {}, translate("flow"), h("input", attributes));
}

// ---------------------------------------------------------------- parties

function partyTable(job, catalog, editor) {
  const rows = partiesOf(job).map((party) => partyRow(job, party, catalog, editor));
  return table(["role", "node", "initiator", ""], rows);
}

function partyRow(job, party, catalog, editor) {
  const { role, node, index } = party;
  const { initiator } = job.config;
  const label = `${role}.${index}`;
  const isInitiator = initiator.role === role && initiator.node_id === node;
  const setNode = (event) => {
    job.config.role[role][index] = event.target.value;
    if (isInitiator) initiator.node_id = event.target.value;
    editor.redraw();
  };
  const setInitiator = () => {
    Object.assign(initiator, { role, node_id: node });
    editor.redraw();
  };
  const remove = async () => {
    removeParty(job, party);
    editor.redraw();
  };
  const nodes = [...new Set([...catalog.nodes, node])];
  return [
    label,
    h(
      "select",
      { "aria-label": `${translate("node")} ${label}`, onchange: setNode },
      nodes.map((choice) => option(choice, node)),
    ),
    h("input", {
      type: "radio",
      name: "initiator",
      "aria-label": `${translate("initiator")} ${label}`,
      checked: isInitiator,
      onchange: setInitiator,
    }),
    isInitiator ? "" : button("remove", remove),
  ];
}

function partyForm(job, catalog, editor) {
  const roles = job.config.role;
  const usedNodes = partiesOf(job).map(({ node }) => node);
  const unusedNode = catalog.nodes.find((node) => !usedNodes.includes(node)) ?? catalog.node;
  const choices = [...new Set([...ROLES, ...Object.keys(roles)])];
  const role = h(
    "select",
    { "aria-label": translate("role") },
    choices.map((name) => option(name, "host")),
  );
  const add = async () => {
    roles[role.value] ??= [];
    roles[role.value].push(unusedNode);
    editor.redraw();
  };
  return row(role, button("add a party", add));
}

// ---------------------------------------------------------------- tasks

function picture(job, selectedTask, editor) {
  const tasks = job.dag.components.map((task) => ({
    name: task.name,
    inputs: (task.input ?? []).map((input) => ({ task: upstreamTask(input) })),
    component: { provider: task.provider, name: task.componentName, version: task.version },
  }));
  if (tasks.length === 0) return hint(translate("no tasks yet"));
  return flowPicture(tasks, { select: editor.redraw, selected: selectedTask });
}

function newTaskForm(job, catalog, editor) {
  const { components } = catalog;
  if (components.length === 0) return hint(translate("no providers"));
  const options = components.map(({ name, providerName }, index) =>
    option(String(index), null, `${name} · ${providerName}`),
  );
  const select = h(
    "select",
    { "aria-label": translate("component"), required: true },
    option("", "", translate("choose a component")),
    options,
  );
  const add = async () => {
    if (!select.reportValidity()) return;
    const component = components[Number(select.value)];
    const description = await catalog.describe(component);
    editor.redraw(addTask(job, component, description));
  };
  return row(select, button("add a task", add));
}
