// The node's datasets, and the upload of a table.
import { ApiError, getAll, segment } from "../api.js";
import { notify } from "../dialogs.js";
import { append, h } from "../dom.js";
import { clearProblems, showProblems } from "../field_errors.js";
import { byteSize, timestamp } from "../format.js";
import { language, translate } from "../language.js";
import { hasRole } from "../roles.js";
import { badge, card, errorBox, hint, row, table } from "../widgets.js";

// Names of the upload's metadata by the fields of the form.
const METADATA_FIELDS = {
  "label column": "label_name",
  "id column": "match_id_name",
  delimiter: "delimiter",
};

const FIELDS_BY_KEY = Object.fromEntries(
  Object.entries(METADATA_FIELDS).map(([field, key]) => [key, field]),
);

export async function fillPage(body, { session, reload }) {
  const datasets = await getAll("/api/v1/datasets", "datasets", { unregistered: false });
  append(
    body,
    h("h1", {}, translate("page data")),
    card("", datasetTable(datasets)),
    hasRole(session, "platform") && uploadCard(reload),
  );
}

function datasetTable(datasets) {
  const rows = datasets.map((dataset) => {
    const address = `#/data/${segment(dataset.namespace)}/${segment(dataset.name)}`;
    return [
      h("a", { href: address }, dataset.dataset_id),
      dataset.count,
      dataset.columns,
      byteSize(dataset.size),
      badge(dataset.disabled ? "disabled" : "enabled"),
      timestamp(dataset.created_at),
    ];
  });
  return table(["dataset", "rows", "columns", "size", "state", "created"], rows, "no data");
}

// ---------------------------------------------------------------- upload

function uploadCard(reload) {
  const progress = h("progress", { max: 1, hidden: true, "aria-label": translate("progress") });
  const message = h("div");
  const submit = (event) => {
    event.preventDefault();
    clearProblems(form);
    upload(uploadBody(new FormData(form)), { form, progress, message, reload });
  };
  const form = h(
    "form",
    { onsubmit: submit },
    row(
      field("namespace", { required: true }),
      field("name", { required: true }),
      field("id column"),
      field("label column"),
      field("delimiter", { size: 3 }),
      overwriteBox(),
    ),
    row(
      h("input", { type: "file", name: "file", required: true, "aria-label": translate("file") }),
      h("button", { class: "main" }, translate("upload")),
      progress,
    ),
    message,
  );
  return card("upload", hint(translate("about upload")), form);
}

const field = (name, attributes = {}) =>
  h("label", {}, translate(name), h("input", { name, ...attributes }));

const overwriteBox = () =>
  h(
    "label",
    { class: "flat" },
    h("input", { type: "checkbox", name: "overwrite" }),
    translate("overwrite"),
  );

function uploadBody(form) {
  const metadata = {};
  for (const [fieldName, key] of Object.entries(METADATA_FIELDS)) {
    const text = form.get(fieldName);
    if (text) metadata[key] = text;
  }
  const body = new FormData();
  body.set("namespace", form.get("namespace"));
  body.set("name", form.get("name"));
  body.set("meta", JSON.stringify(metadata));
  if (form.get("overwrite")) body.set("overwrite", "true");
  body.set("file", form.get("file"));
  return body;
}

/** Sends the table. `fetch` does not report the progress of an upload, so this is an XMLHttpRequest. */
function upload(body, { form, progress, message, reload }) {
  const upload = new XMLHttpRequest();
  upload.open("POST", "/v2/component/upload/file");
  upload.setRequestHeader("x-console", "1");
  upload.setRequestHeader("accept-language", language);
  upload.upload.onprogress = ({ lengthComputable, loaded, total }) => {
    progress.hidden = false;
    if (lengthComputable) progress.value = loaded / total;
  };
  upload.upload.onload = () => {
    progress.removeAttribute("value");
    message.replaceChildren(hint(translate("checking")));
  };
  upload.onloadend = async () => {
    progress.hidden = true;
    message.replaceChildren();
    const response = parseJson(upload.responseText);
    if (upload.status === 200 && response?.code === 0) {
      showUploaded(response.data);
      await reload();
    } else {
      const error = new ApiError(upload.status, response ?? { msg: translate("no response") });
      const problems = showProblems(form, error.problems, FIELDS_BY_KEY);
      message.replaceChildren(errorBox({ ...error, message: error.message, problems }));
    }
  };
  upload.send(body);
}

function parseJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function showUploaded({ count, columns, dataset_id: id, warnings }) {
  notify("good", translate("uploaded", { rows: count, columns: columns.length, id }));
  if (warnings.length > 0) notify("wait", ...warnings);
}
