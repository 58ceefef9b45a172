// Inputs for the parameters of a task, from the JSON Schema of its component.
import { h } from "../dom.js";
import { language, translate } from "../language.js";
import { hint, option } from "../widgets.js";
import { objectAt, partiesOf } from "./draft.js";

const EXTENSION = "x-bfia"; // key of the gateway's own part of a schema
const NUMERIC = ["integer", "number"];
const STRUCTURED = ["object", "array"];
const DATASET_PARAMETERS = ["dataset_id", "namespace", "name"]; // which locate a dataset
const EVERY_PARTY = { label: "", keys: ["common"] };

/**
 * The parameters of a task for all parties, or for the one that the user chooses; advanced ones are folded
 * unless one of them is set. `roles`: those of the component. `editor.scope` is the label of that party;
 * `editor.onlyNode`: the node whose parties alone can be changed, "" for all.
 */
export function parameterFields(job, task, schema, roles, editor) {
  const scopes = scopesOf(job, roles, editor.onlyNode);
  if (scopes.length === 0) return hint(translate("about foreign task"));
  const scope = scopes.find(({ label }) => label === editor.scope) ?? scopes[0];
  const values = valuesIn(job, scope, task);
  const properties = { ...schema.properties, ...undescribed(job, task, schema, scope) };
  const fields = Object.entries(properties).map(([name, property]) => ({
    name,
    isAdvanced: property[EXTENSION]?.advanced,
    element: parameterField(name, property, { job, task, scope }, editor),
  }));
  const advanced = fields.filter(({ isAdvanced }) => isAdvanced);
  const basic = fields.filter(({ isAdvanced }) => !isAdvanced);
  const isOneSet = advanced.some(({ name }) => name in values);
  return [
    h("h3", {}, translate("parameters")),
    scopeChoice(job, task, scopes, scope, editor),
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

/** Properties for the values that the job sets although the component's description lacks them. */
function undescribed(job, task, schema, scope) {
  const values = { ...valuesIn(job, EVERY_PARTY, task), ...valuesIn(job, scope, task) };
  const properties = {};
  for (const [name, value] of Object.entries(values)) {
    if (name in schema.properties || DATASET_PARAMETERS.includes(name)) continue;
    properties[name] = {
      type: isStructured(value) ? "object" : typeof value,
      description: translate("undescribed"),
    };
  }
  return properties;
}

/** The entries below `task_params` in which the parameters of a task can be changed. */
function scopesOf(job, roles, onlyNode) {
  const parties = partiesOf(job).filter(({ role }) => roles.includes(role));
  const scopes = parties.map(({ role, index, node }) => ({
    label: `${role}.${index}`,
    keys: [role, String(index)],
    node,
  }));
  return onlyNode ? scopes.filter(({ node }) => node === onlyNode) : [EVERY_PARTY, ...scopes];
}

/** The values of a task's parameters in a scope. */
function valuesIn(job, { keys }, task) {
  let entry = job.config.task_params;
  for (const key of [...keys, task.name]) entry = entry?.[key];
  return entry ?? {};
}

/** The choice of a scope, with the number of values that each party has of its own. */
function scopeChoice(job, task, scopes, current, editor) {
  const textOfScope = (scope) => {
    if (!scope.label) return translate("every party");
    const names = Object.keys(valuesIn(job, scope, task)).filter(
      (name) => !DATASET_PARAMETERS.includes(name),
    );
    return names.length > 0 ? `${scope.label} (${names.length})` : scope.label;
  };
  const choose = ({ target }) => {
    editor.scope = target.value;
    editor.redraw();
  };
  const options = scopes.map((scope) => option(scope.label, current.label, textOfScope(scope)));
  return h("label", {}, translate("parameters for"), h("select", { onchange: choose }, options));
}

const fieldGrid = (fields) =>
  h(
    "div",
    { class: "fields parameters" },
    fields.map(({ element }) => element),
  );

function parameterField(name, property, { job, task, scope }, editor) {
  const set = (value) => {
    const parameters = objectAt(job.config, "task_params", ...scope.keys, task.name);
    if (value === undefined) delete parameters[name];
    else parameters[name] = value;
    editor.changed();
  };
  const { title, description } = { ...property, ...textsOf(property) };
  const label = title && title !== name ? `${title} (${name})` : name;
  const isNewText = description && description !== title && description !== name;
  const conditions = property[EXTENSION]?.dependsOn;
  const value = valuesIn(job, scope, task)[name];
  const input = valueInput(withInherited(property, job, task, scope, name), value, set);
  input.dataset.path = ["config.task_params", ...scope.keys, task.name, name].join(".");
  return h(
    "label",
    {},
    label,
    input,
    isNewText && h("small", {}, description),
    conditions && h("small", {}, translate("only with", { what: conditions.join(", ") })),
  );
}

/** The title, description and labels of a parameter in the user's language, as far as the vendor gives them. */
const textsOf = (property) => property[EXTENSION]?.translations?.[language] ?? {};

/** A parameter whose default is the value for all parties, if it is one party's and there is such a value. */
function withInherited(property, job, task, scope, name) {
  const common = job.config.task_params?.common?.[task.name]?.[name];
  if (!scope.label || common === undefined) return property;
  return { ...property, default: common };
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
  const { labels } = { labels: property[EXTENSION]?.labels, ...textsOf(property) };
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
