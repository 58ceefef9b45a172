// Inputs for the parameters of a task, from the JSON Schema of its component.
import { h } from "../dom.js";
import { translate } from "../language.js";
import { option } from "../widgets.js";
import { objectAt } from "./draft.js";

const EXTENSION = "x-bfia"; // key of the gateway's own part of a schema
const NUMERIC = ["integer", "number"];
const STRUCTURED = ["object", "array"];

/** The common parameters of a task; advanced ones are folded unless one of them is set. */
export function parameterFields(job, task, schema, editor) {
  const common = objectAt(job.config, "task_params", "common");
  const fields = Object.entries(schema.properties).map(([name, property]) => ({
    name,
    isAdvanced: property[EXTENSION]?.advanced,
    element: parameterField(name, property, common, task, editor),
  }));
  const advanced = fields.filter(({ isAdvanced }) => isAdvanced);
  const basic = fields.filter(({ isAdvanced }) => !isAdvanced);
  const isOneSet = advanced.some(({ name }) => name in (common[task.name] ?? {}));
  return [
    h("h3", {}, translate("parameters")),
    fieldGrid(basic),
    advanced.length > 0 &&
      h(
        "details",
        { open: isOneSet },
        h("summary", {}, translate("further parameters")),
        fieldGrid(advanced),
      ),
  ];
}

const fieldGrid = (fields) =>
  h(
    "div",
    { class: "fields" },
    fields.map(({ element }) => element),
  );

function parameterField(name, property, common, task, editor) {
  const set = (value) => {
    const parameters = objectAt(common, task.name);
    if (value === undefined) delete parameters[name];
    else parameters[name] = value;
    editor.changed();
  };
  const { title, description } = property;
  const label = title && title !== name ? `${title} (${name})` : name;
  const isNewText = description && description !== title && description !== name;
  const conditions = property[EXTENSION]?.dependsOn;
  return h(
    "label",
    {},
    label,
    valueInput(property, common[task.name]?.[name], set),
    isNewText && h("small", {}, description),
    conditions && h("small", {}, translate("only with", { what: conditions.join(", ") })),
  );
}

/** An input for a value; `set` gets undefined for an empty one, which leaves the component's default. */
function valueInput(property, value, set) {
  if (property.enum) return choiceInput(property, property.enum, value, set);
  if (property.type === "boolean") return choiceInput(property, [true, false], value, set);
  if (STRUCTURED.includes(property.type) || isStructured(value)) {
    return textInput(property, value, { attributes: { size: 40 }, parse: parseJson, set });
  }
  const isUnsetOrNumber = value === undefined || typeof value === "number";
  if (NUMERIC.includes(property.type) && isUnsetOrNumber) {
    return textInput(property, value, { attributes: numberBounds(property), parse: Number, set });
  }
  const attributes = { size: 20, pattern: property.pattern };
  return textInput(property, value, { attributes, parse: (text) => text, set });
}

const isStructured = (value) => value !== null && typeof value === "object";

const textOf = (value) => {
  if (value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
};

function defaultText(property) {
  if (property.default === undefined) return "";
  return translate("default is", { value: textOf(property.default) });
}

const numberBounds = ({ type, minimum, exclusiveMinimum, maximum, exclusiveMaximum }) => ({
  type: "number",
  size: 20,
  step: type === "integer" ? 1 : "any",
  min: minimum ?? exclusiveMinimum,
  max: maximum ?? exclusiveMaximum,
});

/** A choice of values; a value that is not among them stays one. */
function choiceInput(property, values, value, set) {
  const valuesByText = new Map(values.map((choice) => [textOf(choice), choice]));
  const current = textOf(value);
  if (value !== undefined && !valuesByText.has(current)) valuesByText.set(current, value);
  const labels = property[EXTENSION]?.labels;
  const options = [...valuesByText.keys()].map((text) =>
    option(text, current, labels?.[text] ?? text),
  );
  const change = ({ target }) =>
    set(target.value === "" ? undefined : valuesByText.get(target.value));
  return h(
    "select",
    { onchange: change },
    option("", current, defaultText(property) || "–"),
    options,
  );
}

/** Reads a JSON value. Throws a SyntaxError whose message is for the user. */
function parseJson(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SyntaxError(translate("not JSON"), { cause: error });
  }
}

/** An input whose text `parse` turns into a value. */
function textInput(property, value, { attributes, parse, set }) {
  const change = ({ target }) => {
    const text = target.value.trim();
    let parsed;
    target.setCustomValidity("");
    try {
      if (text !== "") parsed = parse(text);
    } catch (error) {
      target.setCustomValidity(error.message);
    }
    if (target.reportValidity()) set(parsed);
  };
  return h("input", {
    ...attributes,
    value: textOf(value),
    placeholder: defaultText(property),
    onchange: change,
  });
}
