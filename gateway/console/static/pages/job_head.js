// The head of a job's page: state, actions, failure, and the facts of the job.
import { get, request, segment } from "../api.js";
import { askText, button, confirmAction, notifyDone } from "../dialogs.js";
import { h } from "../dom.js";
import { timestamp } from "../format.js";
import { apiWord, listSeparator, translate } from "../language.js";
import { buttonLink, copyAddress, rerunAddress, shortJobLink } from "../links.js";
import { hasRole } from "../roles.js";
import { badge, card, facts, hint, paragraphs, progressBar, row } from "../widgets.js";
import { hasEnded, partyLabel } from "./job_states.js";

const MOST_OPEN_WARNINGS = 3; // more warnings are folded
const OUTCOMES_WITHOUT_MODEL = ["FAILED", "STOPPED", "REJECTED"];

export async function jobHead(job, timeline, path, session, reload) {
  const failure = job.failure ?? job.local_failure;
  const waiting = hasEnded(job) ? null : (job.waiting ?? job.local_waiting);
  const warnings = warningsOf(job);
  return [
    row(
      h("h1", { class: "mono" }, job.job_id),
      badge(job.outcome ?? job.status),
      job.outcome === "SUCCEEDED" &&
        job.warning_count > 0 &&
        hint(translate("warning count", { count: job.warning_count })),
      progressBar(job.progress),
      `${job.progress} %`,
    ),
    hasRole(session, "platform") && actions(job, path, session, reload),
    failure && (await failureBox(job, failure, timeline)),
    waiting && (await waitingBox(job, waiting)),
    warnings.length > 0 && warningBox(warnings),
    card("", jobFacts(job)),
  ];
}

// ---------------------------------------------------------------- actions

function actions(job, path, session, reload) {
  const ended = hasEnded(job);
  const isScheduler = job.scheduler === session.node;
  const isSuspended = (job.waiting ?? job.local_waiting)?.reason === "SUSPENDED";
  const awaitsApproval = job.approval && job.local_status === "PENDING";
  const verbs = [];
  if (awaitsApproval) verbs.push("approve", "reject");
  if (!ended && isScheduler) verbs.push(isSuspended ? "resume" : "suspend");
  return row(
    verbs.map((verb) => actionButton(job, path, verb, reload)),
    !ended && stopButton(job, reload),
    isPartOf(job, session.node) && nextJobLinks(job),
    buttonLink(`${path}/archive`, translate("archive")),
  );
}

function actionButton(job, path, verb, reload) {
  const danger = verb === "reject";
  const needsReason = verb === "approve" || verb === "reject";
  const act = async () => {
    const question = translate(`${verb}?`, { what: job.job_id });
    const body = {};
    if (needsReason) {
      body.reason = await askText(question, { danger });
      if (body.reason === null) return;
    } else if (!(await confirmAction(question))) {
      return;
    }
    await request("POST", `${path}/${verb}`, body);
    notifyDone(verb, job.job_id);
    await reload();
  };
  return button(verb, act, danger ? "danger" : "");
}

function stopButton(job, reload) {
  const stop = async () => {
    if (!(await confirmAction(translate("stop?"), { danger: true }))) return;
    await request("POST", "/v1/platform/schedule/job/stop_all", { job_id: job.job_id });
    notifyDone("stop", job.job_id);
    await reload();
  };
  return button("stop", stop, "danger");
}

/** True if a node may run a job again, and knows its flow. */
function isPartOf(job, node) {
  const hasRole = job.parties.some((party) => party.node === node);
  return job.flow.length > 0 && (hasRole || job.scheduler === node);
}

const nextJobLinks = (job) => [
  hasEnded(job) && buttonLink(rerunAddress(job.job_id), translate("run again")),
  buttonLink(copyAddress(job.job_id), translate("edit as new job")),
];

// ---------------------------------------------------------------- failure and wait

async function failureBox(job, failure, timeline) {
  const { reason, node, role, task } = failure;
  const message = failure.message?.replace(`${node}: ${reason}: `, ""); // both are shown already
  const person = reason === "STOPPED" && personWhoStopped(timeline);
  const context = [node, role, task, person && `${translate("by")} ${person}`];
  return h(
    "div",
    { class: "box bad" },
    h("p", {}, h("strong", {}, reason), message && `: ${message}`),
    h("p", {}, context.filter(Boolean).join(" · ")),
    await explanation(reason, job, failure),
  );
}

/** The person who stopped the job, known at the node where that happened. */
function personWhoStopped(timeline) {
  const isJobStop = ({ event, detail }) => event === "stop requested" && !detail.task;
  return timeline.find(isJobStop)?.by;
}

async function waitingBox(job, { reason, message, since }) {
  const isRunning = reason === "RUNNING";
  const title = isRunning ? apiWord("RUNNING") : `${translate("waits")}: ${reason}`;
  return h(
    "div",
    { class: `box ${isRunning ? "" : "wait"}` },
    h("p", {}, h("strong", {}, title), ` ${message}`),
    h("p", {}, translate("since"), " ", timestamp(since)),
    await explanation(reason, job),
  );
}

const reasonDocuments = new Map(); // requests by reason

/** The meaning of a reason, and what to do next. Nothing if the node does not know the reason. */
async function explanation(reason, job, failure) {
  if (!reasonDocuments.has(reason)) {
    const document = get(`/api/v1/reasons/${segment(reason)}`).catch(() => null);
    reasonDocuments.set(reason, document);
  }
  const document = await reasonDocuments.get(reason);
  if (!document) return null;
  const nextStep = fillPlaceholders(document.next_step, job, failure);
  return [
    h("p", {}, document.means),
    h("p", {}, h("strong", {}, `${translate("next step")}: `), nextStep),
  ];
}

/**
 * Fills the placeholders of a command: JOB, T (task), P (party), N or NODE. The values are those of the run
 * that failed; placeholders without a value stay.
 */
function fillPlaceholders(step, job, failure) {
  const isFailedParty = ({ role, node }) => role === failure?.role && node === failure?.node;
  const party = job.parties.find(isFailedParty);
  const values = {
    JOB: job.job_id,
    T: failure?.task,
    P: party && partyLabel(party),
    N: failure?.node,
    NODE: failure?.node,
  };
  return step.replace(/\b(NODE|JOB|[TPN])\b/g, (placeholder) => {
    const value = values[placeholder];
    return value ? quoteForShell(value) : placeholder;
  });
}

function quoteForShell(text) {
  if (/^[\w@%+=:,./-]+$/.test(text)) return text;
  return `'${text.replaceAll("'", `'"'"'`)}'`;
}

// ---------------------------------------------------------------- warnings and facts

/** The warnings of the job and of its runs here; runs that were stopped with their job warn of nothing new. */
function warningsOf(job) {
  const runs = job.outcome === "STOPPED" ? [] : job.runs;
  const runWarnings = runs.flatMap((run) =>
    run.warnings.map((text) => `${run.task_name} ${partyLabel(run.party)}: ${text}`),
  );
  return [...new Set([...job.warnings, ...job.local_warnings, ...runWarnings])];
}

function warningBox(warnings) {
  const details = h(
    "details",
    { open: warnings.length <= MOST_OPEN_WARNINGS },
    h("summary", {}, `${translate("warnings")} (${warnings.length})`),
    paragraphs(warnings),
  );
  return h("div", { class: "box wait" }, details);
}

function jobFacts(job) {
  const parties = job.parties.map((party) => `${partyLabel(party)} ${party.node}`);
  const hasModel = job.model && !OUTCOMES_WITHOUT_MODEL.includes(job.outcome ?? job.status);
  return facts([
    ["flow", job.flow_id],
    ["submitted by", job.user],
    ["created", timestamp(job.created_at)],
    ["started", job.started_at && timestamp(job.started_at)],
    ["ended", job.ended_at && timestamp(job.ended_at)],
    ["initiator", job.initiator],
    ["scheduling node", job.scheduler],
    ["parties", parties.join(listSeparator)],
    ["old job", job.old_job_id && shortJobLink(job.old_job_id)],
    ["model", hasModel ? `${job.model.model_id} ${job.model.version}` : ""],
    ["trace", job.trace_id],
  ]);
}
