// The report of a check of a partner's platform: its date, its verdicts, the clauses that do not hold.
import { get, request, segment } from "../api.js";
import { button, confirmAction, notifyDone } from "../dialogs.js";
import { h } from "../dom.js";
import { apiWord, language, translate } from "../language.js";
import { buttonLink } from "../links.js";
import { hasRole } from "../roles.js";
import { badge, card, code, facts, hint, row, table } from "../widgets.js";

const pathOf = (node) => `/api/v1/partner-reports/${segment(node)}`;

/** `report`: what the stored report says; undefined if none is stored. */
export function reportCard(report, session, reload) {
  if (!report) return card("platform check", hint(translate("no report")));
  const clauses = h("div");
  return card(
    "platform check",
    h("p", {}, checkedOn(report), " ", badge(report.good ? "good" : "failed")),
    facts([
      ["verdicts", verdictsOf(report)],
      ["standard", report.standard],
      ["signed by", signerOf(report)],
    ]),
    row(
      report.deviations > 0 && button("show clauses", () => showClauses(report.node, clauses)),
      buttonLink(`${pathOf(report.node)}/page`, translate("report page"), { target: "_blank" }),
      buttonLink(`${pathOf(report.node)}/file`, translate("signed file")),
      hasRole(session) && deleteButton(report.node, reload),
    ),
    clauses,
  );
}

/** When the partner was checked, and how many clauses do not hold. */
function checkedOn({ checked_at, deviations: count }) {
  const date = checked_at.slice(0, 10);
  return translate(count === 1 ? "checked on, 1" : "checked on", { date, count });
}

const verdictsOf = ({ counts }) =>
  Object.entries(counts)
    .map(([verdict, count]) => `${count} ${apiWord(verdict)}`)
    .join(", ");

const signerOf = ({ signed_by, key }) => [apiWord(`signer ${signed_by}`), " ", code(key)];

async function showClauses(node, place) {
  const { breaches } = await get(pathOf(node));
  const rows = breaches.map((clause) => [
    [code(clause.id), hint(`${apiWord(clause.level)}, ${clause.section}`)],
    badge(clause.verdict),
    clause.says[language],
    [clause.observation, clause.dialect && hint(translate("as profile", { name: clause.dialect }))],
    clause.remedy[language],
  ]);
  const columns = ["clause", "result", "what it says", "seen", "what to do"];
  place.replaceChildren(table(columns, rows));
}

function deleteButton(node, reload) {
  const remove = async () => {
    if (!(await confirmAction(translate("delete report?", { node }), { danger: true }))) return;
    await request("DELETE", pathOf(node));
    notifyDone("delete", translate("platform check"));
    await reload();
  };
  return button("delete", remove, "danger");
}
