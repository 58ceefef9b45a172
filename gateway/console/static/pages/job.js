// One job: its state, tasks, runs, reports and outputs, followed while it runs.
import { get, segment } from "../api.js";
import { append, h, setChildren } from "../dom.js";
import { followEvents } from "../events.js";
import { displayValue, timestamp } from "../format.js";
import { flowPicture } from "../graph.js";
import { apiWord } from "../language.js";
import { hasRole } from "../roles.js";
import { card, foldedCard, foldedJson, table } from "../widgets.js";
import { jobHead } from "./job_head.js";
import { outputsCard } from "./job_outputs.js";
import { ReportCards } from "./job_reports.js";
import { runTable } from "./job_runs.js";
import { hasEnded, hasSettled, taskStates } from "./job_states.js";
import { taskTable } from "./job_tasks.js";
import { timeTable } from "./job_times.js";

export async function fillPage(body, context) {
  const { signal, session } = context;
  const [id, action] = context.ids;
  if (action === "rerun") {
    const rerun = await import("./rerun.js");
    await rerun.fillPage(body, context);
    return;
  }
  const view = new JobView(id, session, signal);
  append(body, view.elements);
  await view.load();
  followEvents(`/api/v1/events?follow=1&job_id=${segment(id)}`, signal, async () => {
    if (!view.isSettled) await view.load();
  });
}

/** The elements of the page, and what they show. */
class JobView {
  isSettled = false; // nothing more happens to the job
  #head = h("div");
  #tasks = h("div");
  #times = h("div");
  #runs = h("div");
  #log = h("div");
  #outputs = h("div");
  #timeline = h("div");
  #shownRuns = ""; // runs and parameters as JSON

  constructor(id, session, signal) {
    this.path = `/api/v1/jobs/${segment(id)}`;
    this.session = session;
    this.signal = signal;
    this.reports = new ReportCards(this.path, signal);
  }

  get elements() {
    return [
      this.#head,
      this.#tasks,
      this.#times,
      this.#runs,
      this.#log,
      this.reports.element,
      this.#outputs,
      this.#timeline,
    ];
  }

  /** Loads the job and shows it. */
  async load() {
    const [job, { timeline }] = await Promise.all([get(this.path), get(`${this.path}/timeline`)]);
    this.isSettled = hasSettled(job);
    if (this.signal.aborted) return;
    const reload = () => this.load();
    setChildren(this.#head, await jobHead(job, timeline, this.path, this.session, reload));
    this.#showTasks(job);
    await this.#showRuns(job);
    if (job.runs.length > 0 && hasRole(this.session, "platform")) await this.reports.load();
    this.#times.replaceChildren(card("over time", timeTable(job, timeline)));
    this.#showTimeline(timeline);
  }

  #showTasks(job) {
    const hasFlow = job.flow.length > 0;
    const states = taskStates(job);
    setChildren(
      this.#tasks,
      hasFlow && card("tasks", flowPicture(job.flow, { states })),
      card(hasFlow ? "" : "tasks", taskTable(job)),
    );
  }

  /** Shows runs, parameters and outputs if they changed; drawing them again would close what is open. */
  async #showRuns(job) {
    const runs = JSON.stringify([job.runs, job.parameters]);
    if (runs === this.#shownRuns) return;
    this.#shownRuns = runs;
    const readsLogs = hasRole(this.session, "platform", "vendor");
    setChildren(
      this.#runs,
      card("runs here", runTable(job, readsLogs && this.#log, this.signal)),
      parametersCard(job.parameters),
    );
    const readsOutputs = hasRole(this.session, "platform");
    const outputs =
      job.runs.length > 0 && (await outputsCard(this.path, hasEnded(job), readsOutputs));
    setChildren(this.#outputs, outputs);
  }

  #showTimeline(timeline) {
    const isOpen = this.#timeline.querySelector("details")?.open;
    const rows = timeline.map((entry) => [
      timestamp(entry.at),
      apiWord(entry.side),
      h("span", { title: entry.event }, entry.in_words),
      entry.by,
      foldedJson(entry.detail),
    ]);
    const entries = table(["time", "side", "event", "node or person", "detail"], rows);
    this.#timeline.replaceChildren(foldedCard("timeline", timeline.length, entries, isOpen));
  }
}

/** The parameters of the runs here, each with its origin. */
function parametersCard(parametersByParty) {
  const rows = [];
  for (const [party, parametersByTask] of Object.entries(parametersByParty)) {
    for (const [task, parameters] of Object.entries(parametersByTask)) {
      for (const [name, { value, origin }] of Object.entries(parameters)) {
        rows.push([task, party, name, displayValue(value), origin]);
      }
    }
  }
  if (rows.length === 0) return null;
  const columns = ["task", "party", "name", "value", "origin"];
  return foldedCard("parameters", rows.length, table(columns, rows));
}
