// The list of jobs.
import { get, query } from "../api.js";
import { button, showError } from "../dialogs.js";
import { append, h, setChildren } from "../dom.js";
import { followEvents } from "../events.js";
import { duration, timestamp } from "../format.js";
import { apiWord, listSeparator, translate } from "../language.js";
import { buttonLink, shortJobLink } from "../links.js";
import { badge, card, progressBar, row, table } from "../widgets.js";

const PAGE_SIZE = 50;
const STATUSES = ["PENDING", "READY", "RUNNING", "FINISHED", "REJECTED"];
const OUTCOMES = ["SUCCEEDED", "FAILED", "STOPPED", "REJECTED"];

export async function fillPage(body, { signal }) {
  const filter = { status: "", outcome: "", flow_id: "", partner: "" };
  const list = h("div", { class: "list", tabindex: "-1" });
  const setFilter = (name, text) => {
    filter[name] = text;
    loadJobs(list, filter).catch(showError);
  };
  append(
    body,
    row(h("h1", {}, translate("page jobs")), buttonLink("#/submit", translate("page submit"))),
    card(
      "",
      row(
        filterChoice("status", "state", STATUSES, setFilter),
        filterChoice("outcome", "outcome", OUTCOMES, setFilter),
        filterInput("flow_id", "flow", setFilter),
        filterInput("partner", "partner", setFilter),
      ),
      list,
    ),
  );
  await loadJobs(list, filter);
  followEvents("/api/v1/events?follow=1", signal, async () => {
    // Loading the first page again would hide older jobs that the user asked for.
    const shown = list.querySelectorAll("tbody tr").length;
    if (shown <= PAGE_SIZE) await loadJobs(list, filter);
  });
}

function filterChoice(name, label, words, setFilter) {
  const change = (event) => setFilter(name, event.target.value);
  return h(
    "label",
    {},
    translate(label),
    h(
      "select",
      { onchange: change },
      h("option", { value: "" }, translate("all")),
      words.map((word) => h("option", { value: word }, apiWord(word))),
    ),
  );
}

function filterInput(name, label, setFilter) {
  const change = (event) => setFilter(name, event.target.value.trim());
  return h("label", {}, translate(label), h("input", { onchange: change }));
}

/** Shows the newest jobs, or those after `after` below the ones that are shown. */
async function loadJobs(list, filter, after = "", previous = []) {
  const page = await get(`/api/v1/jobs?${query({ ...filter, after, limit: PAGE_SIZE })}`);
  const jobs = [...previous, ...page.jobs];
  const loadOlder = () => loadJobs(list, filter, page.next, jobs);
  setChildren(list, jobTable(jobs), page.next && row(button("older", loadOlder)));
}

function jobTable(jobs) {
  const rows = jobs.map((job) => [
    shortJobLink(job.job_id),
    badge(job.outcome ?? job.status),
    [progressBar(job.progress), ` ${job.progress} %`],
    job.flow_id,
    timestamp(job.created_at),
    duration(job.created_at, job.ended_at),
    job.user,
    job.sides.map(apiWord).join(listSeparator),
  ]);
  const columns = [
    "job",
    "state",
    "progress",
    "flow",
    "created",
    "duration",
    "submitted by",
    "this node is",
  ];
  return table(columns, rows, "no jobs");
}
