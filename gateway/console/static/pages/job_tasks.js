// The tasks of a job, with their states at every party.
import { h } from "../dom.js";
import { translate } from "../language.js";
import { badge, table } from "../widgets.js";
import { partyLabel, reasonText, shownState } from "./job_states.js";

export function taskTable(job) {
  const partyHeaders = job.parties.map((party) =>
    h("span", { title: party.node }, partyLabel(party)),
  );
  const rows = job.tasks.map((task) => [
    [task.name, attemptNote(task.attempt)],
    badge(shownState(job, task.status, task.failure)),
    ...job.parties.map((party) => partyState(job, task, party)),
    explanation(task),
  ]);
  return table(["task", "state", ...partyHeaders, "why"], rows);
}

/** The number of an attempt after the first. */
export function attemptNote(attempt) {
  if (!attempt) return "";
  return h("span", { class: "faint" }, ` ${translate("attempt", { number: attempt + 1 })}`);
}

function partyState(job, task, party) {
  const statuses = task.nodes[party.node];
  const status = statuses?.[party.role] ?? statuses?.[`${party.role}.${party.index}`];
  return status ? badge(shownState(job, status, task.failure)) : "–";
}

function explanation({ failure, waiting, inherited }) {
  if (failure) return reasonText(failure);
  if (waiting) return reasonText(waiting);
  return inherited ? translate("taken over") : "";
}
