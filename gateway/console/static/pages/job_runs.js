// The runs of a job at this node, and their logs.
import { button } from "../dialogs.js";
import { h } from "../dom.js";
import { duration, timestamp } from "../format.js";
import { apiWord, translate } from "../language.js";
import { buttonLink } from "../links.js";
import { badge, row, table } from "../widgets.js";
import { partyLabel, reasonText, shownState } from "./job_states.js";
import { attemptNote } from "./job_tasks.js";

const TAIL_LINES = 2000; // with which a log begins
const MAX_LOG_LINES = 5000; // older lines are removed
const NEAR_END = 40; // pixels; a reader who is nearer to the end follows the log

/** `logPlace`: the element for a log; null if the user may not read logs. */
export function runTable(job, logPlace, signal) {
  const rows = job.runs.map((run) => [
    [run.task_name, attemptNote(run.attempt)],
    partyLabel(run.party),
    badge(shownState(job, run.status, run.failure)),
    timestamp(run.started_at),
    duration(run.started_at, run.ended_at),
    [resultText(job, run), attestationNote(run), lastLines(run)],
    logPlace ? button("log", async () => openLog(logPlace, run, signal)) : "",
  ]);
  const columns = ["task", "party", "state", "started", "duration", "result", ""];
  return table(columns, rows, "no runs here");
}

function resultText(job, { failure, waiting, result_message: message, exit }) {
  if (failure?.reason === "STOPPED" && job.outcome === "FAILED") {
    return translate("stopped with the job");
  }
  if (failure) return reasonText(failure);
  if (waiting) return reasonText(waiting);
  return message || (exit ? `exit ${exit.code}` : "");
}

/** The result of the report of a run that has to prove its TEE. */
function attestationNote({ attestation }) {
  if (!attestation) return "";
  const { platform, verified_at: verifiedAt, is_hardware: isHardware } = attestation;
  let result = "report verified";
  if (!verifiedAt) result = "no verified report";
  else if (!isHardware) result = "software report";
  return h("div", { class: "faint" }, `TEE ${platform}: ${translate(result)}`);
}

function lastLines({ last_lines: lines }) {
  if (!lines?.length) return "";
  const text = h("pre", {}, lines.join("\n"));
  return h("details", {}, h("summary", {}, translate("last lines")), text);
}

// ---------------------------------------------------------------- log

/** Shows the log of a run while it grows. */
function openLog(place, run, signal) {
  const lines = h("pre", { class: "log", tabindex: "0", "aria-label": translate("log") });
  const state = h("span", { class: "faint" });
  const source = followLog(run, lines, state);
  const close = () => {
    source.close();
    place.replaceChildren();
  };
  signal.addEventListener("abort", close);
  const title = `${translate("log")}: ${run.task_name} ${partyLabel(run.party)}`;
  const asText = buttonLink(`${run.log}?attempt=${run.attempt}`, translate("as text"), {
    target: "_blank",
    rel: "noopener",
  });
  const closeButton = h("button", { type: "button", onclick: close }, translate("close"));
  const head = row(h("h2", {}, title), state, asText, closeButton);
  place.replaceChildren(h("section", {}, head, lines));
  place.scrollIntoView({ block: "nearest" });
}

/** Appends the lines of a log as they come, and at the end the exit code to `state`. */
function followLog(run, lines, state) {
  const address = `${run.log}?follow=1&tail=${TAIL_LINES}&attempt=${run.attempt}`;
  const source = new EventSource(address);
  const appendEvent = ({ data }) => appendLine(lines, data);
  source.addEventListener("stdout", appendEvent);
  source.addEventListener("stderr", appendEvent);
  source.addEventListener("end", (event) => {
    source.close();
    state.textContent = ` ${endText(JSON.parse(event.data))}`;
    if (!lines.hasChildNodes()) lines.textContent = translate("empty log");
  });
  return source;
}

function endText({ reason, status, exit_code: exitCode }) {
  const text = reason ?? apiWord(status);
  return exitCode == null ? text : `${text}, exit ${exitCode}`;
}

function appendLine(lines, text) {
  const belowView = lines.scrollHeight - lines.scrollTop - lines.clientHeight;
  lines.append(h("span", {}, `${text}\n`));
  if (lines.childNodes.length > MAX_LOG_LINES) lines.firstChild.remove();
  if (belowView < NEAR_END) lines.scrollTop = lines.scrollHeight;
}
