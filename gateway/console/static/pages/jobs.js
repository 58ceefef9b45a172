// The list of jobs: found, sorted, and stopped or deleted together.
import { get, query } from "../api.js";
import { button, showError } from "../dialogs.js";
import { append, h, setChildren } from "../dom.js";
import { followEvents } from "../events.js";
import { duration, timestamp } from "../format.js";
import { apiWord, listSeparator, translate } from "../language.js";
import { buttonLink, shortJobLink } from "../links.js";
import { badge, card, code, progressBar, row, table } from "../widgets.js";
import { Selection } from "./job_bulk.js";
import { searchForm, searchOfAddress, writeAddress } from "./job_search.js";

const PAGE_SIZE = 50;
// The columns by which the shown jobs can be sorted, with the value of a job.
const SORT_VALUES = {
  job: (job) => job.job_id,
  state: (job) => job.outcome ?? job.status,
  flow: (job) => job.flow_id,
  created: (job) => Date.parse(job.created_at),
  duration: (job) => Date.parse(job.ended_at ?? new Date()) - Date.parse(job.created_at),
  "submitted by": (job) => job.user,
  reason: (job) => job.reason ?? "",
};

export async function fillPage(body, { session, signal }) {
  const list = new JobList(session);
  append(body, list.elements());
  await list.load();
  followEvents("/api/v1/events?follow=1", signal, () => list.refresh());
}

class JobList {
  #search = searchOfAddress();
  #jobs = [];
  #next = null;
  #loads = 0; // number of the last request: an earlier one may be answered later
  #list = h("div", { class: "list", tabindex: "-1" });
  #selection;

  constructor(session) {
    this.#selection = new Selection(session, () => this.load());
  }

  elements() {
    const change = (name, text) => {
      this.#search.filter[name] = text;
      this.#selection.clear();
      writeAddress(this.#search);
      this.load().catch(showError);
    };
    const form = searchForm(this.#search.filter, change);
    return [
      row(h("h1", {}, translate("page jobs")), buttonLink("#/submit", translate("page submit"))),
      card("", form, this.#selection.elements(), this.#list),
    ];
  }

  /** Shows the newest jobs that match, or those after `after` below the ones that are shown. */
  async load(after = "") {
    this.#loads += 1;
    const number = this.#loads;
    const parameters = query({ ...this.#search.filter, after, limit: PAGE_SIZE });
    const page = await get(`/api/v1/jobs?${parameters}`);
    if (number !== this.#loads) return;
    this.#jobs = after ? [...this.#jobs, ...page.jobs] : page.jobs;
    this.#next = page.next;
    this.#draw();
  }

  /** Loads the jobs again, unless that would hide older jobs that the user asked for. */
  async refresh() {
    if (this.#jobs.length <= PAGE_SIZE) await this.load();
  }

  #draw() {
    const isFocused = this.#list.contains(document.activeElement);
    const focused = isFocused && document.activeElement.getAttribute("aria-label");
    const older = () => this.load(this.#next);
    setChildren(this.#list, this.#table(), this.#next && row(button("older", older)));
    if (focused) this.#list.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
  }

  #table() {
    const jobs = sorted(this.#jobs, this.#search.sort);
    const hasReasons = jobs.some(({ reason }) => reason);
    const { isUseful } = this.#selection;
    const rows = jobs.map((job) => [
      ...(isUseful ? [this.#selection.boxOf(job.job_id)] : []),
      ...jobCells(job, hasReasons),
    ]);
    const ids = jobs.map((job) => job.job_id);
    const columns = [
      ...(isUseful ? [this.#selection.boxOfAll(ids, () => this.#draw())] : []),
      this.#header("job"),
      this.#header("state"),
      ...(hasReasons ? [this.#header("reason")] : []),
      this.#header("flow"),
      this.#header("created"),
      this.#header("duration"),
      this.#header("submitted by"),
      "this node is",
    ];
    return table(columns, rows, "no jobs");
  }

  /** The header of a column, which sorts the shown jobs. */
  #header(column) {
    const { sort } = this.#search;
    let arrow = "";
    if (sort === column) arrow = " ▲";
    if (sort === `-${column}`) arrow = " ▼";
    const press = () => {
      this.#search.sort = sort === column ? `-${column}` : column;
      writeAddress(this.#search);
      this.#draw();
    };
    const text = translate(column);
    const label = translate("sort by", { column: text });
    const attributes = { type: "button", class: "sort", "aria-label": label, onclick: press };
    return h("button", { ...attributes, "data-arrow": arrow }, text);
  }
}

function warningCount({ outcome, warning_count: count }) {
  if (outcome !== "SUCCEEDED" || !count) return "";
  return h("span", { class: "faint" }, ` ${translate("warning count", { count })}`);
}

function jobCells(job, hasReasons) {
  return [
    shortJobLink(job.job_id),
    [badge(job.outcome ?? job.status), warningCount(job), !job.ended_at && progressOf(job)].filter(
      Boolean,
    ),
    ...(hasReasons ? [job.reason ? code(job.reason) : ""] : []),
    job.flow_id,
    timestamp(job.created_at),
    duration(job.created_at, job.ended_at),
    job.user,
    job.sides.map(apiWord).join(listSeparator),
  ];
}

const progressOf = ({ progress }) => h("div", {}, progressBar(progress), ` ${progress} %`);

/** The jobs in the order of a column; newest first without one. */
function sorted(jobs, sort) {
  const valueOf = SORT_VALUES[sort.replace(/^-/, "")];
  if (!valueOf) return jobs;
  const direction = sort.startsWith("-") ? -1 : 1;
  return jobs.toSorted((one, other) => direction * compare(valueOf(one), valueOf(other)));
}

function compare(one, other) {
  if (one === other) return 0;
  return one < other ? -1 : 1;
}
