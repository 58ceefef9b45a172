// One version of a model: where it comes from, its files, deployment, prediction and export.
import { get, getAll, request, segment } from "../api.js";
import { confirmAction, button, notify, notifyDone } from "../dialogs.js";
import { append, h } from "../dom.js";
import { byteSize, displayValue, timestamp } from "../format.js";
import { listSeparator, translate } from "../language.js";
import { buttonLink, compareAddress, jobAddress, jobLink } from "../links.js";
import { hasRole } from "../roles.js";
import { badge, card, code, facts, hint, row, table } from "../widgets.js";
import { modelAddress } from "./models.js";

export async function fillPage(body, { session, ids: [id, version], reload }) {
  const path = `/api/v1/models/${segment(id)}/${segment(version)}`;
  const [model, versions] = await Promise.all([
    get(path),
    getAll("/api/v1/models", "models", { model_id: id }),
  ]);
  const mayUse = hasRole(session, "platform");
  append(
    body,
    row(
      h("h1", {}, `${model.model_id} ${model.version}`),
      badge(model.deployed ? "deployed" : "not deployed"),
    ),
    overview(model, path, mayUse, reload),
    mayUse && !model.imported && (await predictionCard(model, path)),
    card("files", fileTable(model)),
    card("other versions", versionTable(model, versions)),
  );
}

function overview(model, path, mayUse, reload) {
  return card(
    "",
    facts([
      ["training job", model.imported ? translate("imported") : jobLink(model.job_id)],
      ["flow", model.flow_id],
      ["created", timestamp(model.created_at)],
      ["parties", model.parties.map(partyText).join(listSeparator)],
      ["may use it", model.granted.join(listSeparator)],
      ["sha256", code(model.digest)],
      ["size", byteSize(model.bytes)],
    ]),
    mayUse &&
      row(deployButton(model, path, reload), buttonLink(`${path}/export`, translate("export"))),
  );
}

const partyText = ({ role, index, node }) => `${role}.${index} ${node}`;

function deployButton({ deployed, model_id: id, version }, path, reload) {
  const verb = deployed ? "undeploy" : "deploy";
  const act = async () => {
    const what = `${id} ${version}`;
    const question = translate(`${verb}?`, { what });
    if (!(await confirmAction(question, { danger: deployed }))) return;
    await request("POST", `${path}/${verb}`, {});
    notifyDone(verb, what);
    await reload();
  };
  return button(verb, act, deployed ? "danger" : "main");
}

function fileTable({ models }) {
  const rows = models.flatMap(({ party, parts }) =>
    parts.flatMap((part) =>
      (part.files ?? []).map((file) => [
        party,
        file.name,
        byteSize(file.size),
        code(file.sha256 ?? ""),
      ]),
    ),
  );
  return table(["party", "file", "size", "sha256"], rows);
}

function versionTable(model, versions) {
  const others = versions.filter(({ version }) => version !== model.version);
  const rows = others.map((other) => [
    h("a", { href: modelAddress(other) }, other.version),
    badge(other.deployed ? "deployed" : "not deployed"),
    timestamp(other.created_at),
    other.imported || model.imported
      ? ""
      : buttonLink(compareAddress(other.job_id, model.job_id), translate("compare side by side")),
  ]);
  return table(["version", "state", "created", ""], rows, "no other versions");
}

// ---------------------------------------------------------------- prediction

/** A form with a new dataset for each party; the differences to the training are shown first. */
async function predictionCard(model, path) {
  const { datasets } = await get("/api/v1/datasets?limit=1000");
  const known = h(
    "datalist",
    { id: "datasets-here" },
    datasets.map(({ dataset_id: id }) => h("option", { value: id })),
  );
  const fields = model.parties.map((party) => {
    const label = `${party.role}.${party.index}`;
    const attributes = { name: label, list: "datasets-here", placeholder: "namespace#name" };
    return h("label", {}, `${translate("dataset")} ${label}`, h("input", attributes));
  });
  const form = h("form", { class: "fields" }, fields);
  const place = h("div");
  const bodyOf = (dryRun) => ({ datasets: filledIn(form), dry_run: dryRun });
  const preview = async () => {
    const { differences } = await request("POST", `${path}/predict`, bodyOf(true));
    place.replaceChildren(differenceTable(differences));
  };
  const submit = async () => {
    const { job_id: id } = await request("POST", `${path}/predict`, bodyOf(false));
    notify("good", translate("submitted"));
    location.hash = jobAddress(id);
  };
  return card(
    "predict",
    hint(translate("about prediction")),
    known,
    form,
    row(button("preview prediction", preview), button("predict", submit, "main")),
    place,
  );
}

function filledIn(form) {
  const entries = [...new FormData(form)].map(([party, id]) => [party, id.trim()]);
  return Object.fromEntries(entries.filter(([, id]) => id));
}

function differenceTable(differences) {
  const rows = differences.map(({ path, before, after }) => [
    code(path),
    code(displayValue(before)),
    code(displayValue(after)),
  ]);
  return table(["where", "before", "after"], rows, "no difference");
}
