// One partner: its route, contracts and permits with their counts, grants, and what it offers.
import { get, getAll, request, segment } from "../api.js";
import { askForm, askText, button, inputField, notify, notifyDone } from "../dialogs.js";
import { append, h } from "../dom.js";
import { displayValue, timestamp } from "../format.js";
import { apiWord, translate } from "../language.js";
import { buttonLink, datasetLink } from "../links.js";
import { hasRole } from "../roles.js";
import { badge, card, dataTable, daysLeft, facts, hint, row, table } from "../widgets.js";
import { fillOwnAddress } from "./invitation.js";
import { reportCard } from "./partner_report.js";
import { linksOf, paceOf, proofOf, sealingOf, testButton, trafficOf } from "./routes.js";

const DAY_MS = 86_400_000;
const CONTRACT_DAYS = 365;
// What a partner can offer: the kind of an application for it, and the field with its id.
const OFFERS = {
  datasets: { kind: "dataset", id: "dataset_id" },
  projects: { kind: "project", id: "project_id" },
  components: { kind: "", id: "" },
};

export async function fillPage(body, { session, ids: [node], reload }) {
  const [view, applications, grants, reports] = await Promise.all([
    get(`/api/v1/routes/${segment(node)}`),
    getAll("/api/v1/applications", "applications", { partner: node }),
    getAll("/api/v1/dataset-grants", "grants", { node }),
    getAll("/api/v1/partner-reports", "reports", { node }),
  ]);
  const { route, traffic, sending, receiving } = view;
  const test = h("div");
  append(
    body,
    row(h("h1", { class: "mono" }, node), badge(route.enabled ? "enabled" : "disabled")),
    routeCard(route, { traffic, sending, receiving }, session, test),
    test,
    reportCard(reports[0], session, reload),
    card(
      "contracts and permits",
      applicationTable(applications, session, reload),
      hasRole(session) && row(contractButton(route, reload)),
    ),
    card("grants to it", hint(translate("about grants to it")), grantTable(grants, applications)),
    offersCard(node, hasRole(session)),
  );
}

function routeCard(route, { traffic, sending, receiving }, session, test) {
  return card(
    "",
    facts([
      ["institution", route.institution],
      ["address", route.url],
      ["through", route.via],
      ["links", linksOf(route)],
      ["profile", route.profile],
      ["proof", proofOf(route)],
      ["sealing", sealingOf(route)],
      ["bytes today", trafficOf(traffic.today)],
      ["bytes this month", trafficOf(traffic.month)],
      ["sending", sending && paceOf(sending)],
      ["receiving", receiving && paceOf(receiving)],
    ]),
    row(
      hasRole(session, "platform") && testButton(route, test),
      buttonLink(`#/jobs?partner=${segment(route.node)}`, translate("page jobs")),
    ),
  );
}

// ---------------------------------------------------------------- contracts, permits and grants

const APPLICATION_COLUMNS = [
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
    hasRole(session) && actionOf(application, reload),
  ]);
  return table(APPLICATION_COLUMNS, rows, "no applications");
}

/** What an admin can do with an application: end it, or decide on it where all details stand. */
function actionOf(application, reload) {
  const { side, status } = application;
  if (status === "APPROVED") return endButton(application, reload);
  if (side === "theirs" && status === "APPLIED") {
    return buttonLink("#/approvals", translate("page approvals"));
  }
  return "";
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

function grantTable(grants, applications) {
  const rows = grants.map((grant) => [
    datasetLink(grant.dataset_id),
    badge(grant.state),
    timestamp(grant.granted_at),
    grant.granted_by,
    grant.reason,
    jobsOf(grant, applications),
    [timestamp(grant.expires_at), grant.state === "in force" && daysLeft(grant.expires_at)],
  ]);
  const columns = ["dataset", "state", "granted", "by", "why", "jobs used", "expires"];
  return table(columns, rows, "no grants to it");
}

/** The jobs of the permit by which a grant was made; one that a person made has no limit. */
function jobsOf(grant, applications) {
  const isItsPermit = ({ kind, side, subject, status }) =>
    kind === "dataset" &&
    side === "theirs" &&
    subject === grant.dataset_id &&
    ["APPROVED", "TERMINATED"].includes(status);
  return applications.findLast(isItsPermit)?.jobs_in_words ?? translate("any number of jobs");
}

/** Applies for a contract, without which a partner answers no other application. */
function contractButton({ node, url, keys }, reload) {
  const apply = async () => {
    const address = inputField("address", "own address");
    fillOwnAddress(address.querySelector("input"));
    const fields = [
      address,
      inputField("key", "their key", { value: keys[0] ?? "" }),
      inputField("days", "valid days", { type: "number", min: 1, value: CONTRACT_DAYS }),
    ];
    const question = translate("apply for contract?", { node });
    const send = (form) =>
      request("POST", "/api/v1/applications", {
        kind: "contract",
        partner: node,
        url,
        key: form.get("key").trim(),
        address: form.get("address").trim(),
        ...expiry(form),
      });
    if (!(await askForm(question, fields, { yes: "apply", send }))) return;
    notify("good", translate("applied", { node }));
    await reload();
  };
  return button("apply for contract", apply);
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
    const send = (form) =>
      request("POST", "/api/v1/applications", applicationOf(form, node, kind, subject));
    if (!(await askForm(question, fields, { yes: "apply", send }))) return;
    notify("good", translate("applied", { node }));
  };
  return button("apply", apply);
}

function applicationOf(form, partner, kind, subject) {
  const jobs = Number(form.get("jobs"));
  const application = { kind, partner, subject, ...expiry(form) };
  if (jobs) application.jobs = jobs;
  return application;
}

/** The end of an application by the days of a form; nothing without days. */
function expiry(form) {
  const days = Number(form.get("days"));
  if (!days) return {};
  return { expires_at: new Date(Date.now() + days * DAY_MS).toISOString() };
}
