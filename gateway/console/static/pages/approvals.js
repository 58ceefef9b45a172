// Jobs and applications of partners that wait for a decision.
import { getAll, request, segment } from "../api.js";
import { askText, button, notifyDone } from "../dialogs.js";
import { append, h } from "../dom.js";
import { displayValue, timestamp } from "../format.js";
import { apiWord, translate } from "../language.js";
import { datasetLink, jobLink } from "../links.js";
import { hasRole } from "../roles.js";
import { badge, card, code, facts, faintCode, hint, row, table } from "../widgets.js";

export async function fillPage(body, { session, reload }) {
  const [jobs, applications] = await Promise.all([
    getAll("/api/v1/approvals", "approvals"),
    getAll("/api/v1/applications", "applications"),
  ]);
  const open = applications.filter(({ side, status }) => side !== "mine" && status === "APPLIED");
  append(
    body,
    h("h1", {}, translate("page approvals")),
    card(
      "jobs that wait",
      jobs.length === 0 && hint(translate("nothing waits")),
      jobs.map((job) => waitingJob(job, hasRole(session, "platform"), reload)),
    ),
    card("partners ask", openApplications(open, hasRole(session), reload)),
    card("all applications", allApplications(applications)),
  );
}

/** The buttons that approve and reject what a path names. */
function decisionButtons(path, what, reload) {
  return row(
    decisionButton(path, what, "approve", reload),
    decisionButton(path, what, "reject", reload),
  );
}

function decisionButton(path, what, verb, reload) {
  const danger = verb === "reject";
  const decide = async () => {
    const reason = await askText(translate(`${verb}?`, { what }), { danger });
    if (reason === null) return;
    await request("POST", `${path}/${verb}`, { reason });
    notifyDone(verb, what);
    await reload();
  };
  return button(verb, decide, danger ? "danger" : "main");
}

function waitingJob(job, canDecide, reload) {
  const path = `/api/v1/jobs/${segment(job.job_id)}`;
  return h(
    "article",
    { "aria-label": job.job_id },
    row(jobLink(job.job_id), canDecide && decisionButtons(path, job.job_id, reload)),
    facts([
      ["flow", job.flow_id],
      ["initiator", job.initiator],
      ["submitted by", job.submitted_by.join(", ") || translate("a person at the initiator")],
      ["scheduling node", job.scheduler],
      ["until", timestamp(job.approval?.until ?? job.approval?.deadline)],
    ]),
    h("h3", {}, translate("would run here")),
    table(["task", "party", "component", "image", "reads", "parameters"], job.tasks.map(taskRow)),
  );
}

function taskRow(task) {
  const image = [code(task.image || "–"), task.digest && h("p", {}, faintCode(task.digest))];
  const parameters = Object.entries(task.parameters).map(([name, value]) =>
    h("p", {}, code(`${name}: ${displayValue(value)}`)),
  );
  return [
    task.task,
    task.party,
    task.component,
    image,
    task.dataset ? datasetLink(task.dataset) : translate("outputs of tasks"),
    parameters,
  ];
}

/** The limits of a permit: one line for each kind of ids. */
const scopeLines = ({ scope }) =>
  Object.entries(scope).map(([key, ids]) => h("p", {}, code(`${key} ${ids.join(" ")}`)));

/** The tasks of a flow. */
const taskLines = ({ tasks }) => tasks.map((task) => h("p", {}, code(task)));

/** The attestation reports that a contract demands of runs. */
function teeLines({ tee, tee_agreed: isAgreed }) {
  if (!tee) return [];
  const lines = [h("p", {}, code(`${tee.platform}, ${tee.max_age} s`))];
  for (const measurement of tee.measurements) lines.push(h("p", {}, faintCode(measurement)));
  lines.push(h("p", { class: "faint" }, translate("no platform verified")));
  if (isAgreed === false) lines.push(h("p", {}, translate("only this node demands it")));
  return lines;
}

/** All limits of the permission for which a node applies. */
const limitLines = (application) => [
  ...scopeLines(application),
  ...taskLines(application),
  ...teeLines(application),
];

function openApplications(applications, canDecide, reload) {
  const rows = applications.map((application) => {
    const { kind, partner, subject, url, key, at, number } = application;
    const what = [partner, apiWord(kind), subject].filter(Boolean).join(" ");
    const path = `/api/v1/applications/${segment(number)}`;
    return [
      apiWord(kind),
      partner,
      subject,
      limitLines(application),
      application.jobs_in_words,
      timestamp(application.expires_at),
      url,
      key && code(key),
      timestamp(at),
      canDecide ? decisionButtons(path, what, reload) : "",
    ];
  });
  const columns = [
    "kind",
    "partner",
    "subject",
    "limits",
    "jobs used",
    "until",
    "address",
    "key id",
    "asked",
    "",
  ];
  return table(columns, rows, "nothing waits");
}

function allApplications(applications) {
  const rows = applications.map((application) => [
    apiWord(application.kind),
    apiWord(application.side),
    application.partner,
    application.subject,
    limitLines(application),
    badge(application.status),
    application.jobs_in_words,
    timestamp(application.changed_at),
    timestamp(application.expires_at),
    application.reason || application.trouble,
  ]);
  const columns = [
    "kind",
    "applicant",
    "partner",
    "subject",
    "limits",
    "state",
    "jobs used",
    "changed",
    "expires",
    "why",
  ];
  return table(columns, rows, "no applications");
}
