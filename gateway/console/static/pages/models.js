// The models that trainings left at this node: every version, and two of them side by side.
import { getAll, segment } from "../api.js";
import { append, h } from "../dom.js";
import { byteSize, timestamp } from "../format.js";
import { listSeparator, translate } from "../language.js";
import { compareAddress, shortJobLink } from "../links.js";
import { badge, card, row, table } from "../widgets.js";

export async function fillPage(body) {
  const models = await getAll("/api/v1/models", "models");
  append(
    body,
    h("h1", {}, translate("page models")),
    card("", modelTable(models), models.length > 1 && comparison(models)),
  );
}

export const modelAddress = ({ model_id: id, version }) =>
  `#/models/${segment(id)}/${segment(version)}`;

function modelTable(models) {
  const rows = models.map((model) => [
    h("a", { href: modelAddress(model) }, model.model_id),
    model.version,
    badge(model.deployed ? "deployed" : "not deployed"),
    model.imported ? translate("imported") : shortJobLink(model.job_id),
    model.flow_id,
    model.here.join(listSeparator),
    timestamp(model.created_at),
    byteSize(model.bytes),
  ]);
  const columns = ["model", "version", "state", "training job", "flow", "party", "created", "size"];
  return table(columns, rows, "no models");
}

/** The choice of two versions; their trainings are compared. */
function comparison(models) {
  const trained = models.filter(({ imported }) => !imported);
  if (trained.length < 2) return "";
  const first = choiceOf(trained, 0);
  const second = choiceOf(trained, 1);
  const link = h("a", { class: "button" }, translate("compare side by side"));
  const update = () => link.setAttribute("href", compareAddress(first.value, second.value));
  first.addEventListener("change", update);
  second.addEventListener("change", update);
  update();
  return [h("h2", {}, translate("compare side by side")), row(first, second, link)];
}

function choiceOf(models, selected) {
  const options = models.map(({ model_id: id, version, job_id: job }, index) =>
    h("option", { value: job, selected: index === selected }, `${id} ${version}`),
  );
  return h("select", { "aria-label": `${translate("version")} ${selected + 1}` }, options);
}
