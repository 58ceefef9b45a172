// The list of components from which tasks are added: by category, and searched by text.
import { h, setChildren } from "../dom.js";
import { textIn, translate } from "../language.js";
import { hint } from "../widgets.js";
import { kindOf } from "./draft.js";

export const DRAGGED_TYPE = "application/x-bfia-component"; // type of the data of a drag: an index

const CATEGORIES = ["preparation", "training", "evaluation", "other components"];

/** The list. `entries`: components with their descriptions; `add` gets the index of one that was pressed. */
export function library(entries, add) {
  const list = h("div", { class: "parts", tabindex: "0" });
  const show = (text) => setChildren(list, categories(entries, text, add));
  const input = h("input", {
    type: "search",
    placeholder: translate("search components"),
    "aria-label": translate("search components"),
    oninput: ({ target }) => show(target.value),
  });
  show("");
  return h("div", { class: "library" }, input, list);
}

function categories(entries, search, add) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const matching = entries.filter((entry) => {
    const text = textOf(entry).toLowerCase();
    return words.every((word) => text.includes(word));
  });
  if (matching.length === 0) return hint(translate("no component fits"));
  return CATEGORIES.map((category) => {
    const members = matching.filter(({ description }) => categoryOf(description) === category);
    return members.length > 0 && categoryElement(category, members, entries, add);
  });
}

const categoryElement = (category, members, entries, add) => [
  h("h3", {}, translate(category)),
  h(
    "ul",
    {},
    members.map((entry) => h("li", {}, part(entry, entries.indexOf(entry), add))),
  ),
];

/** The category of a component, by what it writes. */
function categoryOf({ outputData: outputs = [] }) {
  const kinds = outputs.map(({ category }) => kindOf(category));
  for (const [kind, category] of [
    ["model", "training"],
    ["dataset", "preparation"],
    ["report", "evaluation"],
  ]) {
    if (kinds.includes(kind)) return category;
  }
  return "other components";
}

/** A component as a button that adds a task; it can be dragged onto the canvas, too. */
function part(entry, index, add) {
  const { name, providerName, description } = entry;
  const title = textIn(description, "title");
  return h(
    "button",
    {
      type: "button",
      class: "part",
      draggable: "true",
      "aria-label": `${translate("add a task")}: ${name} · ${providerName}`,
      title: textIn(description, "description"),
      ondragstart: (event) => event.dataTransfer.setData(DRAGGED_TYPE, String(index)),
      onclick: () => add(index),
    },
    h("strong", {}, name),
    title && title !== name && h("span", {}, title),
    h("small", {}, providerName),
    h("small", {}, (description.roleList ?? []).join(", ")),
    ports("input", description.inputData),
    ports("output", description.outputData),
  );
}

function ports(label, described = []) {
  if (described.length === 0) return null;
  return h("small", {}, `${translate(label)}: ${described.map(({ name }) => name).join(", ")}`);
}

/** The text in which the search looks. */
function textOf({ name, providerName, description }) {
  const { roleList = [], ...texts } = description;
  const fields = ["title", "description"].flatMap((field) => [texts[field], textIn(texts, field)]);
  const portNames = [...(description.inputData ?? []), ...(description.outputData ?? [])];
  const names = portNames.map((port) => port.name);
  return [name, providerName, ...fields, ...roleList, ...names].join(" ");
}
