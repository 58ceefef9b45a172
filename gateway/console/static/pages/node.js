// The node: its health, resources, engines, storages and audit log.
import { get } from "../api.js";
import { button } from "../dialogs.js";
import { append, h } from "../dom.js";
import { displayValue, timestamp } from "../format.js";
import { apiWord, language, listSeparator, stepName, translate } from "../language.js";
import { buttonLink, jobLink } from "../links.js";
import { hasRole } from "../roles.js";
import {
  badge,
  card,
  code,
  errorBox,
  facts,
  hint,
  paragraphs,
  row,
  stepTable,
  table,
} from "../widgets.js";
import { auditCard } from "./audit.js";

export async function fillPage(body, { session }) {
  const [health, engine, resources, { storages }] = await Promise.all([
    readHealth(),
    get("/api/v1/engine"),
    get("/api/v1/resources"),
    get("/api/v1/storages"),
  ]);
  const isAdmin = hasRole(session);
  append(
    body,
    row(
      h("h1", {}, `${translate("page node")} ${session.node}`),
      badge(health.ready ? "ok" : "bad"),
      isAdmin && buttonLink("#/tokens", translate("page tokens")),
      buttonLink("/docs", translate("API reference")),
    ),
    card(
      "",
      facts([
        ["institution", session.institution],
        ["version", session.version],
      ]),
    ),
    healthCard(health, isAdmin),
    resourcesCard(resources),
    card("engine", engineTable(engine)),
    card("storages", storageTable(storages)),
    isAdmin && (await auditCard()),
  );
}

// ---------------------------------------------------------------- health

/** The state of the node; an unhealthy node responds with status 503 and the same content. */
async function readHealth() {
  const headers = { "accept-language": language };
  const response = await fetch("/health/ready", { headers });
  return response.json();
}

function healthCard(health, isAdmin) {
  const rows = Object.entries(health.checks).map(([name, { ok, ...findings }]) => [
    apiWord(name),
    badge(ok ? "ok" : "bad"),
    findingsText(findings),
  ]);
  const doctor = h("div");
  return card(
    "health",
    table(["check", "state", "found"], rows),
    isAdmin &&
      row(
        button("look at all", () => runDoctor(doctor)),
        h("span", { class: "faint" }, translate("about doctor")),
      ),
    doctor,
  );
}

function findingsText(findings) {
  const isEmptyList = (value) => Array.isArray(value) && value.length === 0;
  const present = Object.entries(findings).filter(([, value]) => !isEmptyList(value));
  const texts = present.map(([name, value]) => {
    const label = apiWord(`of ${name}`).replace(/^of /, "");
    return `${label}: ${apiWord(displayValue(value))}`;
  });
  return texts.join(listSeparator);
}

async function runDoctor(place) {
  place.replaceChildren(hint(translate("loading")));
  try {
    const { steps } = await get("/api/v1/doctor");
    place.replaceChildren(stepTable(steps, stepName));
  } catch (error) {
    place.replaceChildren(errorBox(error));
  }
}

// ---------------------------------------------------------------- resources

function resourcesCard(resources) {
  const { total, holders, waiting } = resources;
  const kinds = Object.keys(total).filter((kind) => kind !== "gpu" || total.gpu);
  return card(
    "resources",
    amountTable(resources, kinds),
    h("h3", {}, translate("held by jobs")),
    holderTable(holders, kinds),
    waiting.length > 0 && [h("h3", {}, translate("waiting jobs")), waitingTable(waiting, kinds)],
  );
}

const amountsOf = (amounts, kinds) => kinds.map((kind) => amounts[kind] ?? "–");

function amountTable(resources, kinds) {
  const othersUseSome = Object.values(resources.others).some(Boolean);
  const keys = ["total", "held", "others", "remaining"];
  const shown = keys.filter((key) => key !== "others" || othersUseSome);
  const rows = shown.map((key) => [translate(key), ...amountsOf(resources[key], kinds)]);
  return table(["", ...kinds.map(apiWord)], rows);
}

function holderTable(holders, kinds) {
  const rows = holders.map((holder) => [
    jobLink(holder.job_id),
    ...amountsOf(holder, kinds),
    timestamp(holder.since),
  ]);
  return table(["job", ...kinds.map(apiWord), "since when"], rows, "nothing held");
}

function waitingTable(waiting, kinds) {
  const rows = waiting.map((job) => [
    jobLink(job.job_id),
    ...amountsOf(job, kinds),
    timestamp(job.since),
    job.reason,
  ]);
  return table(["job", ...kinds.map(apiWord), "since when", "why"], rows);
}

// ---------------------------------------------------------------- engines and storages

function engineTable(engine) {
  const engines = [{ name: "", ...engine }, ...engine.engines];
  const rows = engines.map(({ name, kind, answers, isolation, cause }) => [
    name || "–",
    kind,
    badge(answers ? "ok" : "bad"),
    answers ? paragraphs(isolation?.gaps ?? []) : cause,
  ]);
  return table(["name", "kind", "state", "isolation"], rows);
}

function storageTable(storages) {
  const rows = storages.map(({ name, kind, url, ok, cause, uploads }) => [
    name,
    kind,
    code(url),
    [badge(ok ? "ok" : "bad"), " ", cause],
    uploads ? "✓" : "",
  ]);
  return table(["name", "kind", "address", "state", "uploads"], rows);
}
