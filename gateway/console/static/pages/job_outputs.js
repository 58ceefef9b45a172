// The outputs of a job at this node, each with a look at its beginning.
import { get, segment } from "../api.js";
import { button } from "../dialogs.js";
import { h } from "../dom.js";
import { prettyJson } from "../format.js";
import { translate } from "../language.js";
import { buttonLink } from "../links.js";
import { card, dataTable, row, table } from "../widgets.js";

/** `readsOutputs`: whether the user may look at outputs and download them. */
export async function outputsCard(path, ended, readsOutputs) {
  const { outputs } = await get(`${path}/outputs`).catch(() => ({ outputs: [] }));
  if (outputs.length === 0) return null;
  const preview = h("div");
  const outputState = (output) => {
    if (!output.there) return translate(ended ? "not there" : "not yet");
    return readsOutputs ? outputActions(path, output, preview) : "";
  };
  const rows = outputs.map((output) => [
    output.task,
    output.party,
    output.output || output.key,
    outputState(output),
  ]);
  return card("outputs", table(["task", "party", "output", ""], rows), preview);
}

function outputActions(path, output, preview) {
  const { task, party, key } = output;
  const outputPath = `${path}/outputs/${segment(task)}/${segment(party)}/${segment(key)}`;
  return row(
    button("look", () => showOutput(outputPath, output, preview)),
    buttonLink(`${outputPath}/download`, translate("download")),
  );
}

async function showOutput(path, { task, party, output, key }, preview) {
  const beginning = await get(path);
  const content = beginning.rows
    ? dataTable(beginning.columns, beginning.rows)
    : h("pre", {}, prettyJson(beginning.value ?? beginning));
  preview.replaceChildren(h("h2", {}, `${task} ${party} ${output || key}`), content);
  preview.scrollIntoView({ block: "nearest" });
}
