// When each task ran at each party, as bars over time.
import { h } from "../dom.js";
import { duration } from "../format.js";
import { apiWord, translate } from "../language.js";
import { hint, table, toneOf } from "../widgets.js";
import { hasEnded, hasRunEnded, partyLabel, shownState } from "./job_states.js";

const REPORTED_EVENTS = ["status reported", "heard"]; // by which the scheduling node learns of others' runs

export function timeTable(job, timeline) {
  const spans = [...reportedSpans(job, timeline), ...localSpans(job)];
  if (spans.length === 0) {
    return hint(translate(hasEnded(job) ? "nothing was started" : "nothing started"));
  }
  const taskOrder = job.tasks.map((task) => task.name);
  spans.sort((a, b) => taskOrder.indexOf(a.task) - taskOrder.indexOf(b.task));
  const jobEnd = hasEnded(job) ? timeline.at(-1)?.at : null;
  const timed = spans.map((span) => ({
    ...span,
    start: new Date(span.from),
    end: endOf(span, job, jobEnd),
  }));
  const first = Math.min(...timed.map(({ start }) => start));
  const last = Math.max(...timed.map(({ end }) => end));
  const total = Math.max(1, last - first); // milliseconds
  const rows = timed.map((span) => [
    span.task,
    span.party,
    lane(job, span, { first, total }),
    duration(span.from, span.end),
  ]);
  return table(["task", "party", "", "duration"], rows);
}

/** The runs of other nodes as far as this node heard of them: `{task, party, status, from, to}`. */
function reportedSpans(job, timeline) {
  const localNodes = new Set(job.runs.map((run) => run.party.node));
  const spans = new Map();
  for (const { event, by: node, at, detail } of timeline) {
    if (!REPORTED_EVENTS.includes(event) || localNodes.has(node)) continue;
    const isMeant = (party) =>
      party.node === node && [party.role, partyLabel(party)].includes(detail.role);
    for (const party of job.parties.filter(isMeant)) {
      const key = `${detail.task} ${partyLabel(party)}`;
      const span = spans.get(key) ?? { task: detail.task, party: partyLabel(party) };
      spans.set(key, withStatus(span, detail.status, at));
    }
  }
  return [...spans.values()].filter((span) => span.from);
}

/** A span after a report: a task that runs again has no end, and keeps its first start. */
function withStatus(span, status, at) {
  if (status === "RUNNING") return { ...span, status, from: span.from ?? at, to: null };
  if (hasRunEnded(status)) return { ...span, status, to: at };
  return { ...span, status };
}

/** The runs here, each attempt by itself. */
function localSpans(job) {
  const started = job.runs.filter((run) => run.started_at);
  return started.map((run) => ({
    task: run.task_name,
    party: partyLabel(run.party),
    status: shownState(job, run.status, run.failure),
    from: run.started_at,
    to: run.ended_at,
  }));
}

/** The end of a span; without one the end of the job, or now. */
function endOf(span, job, jobEnd) {
  if (span.to) return new Date(span.to);
  return hasEnded(job) ? new Date(jobEnd ?? span.from) : new Date();
}

function lane(job, span, { first, total }) {
  const state = barState(job, span);
  const percent = (milliseconds) => `${(100 * milliseconds) / total}%`;
  const wasStoppedByFailure = state === "STOPPED" && job.outcome === "FAILED";
  const bar = h("span", {
    class: wasStoppedByFailure ? "wait" : toneOf(state),
    style: { left: percent(span.start - first), width: percent(span.end - span.start) },
  });
  return h("div", { class: "lane", title: apiWord(state) }, bar);
}

/** The state of a bar: a run that went on until its job ended has ended as its task did. */
function barState(job, { task, status }) {
  if (!hasEnded(job) || status !== "RUNNING") return status;
  return job.tasks.find(({ name }) => name === task)?.status ?? "";
}
