// The tasks of a job and the flow of data between them, as a picture.
import { h } from "./dom.js";
import { apiWord, translate } from "./language.js";
import { toneOf } from "./widgets.js";

const TASK_WIDTH = 240;
const TASK_HEIGHT = 54;
const COLUMN_GAP = 60;
const ROW_GAP = 22;
const MARGIN = 8;
const PADDING = 12; // between the frame of a task and its name
const LONGEST_COMPONENT = 32; // characters of a component's name

// Approximate widths of characters, in pixels.
const NAME_CHARACTER = 7.2;
const STATE_CHARACTER = 6.5;
const CHINESE_CHARACTER = 12;
const FIRST_CHINESE = "\u2e80";

/**
 * Draws tasks `{name, inputs: [{task}], component}` from left to right in the order of their inputs.
 * `states`: by task; `select`: called with the name of a task that the user selects, if tasks can be selected.
 */
export function flowPicture(tasks, { states = new Map(), select = null, selected = "" } = {}) {
  const layout = layOut(tasks);
  const edges = edgesOf(tasks).map(([from, to]) => edge(layout.at.get(from), layout.at.get(to)));
  const boxes = tasks.map((task) => {
    const choice = select && choiceOf(task, select, selected);
    return taskBox(task, layout.at.get(task.name), states.get(task.name), choice);
  });
  const labels = tasks.map((task) => labelOf(task, states.get(task.name)));
  const picture = h(
    "svg:svg",
    {
      width: layout.width,
      height: layout.height,
      role: select ? "group" : "img",
      "aria-label": labels.join(", "),
    },
    edges,
    boxes,
  );
  const region = {
    class: "graph",
    tabindex: "0", // wide pictures scroll by keyboard
    role: "region",
    "aria-label": translate("tasks"),
  };
  return h("div", region, picture);
}

// ---------------------------------------------------------------- layout

/** The size of the picture, and the position of each task's upper left corner by its name. */
function layOut(tasks) {
  const columns = columnsOf(tasks);
  const at = new Map();
  columns.forEach((column, x) => {
    column.forEach((task, y) => {
      at.set(task.name, {
        x: MARGIN + x * (TASK_WIDTH + COLUMN_GAP),
        y: MARGIN + y * (TASK_HEIGHT + ROW_GAP),
      });
    });
  });
  const rowCount = Math.max(...columns.map((column) => column.length));
  return {
    at,
    width: columns.length * (TASK_WIDTH + COLUMN_GAP) - COLUMN_GAP + 2 * MARGIN,
    height: rowCount * (TASK_HEIGHT + ROW_GAP) - ROW_GAP + 2 * MARGIN,
  };
}

/** The tasks in columns: each stands to the right of all tasks from which it reads. */
export function columnsOf(tasks) {
  const levels = levelsOf(tasks);
  const columns = [];
  for (const task of tasks) {
    const level = levels.get(task.name);
    columns[level] ??= [];
    columns[level].push(task);
  }
  return columns.filter(Boolean); // tasks in a circle can leave levels without a task
}

/** The length of the longest path to each task, by its name; tasks in a circle get the last level. */
function levelsOf(tasks) {
  const levels = new Map();
  for (let round = 0; round <= tasks.length; round += 1) {
    for (const task of tasks) {
      const levelsAfterInputs = task.inputs.map((input) => (levels.get(input.task) ?? -1) + 1);
      levels.set(task.name, Math.min(tasks.length, Math.max(0, ...levelsAfterInputs)));
    }
  }
  return levels;
}

/** The pairs of tasks of which the second reads from the first, each once. */
function edgesOf(tasks) {
  const names = new Set(tasks.map((task) => task.name));
  return tasks.flatMap((task) => {
    const upstream = new Set(task.inputs.map((input) => input.task));
    return [...upstream].filter((name) => names.has(name)).map((name) => [name, task.name]);
  });
}

// ---------------------------------------------------------------- elements

function edge(from, to) {
  const startX = from.x + TASK_WIDTH;
  const startY = from.y + TASK_HEIGHT / 2;
  const endY = to.y + TASK_HEIGHT / 2;
  const bend = COLUMN_GAP / 2;
  const start = `M${startX} ${startY}`;
  const curve = `C${startX + bend} ${startY} ${to.x - bend} ${endY} ${to.x} ${endY}`;
  return h("svg:path", { class: "edge", d: `${start} ${curve}` });
}

/** The attributes of a task that can be selected by mouse or keyboard. */
function choiceOf(task, select, selected) {
  const selectByKey = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    select(task.name);
  };
  return {
    role: "button",
    tabindex: "0",
    "aria-label": task.name,
    "aria-pressed": String(task.name === selected),
    onclick: () => select(task.name),
    onkeydown: selectByKey,
  };
}

function taskBox(task, at, state, choice) {
  const { name, component } = task;
  const tone = state ? toneOf(state) : "";
  const stateText = state ? apiWord(state) : "";
  const titleParts = [`${name}: ${component.provider}/${component.name} ${component.version}`];
  if (state) titleParts.push(stateText);
  return h(
    "svg:g",
    { class: `task ${tone}`, transform: `translate(${at.x} ${at.y})`, ...choice },
    h("svg:title", {}, titleParts.join(", ")),
    h("svg:rect", { width: TASK_WIDTH, height: TASK_HEIGHT, rx: 8 }),
    h(
      "svg:text",
      { x: PADDING, y: 22 },
      shorten(name, charactersBeside(stateText)),
      state && stateLabel(stateText),
    ),
    h(
      "svg:text",
      { x: PADDING, y: 42, class: "component" },
      shorten(component.name, LONGEST_COMPONENT),
    ),
  );
}

const stateLabel = (text) =>
  h("svg:tspan", { class: "component", x: TASK_WIDTH - 10, "text-anchor": "end" }, text);

const labelOf = (task, state) => (state ? `${task.name} ${apiWord(state)}` : task.name);

/** The number of characters of a name for which there is room beside a state. */
function charactersBeside(stateText) {
  let stateWidth = 0;
  for (const character of stateText) {
    stateWidth += character > FIRST_CHINESE ? CHINESE_CHARACTER : STATE_CHARACTER;
  }
  return Math.floor((TASK_WIDTH - 30 - stateWidth) / NAME_CHARACTER);
}

/** A text with its end cut off if it is longer than this. */
export const shorten = (text, length) =>
  text.length > length ? `${text.slice(0, length - 1)}…` : text;
