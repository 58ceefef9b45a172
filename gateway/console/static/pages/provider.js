// One algorithm provider: its images, components and history.
import { get, getAll, request, segment } from "../api.js";
import { askText, button, notifyDone } from "../dialogs.js";
import { append, h } from "../dom.js";
import { displayValue, timestamp } from "../format.js";
import { apiWord, listSeparator, translate } from "../language.js";
import { hasRole } from "../roles.js";
import { badge, card, code, facts, row, table, textLines } from "../widgets.js";
import { differences } from "./differences.js";
import { changeTable, warningTable } from "./provider_upload.js";

export async function fillPage(body, { session, ids: [name], reload }) {
  const path = `/api/v1/providers/${segment(name)}`;
  const [provider, { history }, providers] = await Promise.all([
    get(path),
    get(`${path}/history`),
    getAll("/api/v1/providers", "providers"),
  ]);
  append(
    body,
    row(h("h1", {}, provider.provider_name), badge(provider.retired ? "retired" : "enabled")),
    overview(provider, path, session, reload),
    provider.warnings.length > 0 && card("warnings", warningTable(provider.warnings)),
    Object.values(provider.components_description).map(component),
    versionsCard(provider, providers),
    historyCard(path, history),
  );
}

function overview(provider, path, session, reload) {
  const imageRows = Object.keys(provider.images).map((image) => [
    code(image),
    code(provider.digests[image] ?? "–"),
  ]);
  const act = (verb, endpoint, danger = false) => {
    const what = provider.provider_name;
    return actionButton(verb, { path: `${path}/${endpoint}`, what, danger, reload });
  };
  return card(
    "",
    facts([
      ["owner", provider.owner || apiWord("admins")],
      ["revision", provider.revision],
      ["protocol", provider.protocol],
      ["engine kinds", (provider.metadata.engine_kinds ?? []).join(listSeparator)],
      ["extra rights", extraRights(provider.granted)],
      ["attestation", attestationText(provider.attestation)],
      ["used by", provider.jobs.join(listSeparator)],
    ]),
    table(["image", "digest"], imageRows),
    hasRole(session, "vendor") &&
      row(
        act("approve image", "approve"),
        provider.retired ? act("unretire", "unretire") : act("retire", "retire", true),
      ),
  );
}

function attestationText(platform) {
  if (!platform) return translate("no platform demanded");
  return `${platform}: ${translate("no platform verified")}`;
}

function extraRights(granted) {
  return granted.length > 0 ? textLines(granted) : translate("no extra rights");
}

function actionButton(verb, { path, what, danger, reload }) {
  const act = async () => {
    const reason = await askText(translate(`${verb}?`), { danger });
    if (reason === null) return;
    await request("POST", path, { reason });
    notifyDone(verb, what);
    await reload();
  };
  return button(verb, act, danger ? "danger" : "");
}

function component(description) {
  const { componentName, title, description: about } = description;
  const texts = new Set([title, about].filter(Boolean)); // often the same
  const parameterRows = (description.inputParam ?? []).map((parameter) => [
    parameter.name,
    parameter.type,
    displayValue(parameter.defaultValue),
    parameter.description ?? parameter.title,
  ]);
  const details = h(
    "details",
    {},
    h("summary", {}, h("strong", {}, componentName), ` ${[...texts].join(" ")}`),
    facts([
      ["roles", (description.roleList ?? []).join(listSeparator)],
      ["storages", (description.storageEngine ?? []).join(listSeparator)],
    ]),
    table(["name", "type", "default", "description"], parameterRows),
  );
  return h("section", {}, details);
}

// ---------------------------------------------------------------- other versions

/** The other versions of the provider, each with its difference to this one. */
function versionsCard(provider, providers) {
  const others = providers.filter(
    ({ name, provider_name: key }) => name === provider.name && key !== provider.provider_name,
  );
  const place = h("div");
  const rows = others.map(({ provider_name: key, retired }) => [
    h("a", { href: `#/providers/${segment(key)}` }, key),
    badge(retired ? "retired" : "enabled"),
    button("difference", () => showVersionDifference(key, provider, place)),
  ]);
  return others.length > 0 && card("other versions", table(["provider", "state", ""], rows), place);
}

async function showVersionDifference(otherKey, provider, place) {
  const other = await get(`/api/v1/providers/${segment(otherKey)}`);
  const changes = differences(comparable(other), comparable(provider));
  place.replaceChildren(
    h("h3", {}, `${translate("difference")} ${otherKey} → ${provider.provider_name}`),
    changeTable(changes),
  );
}

const comparable = ({ metadata, protocol, components_description: components }) => ({
  metadata,
  protocol,
  components,
});

// ---------------------------------------------------------------- history

function historyCard(path, entries) {
  const difference = h("div");
  const rows = entries.map((entry) => [
    entry.revision,
    timestamp(entry.at),
    entry.author,
    entry.in_words,
    entry.reason,
    entry.revision > 1
      ? button("difference", () => showDifference(path, entry.revision, difference))
      : "",
  ]);
  return card("history", table(["revision", "time", "by", "what", "why", ""], rows), difference);
}

/** Shows the changes between a revision and the one before. */
async function showDifference(path, revision, place) {
  const previous = revision - 1;
  const { changes } = await get(`${path}/diff?since=${previous}&until=${revision}`);
  place.replaceChildren(
    h("h3", {}, `${translate("difference")} ${previous} → ${revision}`),
    changeTable(changes),
  );
  place.scrollIntoView({ block: "nearest" });
}
