// What every page uses: elements, requests, words, numbers and times as people read them.
import { words } from "./words.js";

const kept = (key) => {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
};
export const languages = { en: "English", zh: "中文" };
let language = kept("language") || (navigator.language.startsWith("zh") ? "zh" : "en");
if (!languages[language]) language = "en";
document.documentElement.lang = language === "zh" ? "zh-CN" : "en";

export const lang = () => language;
export function speak(code) {
  try {
    localStorage.setItem("language", code);
  } catch {
    /* private browsing */
  }
  location.reload();
}

/** The words of a key in the user's language; {name} is replaced by the value of that name. */
export function t(key, values = {}) {
  const text = words[language][key] ?? words.en[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

/** The words for a state or another fixed word of the API; the word itself where there are none. */
export const said = (word) => words[language][`=${word}`] ?? word;

/** What a step of a test, or a check of a plan, is called. */
export const step = (name) => said(`step ${name}`).replace(/^step /, "");

/** An element: texts become text nodes, so nothing from outside is ever read as HTML. */
export function h(tag, attributes = {}, ...children) {
  const made = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  return add(made, ...children);
}

/** Appends what is there. */
export function add(place, ...children) {
  place.append(...children.flat(9).filter((child) => child != null && child !== false));
  return place;
}

/** Puts what is there in the place of what was. */
export function fill(place, ...children) {
  place.replaceChildren();
  return add(place, ...children);
}

export class Refused extends Error {
  constructor(status, body) {
    super(body?.message ?? body?.msg ?? `HTTP ${status}`);
    this.status = status;
    this.reason = body?.data?.reason ?? "";
    this.problems = body?.code === 400 ? (body.data?.problems ?? []) : []; // of nodes that refuse a job, the message says more
    if (this.problems.length && body.data.next_step)
      this.message = `${this.reason}: ${body.data.next_step}`; // the rest is in the problems
  }
}

export const segment = encodeURIComponent;

/** One request to the gateway; returns its JSON. Throws Refused. */
export async function call(method, path, body, options = {}) {
  const headers = { "x-console": "1", "accept-language": language, ...options.headers };
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
    });
  } catch {
    throw new Refused(0, { msg: t("no response") });
  }
  const found = await answer.json().catch(() => null);
  const code = found && !Array.isArray(found) ? found.code : undefined;
  if (!answer.ok || (typeof code === "number" && code !== 0 && code !== 200)) {
    if (answer.status === 401 && !options.quiet) dispatchEvent(new Event("logged-out"));
    throw new Refused(answer.status, found);
  }
  return found;
}
export const get = (path) => call("GET", path);

const good = new Set([
  "SUCCEEDED",
  "SUCCESS",
  "APPROVED",
  "ok",
  "good",
  "passes",
  "enabled",
  "in force",
  "HELD",
]);
const bad = new Set([
  "FAILED",
  "REJECTED",
  "STOPPED",
  "failed",
  "bad",
  "problem",
  "TERMINATED",
  "revoked",
]);
const waits = new Set(["PENDING", "WAITING", "APPLIED", "waits", "warning", "unknown"]);
export const tone = (state) =>
  good.has(state)
    ? "good"
    : bad.has(state)
      ? "bad"
      : waits.has(state)
        ? "wait"
        : ["FINISHED", "not run", "skipped", "disabled", "retired", "expired"].includes(state)
          ? ""
          : "busy";
/** The state of what passes a check, or not; of what is well, "ok" says something else. */
export const checked = (result) => badge(result === "ok" ? "passes" : result);
export const badge = (state, title) =>
  h("span", { class: `badge ${tone(state)}`, title }, said(state));

export const moment = (text) => {
  if (!text) return "–";
  const at = new Date(text);
  const format = {
    year: "numeric",
    month: "2-digit",
    day: "2-digit",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    hour12: false,
  };
  return h(
    "time",
    { datetime: text, title: text },
    at.toLocaleString(language === "zh" ? "zh-CN" : "en-GB", format),
  );
};
export function lasted(from, to) {
  if (!from) return "–";
  const seconds = Math.max(0, (to ? new Date(to) : new Date()) - new Date(from)) / 1000;
  const [h, min, s] = language === "zh" ? [" 小时", " 分", " 秒"] : [" h", " min", " s"];
  if (seconds < 60) return `${seconds.toFixed(1)}${s}`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}${min} ${Math.floor(seconds % 60)}${s}`;
  return `${Math.floor(seconds / 3600)}${h} ${Math.floor((seconds % 3600) / 60)}${min}`;
}
export const bytes = (n) => {
  if (n == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (n >= 1024 && place < 4) {
    n /= 1024;
    place += 1;
  }
  return `${place ? n.toFixed(1) : n} ${units[place]}`;
};
/** What stands between the members of a list. */
export const between = language === "zh" ? "、" : ", ";
export const value = (found) =>
  typeof found === "number" && !Number.isInteger(found)
    ? String(Number(found.toPrecision(6)))
    : found === null || found === undefined
      ? "–"
      : typeof found === "object"
        ? JSON.stringify(found)
        : String(found);

/** A table; columns are words of words.js or elements, cells texts, numbers or elements. `raw`: a user's data, with its own columns. */
export function table(columns, rows, empty = "no rows", raw = false) {
  const names = columns.map((name) => (raw || name instanceof Node ? name : t(name))),
    texts = names.map((name) => (name instanceof Node ? name.textContent : name));
  if (!rows.length) return h("p", { class: "faint" }, t(empty));
  const cell = (found, at) =>
    h(
      "td",
      { "data-label": texts[at] || null },
      found instanceof Node || Array.isArray(found) ? found : value(found),
    );
  return h(
    "div",
    {
      class: raw ? "scroll data" : "scroll",
      tabindex: "0",
      role: "region",
      "aria-label": texts.filter(Boolean).join(", "),
    },
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          names.map((name) => h("th", { scope: "col" }, name)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) => h("tr", {}, row.map(cell))),
      ),
    ),
  );
}
export const facts = (pairs, raw = false) =>
  h(
    "dl",
    {},
    pairs
      .filter(([, found]) => found != null && found !== "")
      .map(([name, found]) => [
        h("dt", {}, raw ? name : t(name)),
        h("dd", {}, found instanceof Node || Array.isArray(found) ? found : value(found)),
      ]),
  );
export const card = (title, ...children) =>
  h("section", {}, title && h("h2", {}, t(title)), children);

export function notice(kind, ...lines) {
  const box = h(
    "div",
    { class: `box ${kind}` },
    h(
      "button",
      { type: "button", class: "close", "aria-label": t("close"), onclick: () => box.remove() },
      "×",
    ),
    lines.map((line) => h("p", {}, line)),
  );
  document.getElementById("notices").append(box);
  setTimeout(() => box.remove(), kind === "good" ? 5000 : 15000);
}
/** Takes refusals away that belong to what was done before. */
export const forget = () =>
  document.querySelectorAll("#notices .bad").forEach((box) => box.remove());
const listed = (error, most) =>
  (error.problems ?? [])
    .slice(0, most)
    .map((p) => [h("code", {}, p.path), ` ${p.rule}${p.suggestion ? ` → ${p.suggestion}` : ""}`]);
export function refused(error) {
  if (!(error instanceof Refused)) console.error(error);
  if (error.status !== 401) notice("bad", error.message, ...listed(error, 8));
}
export const problems = (error) =>
  h(
    "div",
    { class: "box bad", role: "alert" },
    h("p", {}, error.message),
    listed(error).map((one) => h("p", {}, one)),
  );
/** Says that something was done; `verb`: the label of its button. */
export const done = (verb, what) =>
  notice("good", t("done", { verb: t(verb).toLowerCase(), what }));

/** A button that does something once at a time, and shows why where it is refused. */
export function button(label, work, kind = "") {
  return h(
    "button",
    {
      type: "button",
      class: kind,
      onclick: async (event) => {
        const pressed = event.currentTarget;
        pressed.disabled = true;
        try {
          await work();
        } catch (error) {
          refused(error);
        } finally {
          pressed.disabled = false;
        }
      },
    },
    t(label),
  );
}

/** A question with some fields; resolves with what was given, or null where it was cancelled. */
export function ask(question, fields, { danger = false, yes = "yes" } = {}) {
  return new Promise((resolve) => {
    const form = h(
      "form",
      { method: "dialog" },
      h("p", {}, question),
      fields && h("div", { class: "fields" }, fields),
      h(
        "div",
        { class: "row" },
        h("button", { class: danger ? "danger" : "main", value: "yes" }, t(yes)),
        h("button", { value: "", formnovalidate: true }, t("cancel")),
      ),
    );
    const dialog = h("dialog", { "aria-label": question }, form);
    forget(); // of the try before
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes" ? new FormData(form) : null);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
export const entry = (name, label, more = {}) =>
  h("label", {}, t(label), h("input", { name, maxlength: 1000, ...more }));

/** Ask for a yes, with a reason or another text where one is wanted; resolves with that, or null. */
export async function confirmed(
  question,
  { reason = false, danger = false, input = "", value = "" } = {},
) {
  const given = await ask(
    question,
    (reason || input) && entry("text", input || "reason", { value }),
    { danger },
  );
  return given && (given.get("text") ?? "");
}
