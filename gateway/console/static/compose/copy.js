// A job that begins as the copy of an earlier one.
import { get, segment } from "../api.js";
import { h } from "../dom.js";
import { listSeparator, translate } from "../language.js";
import { shortJobLink } from "../links.js";
import { box } from "../widgets.js";

/** Loads a job as the body of a new one: `{job_id, job, left_out, foreign_parties}`. */
export const loadCopy = (id) => get(`/api/v1/jobs/${segment(id)}/copy`);

/** What the copy lacks: secrets, and the parameters of parties that only other nodes know. */
export function copyNotes({ left_out: leftOut, foreign_parties: parties }) {
  return [
    leftOut.length > 0 && note("copy lacks secrets", leftOut),
    parties.length > 0 && note("copy lacks parties", parties),
  ];
}

const note = (text, names) => box("wait", translate(text, { names: names.join(listSeparator) }));

/** Where the copy comes from, and whether it takes over results. `setOldJob` gets the id, or "". */
export function copyOrigin(copy, oldJob, setOldJob) {
  const change = ({ target }) => setOldJob(target.checked ? copy.job_id : "");
  const checkbox = h("input", { type: "checkbox", checked: Boolean(oldJob), onchange: change });
  return h(
    "div",
    { class: "row" },
    h("span", {}, translate("copy of"), " ", shortJobLink(copy.job_id)),
    h("label", { class: "flat" }, checkbox, translate("take over unchanged")),
  );
}
