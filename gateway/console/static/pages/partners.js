// Routes to partners: their test, changes and history, and the certificates with their ends.
import { get, segment } from "../api.js";
import { askForm, askText, button, inputField } from "../dialogs.js";
import { append, h, setChildren } from "../dom.js";
import { displayValue, timestamp } from "../format.js";
import { apiWord, translate } from "../language.js";
import { hasRole } from "../roles.js";
import { badge, box, card, code, expiryBadge, faintCode, hint, row, table } from "../widgets.js";
import { invitationForm } from "./invitation.js";
import {
  changeRoutes,
  INVITATION_ACCEPTED,
  proofOf,
  sealingOf,
  testButton,
  TLS_FIELDS,
} from "./routes.js";

const ROUTE_FIELDS = [
  { key: "url", label: "address", type: "url", placeholder: "https://gw.bank.example:7380" },
  { key: "via", label: "through" },
  { key: "institution", label: "institution" },
  ...TLS_FIELDS,
];
const SIGNING_CHOICES = ["required", "accepted", "off"];

export async function fillPage(body, { session, reload }) {
  const [routing, { versions }, { certificates }] = await Promise.all([
    get("/api/v1/routes?limit=1000"),
    get("/api/v1/route-versions"),
    get("/api/v1/certificates"),
  ]);
  const testResult = h("div");
  append(
    body,
    h("h1", {}, translate("page partners")),
    routing.problems.length > 0 && box("bad", ...routing.problems.map(displayValue)),
    card(
      "",
      routeTable(routing, session, testResult, reload),
      hasRole(session) && newPartner(routing, session, reload),
    ),
    testResult,
    card("certificates", certificateTable(certificates)),
    card("history", versionTable(versions, routing.version, session, reload)),
  );
}

// ---------------------------------------------------------------- routes

function routeTable(routing, session, testResult, reload) {
  const rows = routing.routes.map((route) => [
    h("a", { href: `#/partners/${segment(route.node)}`, class: "mono" }, route.node),
    route.institution,
    route.url,
    route.via,
    route.profile,
    proofOf(route),
    sealingOf(route),
    badge(route.enabled ? "enabled" : "disabled"),
    row(
      hasRole(session, "platform") && testButton(route, testResult),
      hasRole(session) && [editButton(route, routing, reload), switchButton(route, reload)],
    ),
  ]);
  const columns = [
    "node",
    "institution",
    "address",
    "through",
    "profile",
    "proof",
    "sealing",
    "state",
    "",
  ];
  return table(columns, rows, "no partners");
}

function switchButton({ node, enabled }, reload) {
  const verb = enabled ? "disable" : "enable";
  return button(verb, async () => {
    const question = translate(`${verb}?`, { what: node });
    const reason = await askText(question, { danger: enabled });
    if (reason === null) return;
    const change = { route: { enabled: !enabled }, reason };
    await changeRoutes("PATCH", `/api/v1/routes/${segment(node)}`, change, reload);
  });
}

// ---------------------------------------------------------------- form of a route

const editButton = (route, routing, reload) =>
  button("edit", () => {
    const send = (form) => saveRoute(form, route, routing.version, reload);
    return askRoute(route, send);
  });

const addButton = (routing, reload) =>
  button("add a route", () => {
    // A route that exists is changed: replacing it would lose the fields that the form does not have.
    const send = (form) => {
      const existing = routing.routes.find(({ node }) => node === textOf(form, "node"));
      return saveRoute(form, existing, routing.version, reload);
    };
    return askRoute(null, send);
  });

function askRoute(route, send) {
  const inputs = ROUTE_FIELDS.map(({ key, label, ...attributes }) =>
    inputField(key, label, { value: route?.[key] ?? "", ...attributes }),
  );
  const fields = [
    !route && inputField("node", "node", { required: true }),
    inputs,
    signingChoice(route),
    inputField("reason", "reason"),
  ];
  const question = route ? route.node : translate("add a route");
  return askForm(question, fields, { yes: "save", send });
}

/** A choice whether requests of a route need a signature; those of a new route do by default. */
function signingChoice(route) {
  const words = route ? SIGNING_CHOICES : SIGNING_CHOICES.slice(1);
  const defaultText = route ? translate("as the keys say") : apiWord("required");
  const options = words.map((word) =>
    h("option", { value: word, selected: word === route?.signing }, apiWord(word)),
  );
  return h(
    "label",
    {},
    translate("signing"),
    h(
      "select",
      { name: "signing" },
      !route?.signing && h("option", { value: "" }, defaultText),
      options,
    ),
    h("span", { class: "faint" }, translate("about signing")),
  );
}

/** Sends the fields of the form that differ from the route, or all filled ones if there is no route. */
async function saveRoute(form, route, version, reload) {
  const keys = [...ROUTE_FIELDS.map(({ key }) => key), "signing"];
  const isEdited = !form.has("node"); // the form of a new route leaves empty fields as they are
  const changes = {};
  for (const key of keys) {
    const text = textOf(form, key);
    const differs = text !== (route?.[key] ?? null);
    if (differs && (isEdited || text)) changes[key] = text;
  }
  const node = route?.node ?? textOf(form, "node");
  const path = `/api/v1/routes/${segment(node)}?version=${version}`;
  const body = { route: changes, reason: textOf(form, "reason") ?? "" };
  await changeRoutes(route ? "PATCH" : "PUT", path, body, reload);
}

const textOf = (form, key) => form.get(key).trim() || null;

/** The ways to a new partner; the form of an invitation is made when it is unfolded. */
function newPartner(routing, session, reload) {
  const form = h("div");
  const fill = () => setChildren(form, invitationForm(session, reload));
  const details = h(
    "details",
    {},
    h("summary", {}, h("strong", {}, translate("new partner"))),
    row(h("a", { href: "#/invitation" }, translate("page invitation"))),
    form,
    row(addButton(routing, reload)),
  );
  details.addEventListener("toggle", fill, { once: true });
  return details;
}

// ---------------------------------------------------------------- certificates

function certificateTable(certificates) {
  const rows = certificates.map(({ where, file, ends, cause, days }) => [
    code(where),
    code(file),
    h("div", {}, timestamp(ends), cause && hint(cause)),
    expiryBadge(days),
  ]);
  return table(["where", "file", "until", "days left"], rows, "no certificates");
}

// ---------------------------------------------------------------- history

function versionTable(versions, currentVersion, session, reload) {
  const rows = versions.map((version) => [
    version.version,
    timestamp(version.at),
    version.source === "file" ? apiWord(version.author) : version.author,
    version.reason === INVITATION_ACCEPTED ? apiWord(INVITATION_ACCEPTED) : version.reason,
    version.changes.length > 0 ? changeList(version.changes) : "",
    hasRole(session) && version.version !== currentVersion
      ? rollbackButton(version.version, reload)
      : "",
  ]);
  return table(["version", "time", "by", "why", "changes", ""], rows);
}

function changeList(changes) {
  const placeOf = ({ node, field }) => [node, field].filter(Boolean).join(".");
  const lines = changes.map((change) => {
    const before = faintCode(displayValue(change.before));
    const after = code(displayValue(change.after));
    return h("p", {}, code(placeOf(change)), " ", before, " → ", after);
  });
  return h("details", {}, h("summary", {}, changes.map(placeOf).join(", ")), lines);
}

function rollbackButton(version, reload) {
  return button("back to this", async () => {
    const reason = await askText(translate("back?", { version }));
    if (reason === null) return;
    const path = `/api/v1/route-versions/${version}/rollback`;
    await changeRoutes("POST", path, { reason }, reload);
  });
}
