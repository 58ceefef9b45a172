// The audit log, newest entries first, filtered by user and by action.
import { get, query } from "../api.js";
import { button, showError } from "../dialogs.js";
import { h, setChildren } from "../dom.js";
import { timestamp } from "../format.js";
import { apiWord, translate } from "../language.js";
import { card, code, foldedJson, row, table } from "../widgets.js";

const PAGE_SIZE = 50;

export async function auditCard() {
  const filter = { who: "", action: "" };
  const list = h("div");
  const setFilter = (name, text) => {
    filter[name] = text;
    loadEntries(list, filter).catch(showError);
  };
  await loadEntries(list, filter);
  return card(
    "audit",
    row(filterInput("who", "by", setFilter), filterInput("action", "what", setFilter)),
    list,
  );
}

function filterInput(name, label, setFilter) {
  const change = (event) => setFilter(name, event.target.value.trim());
  return h("label", {}, translate(label), h("input", { name, onchange: change }));
}

/** Shows the newest entries, or those after `after` below the ones that are shown. */
async function loadEntries(list, filter, after = "", previous = []) {
  const page = await get(`/api/v1/audit?${query({ ...filter, after, limit: PAGE_SIZE })}`);
  const entries = [...previous, ...page.audit];
  const loadOlder = () => loadEntries(list, filter, page.next, entries);
  setChildren(list, entryTable(entries), page.next != null && button("older", loadOlder));
}

function entryTable(entries) {
  const rows = entries.map((entry) => [
    timestamp(entry.at),
    userName(entry.who),
    actionText(entry),
    outcomeText(entry),
    foldedJson(entry.detail),
  ]);
  return table(["time", "by", "what", "result", "detail"], rows, "no audit");
}

function userName(who) {
  if (who === "somebody") return apiWord(who);
  return who.replace(/ \(command line\)$/, apiWord(" (command line)"));
}

function actionText({ action, in_words: description }) {
  if (description === action) return action;
  return [description, h("br"), code(action)];
}

function outcomeText({ status, code: errorCode, detail }) {
  const isAccepted = status < 400 && [null, 0, 200].includes(errorCode);
  if (!isAccepted) return `${apiWord("refused")} (${errorCode || status})`;
  return apiWord(detail.dry_run ? "dry run" : "done");
}
