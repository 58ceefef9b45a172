// One dataset: its facts, its first rows, and the partners that may use it.
import { get, request, segment } from "../api.js";
import { askForm, askText, button, inputField, notifyDone } from "../dialogs.js";
import { append, h } from "../dom.js";
import { byteSize, timestamp } from "../format.js";
import { listSeparator, translate } from "../language.js";
import { buttonLink } from "../links.js";
import { hasRole } from "../roles.js";
import {
  badge,
  box,
  card,
  code,
  dataTable,
  daysLeft,
  facts,
  hint,
  row,
  table,
} from "../widgets.js";

const STATISTICS_ROWS = 100; // rows of which statistics are computed

export async function fillPage(body, { session, ids: [namespace, name], reload }) {
  const path = `/api/v1/datasets/${segment(namespace)}/${segment(name)}`;
  const [dataset, { routes }] = await Promise.all([get(path), get("/api/v1/routes?limit=1000")]);
  const columns = h("div", {}, columnTable(dataset.columns));
  append(
    body,
    row(h("h1", {}, dataset.dataset_id), badge(stateOf(dataset))),
    dataset.changed && box("bad", dataset.changed),
    dataset.warnings.length > 0 && box("wait", ...dataset.warnings),
    overview(dataset, path, columns, session, reload),
    card("columns", columns),
    grants(dataset, path, routes, session, reload),
  );
}

function stateOf(dataset) {
  if (dataset.disabled) return "disabled";
  return dataset.there ? "enabled" : "bad";
}

const columnTable = (columns) =>
  table(
    ["name", "type"],
    columns.map(({ name, type }) => [name, type]),
  );

/** A button that asks for a reason, sends it, and loads the page again. */
function actionButton(label, { method = "POST", path, question, what, danger = false, reload }) {
  const act = async () => {
    const reason = await askText(translate(question, { what }), { danger });
    if (reason === null) return;
    await request(method, path, method === "DELETE" ? undefined : { reason });
    notifyDone(label, what);
    await reload();
  };
  return button(label, act, danger ? "danger" : "");
}

// ---------------------------------------------------------------- overview

function overview(dataset, path, columns, session, reload) {
  const preview = h("div");
  const readsRows = hasRole(session, "platform");
  return card(
    "",
    facts([
      ["rows", dataset.count],
      ["columns", dataset.columns.length],
      ["size", byteSize(dataset.size)],
      ["description", dataset.description],
      ["origin", dataset.origin],
      ["id column", dataset.match_id_name],
      ["label column", dataset.label_name],
      ["format", `${dataset.format} ${dataset.encoding} ${dataset.delimiter ?? ""}`],
      ["sha256", code(dataset.checksum)],
      ["created", timestamp(dataset.created_at)],
      ["used by", dataset.used_by.join(listSeparator)],
    ]),
    row(
      readsRows && button("statistics", () => showStatistics(dataset, path, columns)),
      readsRows && button("look", () => showPreview(path, preview)),
      readsRows && buttonLink(`${path}/download`, translate("download")),
      hasRole(session) && enableOrDisable(dataset, path, reload),
    ),
    preview,
  );
}

function enableOrDisable({ disabled, dataset_id: what }, path, reload) {
  const verb = disabled ? "enable" : "disable";
  return actionButton(verb, {
    path: `${path}/${verb}`,
    question: `${verb}?`,
    what,
    danger: !disabled,
    reload,
  });
}

async function showPreview(path, place) {
  const { columns, rows } = await get(`${path}/preview`);
  place.replaceChildren(dataTable(columns, rows));
}

async function showStatistics(dataset, path, place) {
  const preview = await get(`${path}/preview?rows=${STATISTICS_ROWS}`);
  const scope = translate("about statistics", { rows: preview.rows.length, all: dataset.count });
  place.replaceChildren(hint(scope), statisticsTable(dataset.columns, preview));
}

function statisticsTable(columns, { columns: names, rows }) {
  const statistics = columns.map(({ name, type }) => {
    const index = names.indexOf(name);
    const values = rows.map((cells) => cells[index]);
    return [name, type, ...statisticsOf(values, type)];
  });
  return table(["name", "type", "missing", "distinct", "least", "mean", "most"], statistics);
}

/** Counts of missing and of distinct values; of numbers the minimum, mean and maximum. */
function statisticsOf(values, type) {
  const present = values.filter((value) => value !== null && value !== undefined && value !== "");
  const missing = values.length - present.length;
  const distinct = new Set(present.map(String)).size;
  const numbers = present.map(Number);
  const isNumeric = present.length > 0 && type !== "string" && numbers.every(Number.isFinite);
  if (!isNumeric) return [missing, distinct, null, null, null];
  const sum = numbers.reduce((total, number) => total + number, 0);
  return [missing, distinct, Math.min(...numbers), sum / numbers.length, Math.max(...numbers)];
}

// ---------------------------------------------------------------- grants

function grants(dataset, path, routes, session, reload) {
  const isAdmin = hasRole(session);
  return card(
    "grants",
    dataset.grants_default === "open" && hint(translate("grants open")),
    grantTable(dataset, path, isAdmin, reload),
    isAdmin && routes.length > 0 && grantForm(dataset, path, routes, reload),
  );
}

function grantTable(dataset, path, isAdmin, reload) {
  const revokeButton = ({ node }) =>
    actionButton("revoke", {
      method: "DELETE",
      path: `${path}/grants/${segment(node)}`,
      question: "revoke?",
      what: dataset.dataset_id,
      danger: true,
      reload,
    });
  const rows = dataset.grants.map((grant) => [
    grant.node,
    badge(grant.state),
    timestamp(grant.granted_at),
    grant.granted_by,
    grant.reason,
    [timestamp(grant.expires_at), grant.state === "in force" && daysLeft(grant.expires_at)],
    isAdmin && grant.state === "in force" ? revokeButton(grant) : "",
  ]);
  const columns = ["partner", "state", "granted", "by", "why", "expires", ""];
  return table(columns, rows, "no grants");
}

function grantForm(dataset, path, routes, reload) {
  const options = routes.map(({ node, institution }) =>
    h("option", { value: node }, institution ? `${node} ${institution}` : node),
  );
  const partner = h("select", { "aria-label": translate("partner") }, options);
  const grant = async () => {
    const node = partner.value;
    const fields = [
      inputField("days", "grant days", { type: "number", min: 1, max: 36500 }),
      inputField("reason", "reason"),
    ];
    const send = (form) =>
      request("PUT", `${path}/grants/${segment(node)}`, {
        reason: form.get("reason").trim(),
        ...(form.get("days") && { days: Number(form.get("days")) }),
      });
    if (!(await askForm(translate("grant?", { node }), fields, { send }))) return;
    notifyDone("grant", `${dataset.dataset_id} → ${node}`);
    await reload();
  };
  return row(partner, button("grant", grant));
}
