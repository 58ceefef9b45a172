// The search of the list of jobs: its form, and its place in the address.
import { query } from "../api.js";
import { h } from "../dom.js";
import { apiWord, translate } from "../language.js";

const STATUSES = ["PENDING", "READY", "RUNNING", "FINISHED", "REJECTED"];
const OUTCOMES = ["SUCCEEDED", "FAILED", "STOPPED", "REJECTED"];
// The parameters of the search, as the API names them, with their labels.
const TEXTS = {
  text: "text",
  user: "submitted by",
  partner: "partner",
  component: "component",
  reason: "reason",
  flow_id: "flow",
};
const DATES = { since: "created since", until: "created before" };
const CHOICES = { status: ["state", STATUSES], outcome: ["outcome", OUTCOMES] };
const NAMES = ["text", "status", "outcome", ...Object.keys(TEXTS).slice(1), ...Object.keys(DATES)];
const SORT = "sort"; // further parameter of the address: a column, with "-" for descending

/** The search in the address: the parameters for the API, and the sorting. */
export function searchOfAddress() {
  const parameters = new URLSearchParams(location.hash.split("?")[1] ?? "");
  const filter = Object.fromEntries(NAMES.map((name) => [name, parameters.get(name) ?? ""]));
  return { filter, sort: parameters.get(SORT) ?? "" };
}

/** Writes a search into the address, without a new entry of the browser's history. */
export function writeAddress({ filter, sort }) {
  const parameters = query({ ...filter, [SORT]: sort });
  const text = parameters.size > 0 ? `?${parameters}` : "";
  history.replaceState(null, "", `#/jobs${text}`);
}

/** A form with the fields of a search; `change(name, text)` is called after each change. */
export function searchForm(filter, change) {
  const texts = Object.entries(TEXTS).map(([name, label]) =>
    inputOf(name, label, filter, change, { type: "search" }),
  );
  const choices = Object.entries(CHOICES).map(([name, [label, options]]) =>
    choiceOf(name, label, options, filter, change),
  );
  const dates = Object.entries(DATES).map(([name, label]) =>
    inputOf(name, label, filter, change, { type: "date" }),
  );
  const [text, ...others] = texts;
  return h("div", { class: "fields search", role: "search" }, text, choices, others, dates);
}

function inputOf(name, label, filter, change, attributes) {
  const takeText = (event) => change(name, event.target.value.trim());
  const value = filter[name];
  const input = h("input", { name, value, maxlength: 200, onchange: takeText, ...attributes });
  return h("label", {}, translate(label), input);
}

function choiceOf(name, label, words, filter, change) {
  const takeWord = (event) => change(name, event.target.value);
  const listed = filter[name].split(",").every((word) => words.includes(word) || word === "");
  const several = filter[name].includes(",") && listed ? [filter[name]] : [];
  const options = ["", ...several, ...words].map((word) =>
    h("option", { value: word, selected: word === filter[name] }, choiceText(word)),
  );
  return h("label", {}, translate(label), h("select", { name, onchange: takeWord }, options));
}

function choiceText(word) {
  if (word === "") return translate("all");
  return word.split(",").map(apiWord).join(" / ");
}
