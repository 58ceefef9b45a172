// Jobs as files of the user: JSON and YAML.
import { h } from "../dom.js";

/** Reads a file of JSON or YAML, by its name. Resolves with the text of JSON. */
export async function readJobFile(file) {
  const text = await file.text();
  if (!/\.ya?ml$/i.test(file.name)) return text;
  return jobText(await parseYaml(text));
}

export const jobText = (job) => JSON.stringify(job, null, 2);

/** Downloads a text as a file. */
export function downloadText(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
  h("a", { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}

/** Loads the library when it is first needed. */
async function loadYamlLibrary() {
  await import("../vendor/js-yaml-4.3.2.min.js");
  return globalThis.jsyaml;
}

/** Reads YAML by the schema of JSON, so that dates and the like stay texts. */
async function parseYaml(text) {
  const { load, JSON_SCHEMA } = await loadYamlLibrary();
  return load(text, { schema: JSON_SCHEMA });
}

export async function yamlText(job) {
  const { dump } = await loadYamlLibrary();
  return dump(job, { lineWidth: -1, noRefs: true });
}
