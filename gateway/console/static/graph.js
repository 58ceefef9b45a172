// The tasks of a job and what flows between them, as a picture.
import { h, said, t, tone } from "./core.js";

const WIDE = 240,
  HIGH = 54,
  GAP_X = 60,
  GAP_Y = 22;
/** Characters of a name that fit beside a state: one of Chinese is as wide as two others. */
const beside = (state) =>
  Math.floor(
    (WIDE - 30 - [...state].reduce((sum, one) => sum + (one > "\u2e80" ? 12 : 6.5), 0)) / 7.2,
  );
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** The tasks before which a task cannot run: its place from left to right. */
function levels(flow) {
  const level = new Map();
  for (let round = 0; round <= flow.length; round += 1)
    for (const node of flow)
      level.set(
        node.name,
        Math.min(
          flow.length,
          Math.max(0, ...node.inputs.map((i) => (level.get(i.task) ?? -1) + 1)),
        ),
      );
  return level;
}

/** A picture of tasks `{name, inputs: [{task}], component}`; `states`: by name; `pick`: called with the name of one that is chosen. */
export function picture(flow, states = new Map(), pick = null, chosen = "") {
  const level = levels(flow),
    columns = [];
  for (const node of flow) (columns[level.get(node.name)] ??= []).push(node);
  const filled = columns.filter(Boolean),
    at = new Map();
  filled.forEach((column, x) =>
    column.forEach((node, y) =>
      at.set(node.name, [8 + x * (WIDE + GAP_X), 8 + y * (HIGH + GAP_Y)]),
    ),
  );
  const width = filled.length * (WIDE + GAP_X) - GAP_X + 16,
    height = Math.max(...filled.map((c) => c.length)) * (HIGH + GAP_Y) - GAP_Y + 16;
  const pairs = new Map(
    flow.flatMap((node) =>
      node.inputs
        .filter((i) => at.has(i.task))
        .map((i) => [`${i.task}>${node.name}`, [i.task, node.name]]),
    ),
  );
  const label = (node) =>
    states.has(node.name) ? `${node.name} ${said(states.get(node.name))}` : node.name;
  const told = pick ? { role: "group" } : { role: "img" };
  return h(
    "div",
    { class: "graph", tabindex: "0", role: "region", "aria-label": t("tasks") },
    h(
      "svg:svg",
      { width, height, ...told, "aria-label": flow.map(label).join(", ") },
      [...pairs.values()].map(([from, to]) => {
        const [x1, y1] = at.get(from),
          [x2, y2] = at.get(to);
        const a = x1 + WIDE,
          b = y1 + HIGH / 2,
          d = y2 + HIGH / 2;
        return h("svg:path", {
          class: "edge",
          d: `M${a} ${b} C${a + GAP_X / 2} ${b} ${x2 - GAP_X / 2} ${d} ${x2} ${d}`,
        });
      }),
      flow.map((node) => {
        const [x, y] = at.get(node.name),
          state = states.get(node.name);
        const choose = pick && {
          role: "button",
          tabindex: "0",
          "aria-pressed": String(node.name === chosen),
          onclick: () => pick(node.name),
          onkeydown: (event) => {
            if (event.key === "Enter" || event.key === " ") {
              event.preventDefault();
              pick(node.name);
            }
          },
        };
        return h(
          "svg:g",
          {
            class: `task ${state ? tone(state) : ""}`,
            transform: `translate(${x} ${y})`,
            "aria-label": pick && node.name,
            ...choose,
          },
          h(
            "svg:title",
            {},
            `${node.name}: ${node.component.provider}/${node.component.name} ${node.component.version}${state ? `, ${said(state)}` : ""}`,
          ),
          h("svg:rect", { width: WIDE, height: HIGH, rx: 8 }),
          h(
            "svg:text",
            { x: 12, y: 22 },
            cut(node.name, beside(state ? said(state) : "")),
            state &&
              h(
                "svg:tspan",
                { class: "component", x: WIDE - 10, "text-anchor": "end" },
                said(state),
              ),
          ),
          h("svg:text", { x: 12, y: 42, class: "component" }, cut(node.component.name, 32)),
        );
      }),
    ),
  );
}
