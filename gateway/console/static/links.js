// Links between pages.
import { segment } from "./api.js";
import { h } from "./dom.js";

const LONGEST_JOB_ID = 20; // characters of an id in a table

export const jobAddress = (id) => `#/jobs/${segment(id)}`;

/** The page that runs a job again. */
export const rerunAddress = (id) => `${jobAddress(id)}/rerun`;

/** The page of a new job that begins as a copy. */
export const copyAddress = (id) => `#/submit/${segment(id)}`;

/** The page that shows two jobs side by side. */
export const compareAddress = (one, other) => `#/compare/${segment(one)}/${segment(other)}`;

export const jobLink = (id) => h("a", { href: jobAddress(id), class: "mono" }, id);

/** A link to a job by the beginning of its id. */
export function shortJobLink(id) {
  const text = id.length > LONGEST_JOB_ID ? `${id.slice(0, 16)}…` : id;
  return h("a", { href: jobAddress(id), title: id, class: "mono" }, text);
}

/** A link to a dataset by its id, as in "namespace#name". */
export function datasetLink(id) {
  const parts = id.split("#").map(segment);
  return h("a", { href: `#/data/${parts.join("/")}` }, id);
}

export const buttonLink = (href, text, attributes = {}) =>
  h("a", { class: "button", href, ...attributes }, text);
