// What would happen to a job at every node.
import { h } from "../dom.js";
import { stepName, translate } from "../language.js";
import { card, checkBadge, hint, row } from "../widgets.js";

const STANDINGS = ["problem", "waits", "warning", "unknown", "ok"]; // obstacles first

/** The verdict and the checks of each node. `isSubmission`: whether the user tried to submit the job. */
export function planElements(plan, isSubmission) {
  return [verdict(plan, isSubmission), ...plan.nodes.map(nodeCard)];
}

function verdict({ good, verdict: text, problem_count: count }, isSubmission) {
  const isRefused = !good && isSubmission;
  return h(
    "div",
    { class: `box ${good ? "" : "bad"}`, role: good ? "status" : "alert" },
    h("p", {}, text),
    isRefused && h("p", {}, h("strong", {}, translate("not submitted", { count }))),
  );
}

function nodeCard({ node, parties, checks }) {
  const ordered = STANDINGS.flatMap((standing) =>
    checks.filter((check) => check.standing === standing),
  );
  const elements = ordered.map((check, index) => {
    const isRemedyBelow = check.remedy === ordered[index + 1]?.remedy;
    return checkElement(check, isRemedyBelow ? "" : check.remedy);
  });
  return card("", h("h2", { class: "mono" }, `${node} ${parties.join(", ")}`), elements);
}

function checkElement({ standing, check, about, found, cause }, remedy) {
  return h(
    "div",
    { class: "check" },
    row(
      checkBadge(standing),
      h("strong", {}, stepName(check)),
      h("span", { class: "faint" }, about),
    ),
    found && h("p", {}, found),
    cause && hint(cause),
    remedy && h("p", {}, h("strong", {}, `${translate("next step")}: `), remedy),
  );
}
