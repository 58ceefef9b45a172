// One partner: its route, contracts and permits with their counts, grants, and what it offers.
import { get, getAll, request, segment } from "../api.js";
import { askForm, askText, button, inputField, notify, notifyDone } from "../dialogs.js";
import { append, h } from "../dom.js";
import { displayValue, timestamp } from "../format.js";
import { apiWord, translate } from "../language.js";
import { buttonLink, datasetLink } from "../links.js";
import { hasRole } from "../roles.js";
import { badge, card, code, dataTable, expiryBadge, facts, hint, row, table } from "../widgets.js";
import { reportCard } from "./partner_report.js";
import { testButton } from "./routes.js";

const DAY_MS = 86_400_000;
// What a partner can offer: the kind of an application for it, and the field with its id.
const OFFERS = {
  datasets: { kind: "dataset", id: "dataset_id" },
  projects: { kind: "project", id: "project_id" },
  components: { kind: "", id: "" },
};

export async function fillPage(body, { session, ids: [node], reload }) {
  const [{ route }, applications, grants, reports] = await Promise.all([
    get(`/api/v1/routes/${segment(node)}`),
    getAll("/api/v1/applications", "applications", { partner: node }),
    getAll("/api/v1/dataset-grants", "grants", { node }),
    getAll("/api/v1/partner-reports", "reports", { node }),
  ]);
  const test = h("div");
  append(
    body,
    row(h("h1", { class: "mono" }, node), badge(route.enabled ? "enabled" : "disabled")),
    card(
      "",
      facts([
        ["institution", route.institution],
        ["address", route.url],
        ["through", route.via],
        ["profile", route.profile],
      ]),
      row(
        hasRole(session, "platform") && testButton(route, test),
        buttonLink(`#/jobs?partner=${segment(node)}`, translate("page jobs")),
      ),
    ),
    test,
    reportCard(reports[0], session, reload),
    card("contracts and permits", applicationTable(applications, session, reload)),
    card("grants to it", grantTable(grants)),
    offersCard(node, hasRole(session)),
  );
}

// ---------------------------------------------------------------- contracts, permits and grants

function applicationTable(applications, session, reload) {
  const rows = applications.map((application) => [
    application.number,
    apiWord(application.kind),
    apiWord(application.side),
    application.subject,
    badge(application.status),
    application.jobs_in_words,
    [timestamp(application.expires_at), daysLeft(application.expires_at)],
    application.trouble || application.reason,
    hasRole(session) && application.status === "APPROVED" ? endButton(application, reload) : "",
  ]);
  const columns = [
    "number",
    "kind",
    "used by side",
    "subject",
    "state",
    "jobs used",
    "expires",
    "why",
    "",
  ];
  return table(columns, rows, "no applications");
}

/** The days until a time, if there is one. */
function daysLeft(end) {
  if (!end) return "";
  const days = Math.floor((Date.parse(end) - Date.now()) / DAY_MS);
  return h("div", {}, expiryBadge(days), ` ${translate("days")}`);
}

function endButton({ number, kind, subject }, reload) {
  const end = async () => {
    const what = `${apiWord(kind)} ${subject}`;
    const reason = await askText(translate("terminate?", { what }), { danger: true });
    if (reason === null) return;
    await request("POST", `/api/v1/applications/${segment(number)}/terminate`, { reason });
    notifyDone("terminate", what);
    await reload();
  };
  return button("terminate", end, "danger");
}

function grantTable(grants) {
  const rows = grants.map((grant) => [
    datasetLink(grant.dataset_id),
    badge(grant.state),
    timestamp(grant.granted_at),
    grant.granted_by,
    grant.reason,
    [timestamp(grant.expires_at), grant.state === "in force" && daysLeft(grant.expires_at)].filter(
      Boolean,
    ),
  ]);
  const columns = ["dataset", "state", "granted", "by", "why", "expires"];
  return table(columns, rows, "no grants to it");
}

// ---------------------------------------------------------------- offers

function offersCard(node, canApply) {
  const place = h("div");
  const buttons = Object.keys(OFFERS).map((what) =>
    button(`offered ${what}`, () => showOffers(node, what, canApply, place)),
  );
  return card("offers", hint(translate("about offers")), row(buttons), place);
}

async function showOffers(node, what, canApply, place) {
  place.replaceChildren(hint(translate("loading")));
  try {
    const { records } = await get(`/api/v1/partners/${segment(node)}/${what}`);
    place.replaceChildren(offerTable(node, OFFERS[what], records, canApply));
  } catch (error) {
    place.replaceChildren();
    throw error;
  }
}

function offerTable(node, { kind, id }, records, canApply) {
  const fields = [...new Set(records.flatMap(Object.keys))];
  const rows = records.map((record) => [
    ...fields.map((field) => offerText(record[field])),
    canApply && kind ? applyButton(node, kind, String(record[id] ?? record.id ?? "")) : "",
  ]);
  return dataTable([...fields, ""], rows, "no offers");
}

/** A field of an offer; of objects in a list, such as columns, only their names. */
function offerText(value) {
  if (!Array.isArray(value)) return displayValue(value);
  return value.map((entry) => entry?.name ?? displayValue(entry)).join(", ");
}

function applyButton(node, kind, subject) {
  const apply = async () => {
    const fields = [
      inputField("days", "valid days", { type: "number", min: 1, value: 30 }),
      inputField("jobs", "most jobs", { type: "number", min: 1 }),
    ];
    const question = translate("apply?", { what: `${apiWord(kind)} ${subject}`, node });
    const form = await askForm(question, fields, { yes: "apply" });
    if (!form) return;
    await request("POST", "/api/v1/applications", applicationOf(form, node, kind, subject));
    notify("good", translate("applied", { node }));
  };
  return button("apply", apply);
}

function applicationOf(form, partner, kind, subject) {
  const days = Number(form.get("days"));
  const jobs = Number(form.get("jobs"));
  const application = { kind, partner, subject };
  if (days) application.expires_at = new Date(Date.now() + days * DAY_MS).toISOString();
  if (jobs) application.jobs = jobs;
  return application;
}
