// The first page: what waits for a person, the jobs, the partners, the node.
import { get, query, segment } from "../api.js";
import { showError } from "../dialogs.js";
import { append, h } from "../dom.js";
import { followEvents } from "../events.js";
import { duration, timestamp } from "../format.js";
import { apiWord, translate } from "../language.js";
import { buttonLink, datasetLink, shortJobLink } from "../links.js";
import { badge, box, card, code, expiryBadge, hint, progressBar, row, table } from "../widgets.js";

const JOBS_SHOWN = 5; // of each list
// With the status, which every failed job has: the database has an index for both together.
const FAILED = { status: "FINISHED", outcome: "FAILED" };
const UNDER_WAY = "PENDING,READY,RUNNING";

export async function fillPage(body, { session, signal }) {
  const jobs = h("div", { class: "grid reports" });
  const partners = card("page partners", hint(translate("partners are asked")));
  const [waiting] = await Promise.all([get("/api/v1/waiting"), loadJobs(jobs)]);
  const node = await nodeCard(session);
  append(
    body,
    h("h1", {}, translate("page overview")),
    waitingCard(waiting),
    jobs,
    h("div", { class: "grid reports" }, partners, node),
  );
  showPartners(partners).catch(showError); // partners that do not answer take seconds
  followEvents("/api/v1/events?follow=1", signal, () => loadJobs(jobs));
}

// ---------------------------------------------------------------- what waits

function waitingCard({ approvals, applications, certificates, expiring }) {
  const isQuiet = approvals + applications + certificates.length + expiring.length === 0;
  return card(
    "waits for you",
    isQuiet && hint(translate("nothing waits")),
    row(
      approvals > 0 && waitingLink("approvals wait", approvals),
      applications > 0 && waitingLink("applications wait", applications),
    ),
    certificates.length > 0 && [h("h3", {}, translate("certificates")), endTable(certificates)],
    expiring.length > 0 && [h("h3", {}, translate("permissions end")), permitTable(expiring)],
  );
}

const waitingLink = (key, count) => buttonLink("#/approvals", translate(key, { count }));

function endTable(certificates) {
  const rows = certificates.map(({ where, file, ends, days }) => [
    code(where),
    code(file),
    timestamp(ends),
    expiryBadge(days),
  ]);
  return table(["where", "file", "until", "days left"], rows);
}

function permitTable(expiring) {
  const rows = expiring.map((permit) => [
    apiWord(permit.kind),
    apiWord(permit.side),
    permit.partner,
    subjectLink(permit),
    timestamp(permit.expires_at),
    permit.jobs_left,
  ]);
  return table(["kind", "used by side", "partner", "subject", "expires", "jobs left"], rows);
}

function subjectLink({ kind, side, subject }) {
  const isHere = side === "theirs" && ["grant", "dataset"].includes(kind);
  return isHere && subject.includes("#") ? datasetLink(subject) : subject;
}

// ---------------------------------------------------------------- jobs

async function loadJobs(place) {
  const [running, failed] = await Promise.all([listJobs({ status: UNDER_WAY }), listJobs(FAILED)]);
  place.replaceChildren(
    jobCard("jobs under way", running, { status: UNDER_WAY }, runningTable),
    jobCard("jobs failed", failed, FAILED, failedTable),
  );
}

const listJobs = async (filter) =>
  (await get(`/api/v1/jobs?${query({ ...filter, limit: JOBS_SHOWN })}`)).jobs;

function jobCard(title, jobs, filter, tableOf) {
  const all = h("a", { href: `#/jobs?${query(filter)}` }, translate("all of them"));
  return card(title, tableOf(jobs), jobs.length > 0 && row(all));
}

function runningTable(jobs) {
  const rows = jobs.map((job) => [
    shortJobLink(job.job_id),
    badge(job.status),
    [progressBar(job.progress), ` ${job.progress} %`],
    duration(job.created_at),
    job.user,
  ]);
  return table(["job", "state", "progress", "duration", "submitted by"], rows, "nothing runs");
}

function failedTable(jobs) {
  const rows = jobs.map((job) => [
    shortJobLink(job.job_id),
    job.flow_id,
    timestamp(job.ended_at ?? job.created_at),
    job.user,
  ]);
  return table(["job", "flow", "ended", "submitted by"], rows, "nothing failed");
}

// ---------------------------------------------------------------- partners and the node

async function showPartners(place) {
  const { partners } = await get("/api/v1/partners");
  const rows = partners.map((partner) => [
    h("a", { href: `#/partners/${segment(partner.node)}`, class: "mono" }, partner.node),
    partner.institution,
    badge(answerOf(partner)),
  ]);
  const columns = ["node", "institution", "state"];
  place.replaceChildren(
    h("h2", {}, translate("page partners")),
    table(columns, rows, "no partners"),
  );
}

function answerOf({ enabled, answers }) {
  if (!enabled) return "disabled";
  if (answers === null) return "unknown";
  return answers ? "answers" : "silent";
}

async function nodeCard(session) {
  const [engine, { storages }] = await Promise.all([
    get("/api/v1/engine"),
    get("/api/v1/storages"),
  ]);
  const engines = [{ name: "", ...engine }, ...engine.engines];
  const rows = [
    ...engines.map(({ name, kind, answers, cause }) => [
      translate("engine"),
      name || kind,
      badge(answers ? "ok" : "bad"),
      cause,
    ]),
    ...storages.map(({ name, ok, cause }) => [
      translate("storage"),
      name,
      badge(ok ? "ok" : "bad"),
      cause,
    ]),
  ];
  const failures = rows.filter((cells) => cells[3]).map((cells) => box("bad", cells[3]));
  const shown = rows.map((cells) => cells.slice(0, 3));
  const link = h("a", { href: "#/node" }, `${translate("page node")} ${session.node}`);
  return card("page node", table(["what", "name", "state"], shown), failures, row(link));
}
