// The canvas of a job: its tasks with their inputs and outputs, and connections that can be drawn.
//
// Tasks take their places by the order of their inputs. An output is connected by dragging it to an input, or
// by choosing the output and then the input, with the mouse or the keyboard.
import { h } from "../dom.js";
import { columnsOf, shorten } from "../graph.js";
import { apiWord, translate } from "../language.js";
import { hint } from "../widgets.js";
import { removeTask, upstreamTask } from "./draft.js";
import { DRAGGED_TYPE } from "./library.js";
import { canConnect, connect, disconnect, inputPorts, outputPorts } from "./ports.js";

const TASK_WIDTH = 212;
const HEAD_HEIGHT = 50; // name and component
const PORT_HEIGHT = 22;
const COLUMN_GAP = 64;
const ROW_GAP = 24;
const MARGIN = 14;
const PADDING = 12;
const LONGEST_NAME = 22; // characters of a task's or component's name
const LONGEST_PORT = 13;
const CLICK_DISTANCE = 4; // pixels; a longer way of the pointer is a drag
const LONGEST_TITLE = 12; // findings in the title of a task

/**
 * The canvas. `descriptions` and `findings` are by the name of a task; `editor` has `selectedTask`,
 * `redraw`, `connected(task)` and `addDropped(index, task)`: the place of the component in the library, and the
 * task on which it was dropped, if any.
 */
export function canvas(job, descriptions, findings, editor) {
  if (job.dag.components.length === 0) return emptyCanvas(editor);
  const nodes = layOut(job, descriptions);
  const status = h("p", { class: "faint", role: "status" }, translate("about canvas"));
  const board = new Board(job, descriptions, nodes, status, editor);
  const picture = h(
    "svg:svg",
    {
      ...sizeOf(nodes),
      role: "group",
      "aria-label": translate("canvas"),
      onkeydown: (event) => event.key === "Escape" && board.stopConnecting(),
    },
    edges(nodes, job, editor),
    nodes.map((node) => taskElement(node, findings.get(node.name) ?? [], board)),
  );
  board.picture = picture;
  const region = {
    class: "graph canvas",
    tabindex: "0", // wide pictures scroll by keyboard
    role: "region",
    "aria-label": translate("tasks"),
    ...dropTarget(editor),
  };
  return [h("div", region, picture), legend(), status];
}

/** The shapes of the ports with their kinds. */
function legend() {
  const kinds = ["dataset", "model", "report"].map((kind) => [
    h("svg:svg", { width: 16, height: 16, "aria-hidden": "true" }, shape(kind, 8, 8)),
    h("span", {}, apiWord(kind)),
  ]);
  return h("p", { class: "legend faint" }, kinds);
}

const emptyCanvas = (editor) =>
  h("div", { class: "graph canvas empty", ...dropTarget(editor) }, hint(translate("no tasks yet")));

/** The attributes of an element on which a component of the library can be dropped. */
function dropTarget(editor) {
  const drop = (event) => {
    event.preventDefault();
    const source = event.target.closest("[data-name]")?.dataset.name;
    const index = event.dataTransfer.getData(DRAGGED_TYPE); // "" for other things, such as a file
    if (index) editor.addDropped(Number(index), source);
  };
  return { ondragover: (event) => event.preventDefault(), ondrop: drop };
}

// ---------------------------------------------------------------- layout

/** The tasks with their ports and places: `{name, task, inputs, outputs, x, y, height}`. */
function layOut(job, descriptions) {
  const nodes = job.dag.components.map((task) => nodeOf(task, descriptions.get(task.name)));
  const flow = nodes.map((node) => ({ ...node, inputs: sourcesOf(node) }));
  const byName = new Map(nodes.map((node) => [node.name, node]));
  columnsOf(flow).forEach((column, x) => {
    let y = MARGIN;
    for (const { name } of column) {
      const node = byName.get(name);
      Object.assign(node, { x: MARGIN + x * (TASK_WIDTH + COLUMN_GAP), y });
      y += node.height + ROW_GAP;
    }
  });
  return nodes;
}

function nodeOf(task, description) {
  const inputs = inputPorts(task, description);
  const outputs = outputPorts(task);
  const portCount = Math.max(inputs.length, outputs.length);
  const height = HEAD_HEIGHT + portCount * PORT_HEIGHT;
  return { name: task.name, task, inputs, outputs, height };
}

const sourcesOf = ({ inputs }) =>
  inputs.filter(({ key }) => key).map((input) => ({ task: upstreamTask(input) }));

const sizeOf = (nodes) => ({
  width: Math.max(...nodes.map(({ x }) => x)) + TASK_WIDTH + MARGIN,
  height: Math.max(...nodes.map(({ y, height }) => y + height)) + MARGIN,
});

const portY = (index) => HEAD_HEIGHT + index * PORT_HEIGHT + PORT_HEIGHT / 2 - 4;
const placeOfInput = (node, index) => ({ x: node.x, y: node.y + portY(index) });
const placeOfOutput = (node, index) => ({ x: node.x + TASK_WIDTH, y: node.y + portY(index) });

// ---------------------------------------------------------------- connections

function edges(nodes, job, editor) {
  return nodes.flatMap((node) =>
    node.inputs.map((input, index) => {
      const from = input.key && placeOfKey(nodes, input.key);
      return from && connection(node, input, from, placeOfInput(node, index), editor);
    }),
  );
}

/** The place of an output by its key; null if no task has it. */
function placeOfKey(nodes, key) {
  for (const node of nodes) {
    const index = node.outputs.findIndex((output) => output.key === key);
    if (index >= 0) return placeOfOutput(node, index);
  }
  return null;
}

/** A connection; choosing it removes it. */
function connection(node, { key, name, kind }, from, to, editor) {
  const remove = () => {
    disconnect(node.task, key);
    editor.redraw();
  };
  const label = translate("remove connection", { from: key, to: `${node.name}.${name}` });
  const middle = `translate(${(from.x + to.x) / 2} ${(from.y + to.y) / 2})`;
  return h(
    "svg:g",
    { class: `connection ${kind}`, ...pressable(label, remove, { Delete: remove }) },
    h("svg:title", {}, label),
    h("svg:path", { class: "reach", d: curve(from, to) }),
    h("svg:path", { class: "edge", d: curve(from, to) }),
    h("svg:circle", { class: "cross", transform: middle, r: 9 }),
    h("svg:path", { class: "cross", transform: middle, d: "M-4 -4L4 4M-4 4L4 -4" }),
  );
}

function curve(from, to) {
  const bend = Math.max(COLUMN_GAP / 2, Math.abs(to.x - from.x) / 2);
  const start = `M${from.x} ${from.y}`;
  return `${start} C${from.x + bend} ${from.y} ${to.x - bend} ${to.y} ${to.x} ${to.y}`;
}

/** The attributes of an element that is pressed by mouse, Enter or space; `actions`: further ones by key. */
function pressable(label, press, actions = {}) {
  const actionsByKey = { Enter: press, " ": press, ...actions };
  const pressByKey = (event) => {
    const action = actionsByKey[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  };
  return {
    role: "button",
    tabindex: "0",
    "aria-label": label,
    onclick: press,
    onkeydown: pressByKey,
  };
}

// ---------------------------------------------------------------- tasks

function taskElement(node, findings, board) {
  return h(
    "svg:g",
    { class: `task ${toneOf(findings)}`, transform: `translate(${node.x} ${node.y})` },
    face(node, findings, board),
    node.inputs.map((input, index) => inputElement(node, input, index, board)),
    node.outputs.map((output, index) => outputElement(node, output, index, board)),
  );
}

function toneOf(findings) {
  if (findings.length === 0) return "";
  return findings[0].standing === "problem" ? "bad" : "wait";
}

/** The box of a task: pressing it shows the task's form, and the key Delete removes the task. */
function face(node, findings, board) {
  const { name, task } = node;
  const { editor, job } = board;
  const select = () => editor.redraw(name);
  const remove = () => {
    removeTask(job, task);
    editor.redraw("");
  };
  const causes = findings.map(({ cause }) => cause).slice(0, LONGEST_TITLE);
  const concern = findings.length > 0 ? translate("concerns", { count: findings.length }) : "";
  return h(
    "svg:g",
    {
      ...pressable([name, concern].filter(Boolean).join(", "), select, { Delete: remove }),
      "aria-pressed": String(name === editor.selectedTask),
      "data-name": name,
    },
    h("svg:title", {}, [`${task.componentName} ${task.version}`, ...causes].join("\n")),
    h("svg:rect", { width: TASK_WIDTH, height: node.height, rx: 8 }),
    h("svg:text", { x: PADDING, y: 21 }, shorten(name, LONGEST_NAME)),
    h(
      "svg:text",
      { x: PADDING, y: 39, class: "component" },
      shorten(task.componentName, LONGEST_NAME),
    ),
    findings.length > 0 && findingCount(findings.length),
  );
}

const findingCount = (count) =>
  h(
    "svg:g",
    { class: "count", transform: `translate(${TASK_WIDTH - 18} 18)` },
    h("svg:circle", { r: 11 }),
    h("svg:text", { y: 4, "text-anchor": "middle" }, count > 99 ? "99+" : count),
  );

function inputElement(node, input, index, board) {
  const label = labelOf("input of", node, input);
  const take = () => board.connectTo(node, input);
  return h(
    "svg:g",
    {
      class: `port input ${input.key ? "connected" : ""}`,
      "data-task": node.name,
      "data-input": index,
      ...pressable(label, take),
      role: "img", // a button only while an output waits for its input
      tabindex: "-1",
    },
    h("svg:title", {}, label),
    shape(input.kind, 0, portY(index)),
    h("svg:text", { x: PADDING, y: portY(index) + 4 }, shorten(input.name, LONGEST_PORT)),
  );
}

/** An output: pressing it, or dragging it to an input, connects it. */
function outputElement(node, output, index, board) {
  const label = labelOf("output of", node, output);
  const begin = () => board.startConnecting(output);
  const x = TASK_WIDTH - PADDING;
  return h(
    "svg:g",
    {
      class: "port output",
      "data-task": node.name,
      "data-output": output.name,
      ...pressable(label, begin),
      onpointerdown: (event) => board.drag(event, output, placeOfOutput(node, index)),
    },
    h("svg:title", {}, label),
    shape(output.kind, TASK_WIDTH, portY(index)),
    h(
      "svg:text",
      { x, y: portY(index) + 4, "text-anchor": "end" },
      shorten(output.name, LONGEST_PORT),
    ),
  );
}

const labelOf = (text, { name: task }, { name, kind }) =>
  translate(text, { name, task, kind: apiWord(kind) });

/** A port: a circle for a table, a square for a model, a triangle for a report. */
function shape(kind, x, y) {
  const paths = {
    dataset: "M-6 0A6 6 0 1 0 6 0A6 6 0 1 0 -6 0Z",
    model: "M-5.5 -5.5H5.5V5.5H-5.5Z",
    report: "M-5.5 -6L6.5 0L-5.5 6Z",
  };
  return h("svg:path", {
    class: `shape ${kind}`,
    d: paths[kind],
    transform: `translate(${x} ${y})`,
  });
}

// ---------------------------------------------------------------- connecting

/** The canvas while connections are drawn on it. */
class Board {
  picture; // the SVG element
  #output = null; // the output that waits for its input

  constructor(job, descriptions, nodes, status, editor) {
    Object.assign(this, { job, descriptions, nodes, status, editor });
  }

  /** Offers the inputs that can read an output, and moves the focus to the first of them. */
  startConnecting(output) {
    this.#offerInputs(output)[0]?.focus();
  }

  /** Marks the inputs that can read an output as buttons; returns them. */
  #offerInputs(output) {
    this.#output = output;
    this.picture.classList.add("connecting");
    const places = this.picture.querySelectorAll("[data-input]");
    const open = [...places].filter((element) => this.#isOpen(element));
    for (const element of places) element.classList.toggle("open", open.includes(element));
    for (const element of open) {
      element.setAttribute("role", "button");
      element.setAttribute("tabindex", "0");
    }
    const text = open.length > 0 ? "choose an input" : "no input fits";
    this.status.textContent = translate(text, { output: output.key });
    return open;
  }

  stopConnecting() {
    if (!this.#output) return;
    this.#output = null;
    this.picture.classList.remove("connecting");
    for (const element of this.picture.querySelectorAll("[data-input]")) {
      element.classList.remove("open");
      element.setAttribute("role", "img");
      element.setAttribute("tabindex", "-1");
    }
    this.status.textContent = translate("about canvas");
  }

  #isOpen(element) {
    const node = this.nodes.find(({ name }) => name === element.dataset.task);
    const input = node.inputs[Number(element.dataset.input)];
    return input.index !== null && canConnect(this.job, node.task, input, this.#output);
  }

  /** Connects the waiting output, if there is one and the input can read it; otherwise selects the task. */
  connectTo(node, input) {
    const output = this.#output;
    if (!output) {
      this.editor.redraw(node.name);
      return;
    }
    if (input.index === null || !canConnect(this.job, node.task, input, output)) return;
    connect(node.task, this.descriptions.get(node.name), input.index, output.key);
    this.editor.connected(node.name);
  }

  /** Draws a line from an output to the pointer, and connects the input at which the pointer is released. */
  drag(event, output, from) {
    const start = { x: event.clientX, y: event.clientY };
    const line = h("svg:path", { class: `edge drawn ${output.kind}` });
    const isDrag = ({ clientX, clientY }) =>
      Math.hypot(clientX - start.x, clientY - start.y) > CLICK_DISTANCE;
    const follow = (move) => {
      if (!isDrag(move)) return;
      if (!line.isConnected) {
        this.#offerInputs(output);
        this.picture.append(line);
      }
      const { left, top } = this.picture.getBoundingClientRect();
      line.setAttribute("d", curve(from, { x: move.clientX - left, y: move.clientY - top }));
    };
    const release = (end) => {
      removeEventListener("pointermove", follow);
      if (!line.isConnected) return; // a click, which `startConnecting` gets by itself
      line.remove();
      this.#release(document.elementFromPoint(end.clientX, end.clientY));
    };
    event.preventDefault(); // selects no text
    addEventListener("pointermove", follow);
    addEventListener("pointerup", release, { once: true });
  }

  #release(element) {
    const target = element?.closest("[data-input]");
    const node = this.nodes.find(({ name }) => name === target?.dataset.task);
    if (node) this.connectTo(node, node.inputs[Number(target.dataset.input)]);
    this.stopConnecting();
  }
}
