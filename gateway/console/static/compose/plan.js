// What would happen to a job at every node.
import { h } from "../dom.js";
import { stepName, translate } from "../language.js";
import { card, checkBadge, hint, row } from "../widgets.js";

const STANDINGS = ["problem", "waits", "warning", "unknown", "ok"]; // obstacles first
const OBSTACLES = ["problem", "waits"];
const MOST_OPEN_WARNINGS = 5; // of a node; more are folded, as they are at their tasks, too

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
  const warnings = ordered.filter(({ standing }) => standing === "warning");
  const openStandings =
    warnings.length > MOST_OPEN_WARNINGS ? OBSTACLES : [...OBSTACLES, "warning"];
  const open = ordered.filter(({ standing }) => openStandings.includes(standing));
  const folded = ordered.filter(({ standing }) => !openStandings.includes(standing));
  return card(
    "",
    h("h2", { class: "mono" }, `${node} ${parties.join(", ")}`),
    checkElements(open),
    folded.length > 0 && h("details", {}, foldedSummary(folded), checkElements(folded)),
  );
}

/** The number of folded checks by their results. */
function foldedSummary(checks) {
  const counts = STANDINGS.map((standing) => {
    const count = checks.filter((check) => check.standing === standing).length;
    return count > 0 && [" ", checkBadge(standing), ` ${count}`];
  });
  return h("summary", {}, counts.flat().filter(Boolean));
}

const checkElements = (checks) =>
  checks.map((check, index) => {
    const isRemedyBelow = check.remedy === checks[index + 1]?.remedy;
    return checkElement(check, isRemedyBelow ? "" : check.remedy);
  });

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
