// The drawing of a job: its parties, its tasks on a canvas, and the form of the selected task.
import { button } from "../dialogs.js";
import { h, setChildren } from "../dom.js";
import { translate } from "../language.js";
import { card, hint, option, row, table } from "../widgets.js";
import { canvas } from "./canvas.js";
import { partiesOf, removeParty, ROLES } from "./draft.js";
import { findingList, findingsByTask, placeFindings } from "./findings.js";
import { library } from "./library.js";
import { taskForm } from "./task_form.js";

/**
 * The parts of the drawing. `editor.changed()` is called after a change that the drawing shows already,
 * `editor.redraw(task)` after one for which it has to be drawn again, with the task to select.
 */
export class Drawing {
  element = h("div");
  #parties = h("div");
  #workbench = h("div", { class: "workbench" }); // library and canvas
  #canvas = h("div");
  #form = h("div");
  #findings = h("div"); // of the selected task
  #entries = null; // of the library, once it is loaded
  #content = null; // what is drawn: `{job, descriptions}`

  constructor(catalog, editor) {
    this.catalog = catalog;
    this.editor = editor;
  }

  /** Draws a job; `findings`: those of its last plan. Throws an error if it has not the form of a job. */
  async draw(job, findings) {
    const descriptions = await this.#describe(job.dag.components);
    if (!this.#entries) await this.#loadLibrary();
    this.#content = { job, descriptions };
    if (this.#parties.parentNode !== this.element) {
      setChildren(this.element, this.#parties, card("tasks", this.#workbench), this.#form);
    }
    keepFocus(this.#parties, () => this.#fillParties());
    keepFocus(this.#form, () => this.#fillForm());
    this.showFindings(findings);
  }

  /** Shows elements in place of a job that cannot be drawn. */
  showInstead(...elements) {
    this.#content = null;
    setChildren(this.element, elements);
  }

  async #loadLibrary() {
    this.#entries = await this.catalog.library();
    const add = (index) => this.editor.add(this.#entries[index]);
    const list =
      this.#entries.length > 0 ? library(this.#entries, add) : hint(translate("no providers"));
    setChildren(this.#workbench, list, this.#canvas);
  }

  #fillParties() {
    const { job } = this.#content;
    const { editor, catalog } = this;
    const elements = [
      flowInput(job, editor),
      partyTable(job, catalog, editor),
      partyForm(job, catalog, editor),
    ];
    setChildren(this.#parties, card("", elements));
  }

  #fillForm() {
    const { job, descriptions } = this.#content;
    const { editor, catalog } = this;
    const task = job.dag.components.find(({ name }) => name === editor.selectedTask);
    const description = task && descriptions.get(task.name);
    const form = task && taskForm(job, task, description, this.#findings, catalog, editor);
    setChildren(this.#form, form);
  }

  /** Shows the findings of a new plan at the tasks; the forms stay as they are. */
  showFindings(findings) {
    if (this.#content) keepFocus(this.#canvas, () => this.#fillCanvas(findings));
  }

  #fillCanvas(findings) {
    const { job, descriptions } = this.#content;
    const byTask = findingsByTask(job, findings);
    setChildren(this.#canvas, canvas(job, descriptions, byTask, this.editor));
    const others = placeFindings(this.element, findings);
    const ofTask = byTask.get(this.editor.selectedTask) ?? [];
    setChildren(this.#findings, findingList(ofTask.filter((finding) => others.includes(finding))));
  }

  /** The descriptions of the tasks' components by the tasks' names; null for unknown ones. */
  async #describe(tasks) {
    const described = tasks.map(async ({ name, provider, version, componentName }) => {
      const component = { provider, version, name: componentName };
      return [name, await this.catalog.describe(component)];
    });
    return new Map(await Promise.all(described));
  }

  /** The component at a place in the library. */
  componentAt(index) {
    return this.#entries[index];
  }
}

/**
 * Changes the content of an element. The focus stays at the control with the same label, or goes to the canvas
 * if a part of that is gone, otherwise to the control with the same position.
 */
function keepFocus(element, change) {
  const controls = () => [...element.querySelectorAll("input, select, button, [tabindex]")];
  const focused = document.activeElement;
  const index = controls().indexOf(focused);
  change();
  if (index < 0) return;
  const label = focused.getAttribute("aria-label");
  const sameLabel = controls().find((control) => label === control.getAttribute("aria-label"));
  const successor = focused.closest("svg") ? element.querySelector(".canvas") : controls()[index];
  ((label && sameLabel) || successor)?.focus();
}

function flowInput(job, editor) {
  const change = (event) => {
    job.flow_id = event.target.value.trim();
    editor.changed();
  };
  const attributes = {
    name: "flow",
    value: job.flow_id ?? "",
    maxlength: 128,
    placeholder: translate("flow hint"),
    onchange: change,
    "data-path": "flow_id",
  };
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
      {
        "aria-label": `${translate("node")} ${label}`,
        onchange: setNode,
        "data-path": `config.role.${role}[${index}]`,
      },
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
