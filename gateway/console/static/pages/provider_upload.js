// Registration of a provider by a file, with what the node found in it.
import { ApiError, request, segment } from "../api.js";
import { readJobFile } from "../compose/files.js";
import { button } from "../dialogs.js";
import { h } from "../dom.js";
import { displayValue } from "../format.js";
import { translate } from "../language.js";
import { alertBox, badge, card, code, errorBox, hint, row, table } from "../widgets.js";

/** A card with the form; `reload` shows the list again after a registration. */
export function uploadCard(reload) {
  const file = h("input", { type: "file", accept: ".json,.yaml,.yml,application/json" });
  const reason = h("input", { name: "reason", maxlength: 1000 });
  const result = h("div");
  const register = async () => {
    const [chosen] = file.files;
    if (!chosen) return;
    result.replaceChildren(hint(translate("registering")));
    result.replaceChildren(await outcomeOf(chosen, reason.value.trim()));
    await reload();
  };
  return card(
    "register provider",
    hint(translate("about registering")),
    row(
      h("label", {}, translate("file"), file),
      h("label", {}, translate("reason"), reason),
      button("register", register, "main"),
    ),
    result,
  );
}

/** Registers a file; the element that shows the result, or every problem. */
async function outcomeOf(file, reason) {
  let body;
  try {
    body = JSON.parse(await readJobFile(file));
  } catch (error) {
    return alertBox(`${translate("not JSON")}: ${error.message}`);
  }
  try {
    const path = `/api/v1/providers?reason=${segment(reason)}`;
    return resultElement(await request("POST", path, body));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return errorBox(error);
  }
}

function resultElement({ provider_name: name, revision, changed, changes, warnings }) {
  return h(
    "div",
    { role: "status" },
    row(
      h("a", { href: `#/providers/${segment(name)}` }, name),
      badge(changed ? "registered" : "unchanged"),
      ` ${translate("revision")} ${revision}`,
    ),
    h("h3", {}, translate("warnings")),
    warningTable(warnings),
    revision > 1 && [h("h3", {}, translate("difference")), changeTable(changes)],
  );
}

/** The warnings about a description. */
export function warningTable(warnings) {
  const rows = warnings.map((warning) => [
    warning.path ?? "",
    warning.rule ?? warning.message ?? displayValue(warning),
  ]);
  return table(["where", "what"], rows, "no warnings");
}

/** Changed values, each with its path. */
export function changeTable(changes) {
  const rows = changes.map((change) => [
    code(change.path),
    code(displayValue(change.before)),
    code(displayValue(change.after)),
  ]);
  return table(["where", "before", "after"], rows, "no difference");
}
