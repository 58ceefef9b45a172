// Parts that pages are made of: badges, tables, lists of facts, cards, boxes.
import { h } from "./dom.js";
import { displayValue, prettyJson } from "./format.js";
import { apiWord, translate } from "./language.js";

const DAY_MS = 86_400_000;
const EXPIRES_SOON_DAYS = 30; // as the gateway counts, in /api/v1/waiting

const STATES_BY_TONE = {
  good: [
    "answers",
    "SUCCEEDED",
    "SUCCESS",
    "APPROVED",
    "ok",
    "good",
    "passes",
    "enabled",
    "in force",
    "HELD",
    "valid",
    "deployed",
    "registered",
    "is kept",
  ],
  bad: [
    "silent",
    "FAILED",
    "fails",
    "REJECTED",
    "STOPPED",
    "failed",
    "bad",
    "problem",
    "TERMINATED",
    "revoked",
  ],
  wait: ["PENDING", "WAITING", "APPLIED", "waits", "warning", "unknown", "deviates"],
  "": [
    "unchanged",
    "not deployed",
    "FINISHED",
    "not run",
    "skipped",
    "disabled",
    "retired",
    "expired",
  ],
};
const TONE_OF_STATE = new Map(
  Object.entries(STATES_BY_TONE).flatMap(([tone, states]) => states.map((state) => [state, tone])),
);

/** The CSS class for the colour of a state; states without one are under way. */
export const toneOf = (state) => TONE_OF_STATE.get(state) ?? "busy";

export const badge = (state) => h("span", { class: `badge ${toneOf(state)}` }, apiWord(state));

/** The result of a check. The badge "ok" has another text where it means that something is healthy. */
export const checkBadge = (result) => badge(result === "ok" ? "passes" : result);

/** The days until an end, in the colour of their urgency. */
export function expiryBadge(days) {
  let tone = "good";
  if (days < EXPIRES_SOON_DAYS) tone = "wait";
  if (days < 0) tone = "bad";
  return h("span", { class: `badge ${tone}` }, String(days));
}

/** The days until a time, below it; "" without one. */
export function daysLeft(end) {
  if (!end) return "";
  const days = Math.floor((Date.parse(end) - Date.now()) / DAY_MS);
  return h("div", {}, expiryBadge(days), ` ${translate("days")}`);
}

export const row = (...children) => h("div", { class: "row" }, children);
export const hint = (...children) => h("p", { class: "faint" }, children);
export const code = (text) => h("code", {}, text);
export const faintCode = (text) => h("code", { class: "faint" }, text);
export const paragraphs = (lines) => lines.map((line) => h("p", {}, line));
export const option = (value, selected, text = value) =>
  h("option", { value, selected: value === selected }, text);

export const progressBar = (percent) =>
  h("progress", { max: 100, value: percent, "aria-label": translate("progress") });

/** A section of a page; `title` is a key of words.js, or "". */
export function card(title, ...children) {
  return h("section", {}, title && h("h2", {}, translate(title)), children);
}

/** A section that is folded until somebody opens it. */
export function foldedCard(title, count, content, open = false) {
  const heading = h("summary", {}, h("strong", {}, translate(title)), ` (${count})`);
  return h("section", {}, h("details", { open }, heading, content));
}

/** A folded value as JSON; nothing for an object without keys. */
export function foldedJson(value) {
  if (Object.keys(value).length === 0) return "";
  return h("details", {}, h("summary", {}, translate("show")), h("pre", {}, prettyJson(value)));
}

/** A box with paragraphs; `tone`: "", "good", "wait" or "bad". */
export const box = (tone, ...lines) =>
  h("div", { class: `box ${tone}` }, paragraphs(lines.filter(Boolean)));

/** A box that screen readers read out immediately. */
export const alertBox = (...lines) =>
  h("div", { class: "box bad", role: "alert" }, paragraphs(lines));

/** The problems of a refused request, one line each, and then each further reason's next step. */
export function problemLines(error, limit) {
  const problems = (error.problems ?? []).slice(0, limit);
  const lines = problems.map(({ path, node, rule, suggestion }) => {
    const finder = node ? `${node}: ` : "";
    const hintText = suggestion ? ` → ${suggestion}` : "";
    return [code(path), ` ${finder}${rule}${hintText}`];
  });
  return [...lines, ...stepLines(problems, error.reason)];
}

function stepLines(problems, shownReason) {
  const steps = new Map(problems.map(({ reason, next_step: step }) => [reason, step]));
  steps.delete(shownReason);
  const given = [...steps].filter(([, step]) => step);
  return given.map(([reason, step]) => [code(reason), ` ${translate("next step")}: ${step}`]);
}

export const errorBox = (error) => alertBox(error.message, ...problemLines(error));

/**
 * A table. `columns`: keys of words.js or elements; cells: texts, numbers, elements or lists of them;
 * `empty`: key of the text that replaces a table without rows.
 */
export function table(columns, rows, empty = "no rows") {
  const headers = columns.map((name) => (name instanceof Node ? name : translate(name)));
  return tableOf(headers, rows, empty, "scroll");
}

/** A table of a user's data, with the names of its own columns. */
export const dataTable = (columns, rows, empty = "no rows") =>
  tableOf(columns, rows, empty, "scroll data");

function tableOf(headers, rows, empty, cssClass) {
  if (rows.length === 0) return hint(translate(empty));
  const labels = headers.map((header) => (header instanceof Node ? header.textContent : header));
  const headerCells = headers.map(headerCell);
  const bodyRows = rows.map((cells) => {
    const bodyCells = cells.map((cell, index) => tableCell(cell, labels[index]));
    return h("tr", {}, bodyCells);
  });
  const region = {
    class: cssClass,
    tabindex: "0", // wide tables scroll by keyboard
    role: "region",
    "aria-label": labels.filter(Boolean).join(", "),
  };
  const head = h("thead", {}, h("tr", {}, headerCells));
  return h("div", region, h("table", {}, head, h("tbody", {}, bodyRows)));
}

/** The header of a column; one without a name, such as that of buttons, is no header to screen readers. */
const headerCell = (header) => (header === "" ? h("td") : h("th", { scope: "col" }, header));

const tableCell = (cell, label) => h("td", { "data-label": label || null }, content(cell));

const content = (value) =>
  value instanceof Node || Array.isArray(value) ? value : displayValue(value);

/** Names and values; `pairs`: keys of words.js with texts, numbers or elements. Empty values are left out. */
export function facts(pairs) {
  return dataFacts(pairs.map(([name, value]) => [translate(name), value]));
}

/** Names and values of a user's data. */
export function dataFacts(pairs) {
  const present = pairs.filter(([, value]) => value != null && value !== "");
  const items = present.map(([name, value]) => [h("dt", {}, name), h("dd", {}, content(value))]);
  return h("dl", {}, items);
}

/** Texts below each other, which may contain commas. */
export function textLines(texts) {
  return h(
    "div",
    {},
    texts.map((text) => h("div", {}, text)),
  );
}

/** The steps of a trial, each with its finding and remedy. */
export function stepTable(steps, nameOf) {
  const rows = steps.map((step) => [
    nameOf(step.name),
    checkBadge(step.result),
    [step.found, step.cause && hint(step.cause)],
    step.remedy || "",
  ]);
  return table(["step", "state", "found", "next step"], rows);
}
