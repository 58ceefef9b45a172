// The problems of a refused request at the fields of the form that they belong to.
import { h } from "./dom.js";

let lastId = 0; // of an error's element

/**
 * Shows each problem at the field that its path names, and puts the focus into the first of them. Returns the
 * problems without a field. `names`: a field's name by another name for it in paths.
 */
export function showProblems(form, problems, names = {}) {
  clearProblems(form);
  const located = problems.map((problem) => ({
    problem,
    control: controlOf(form, problem, names),
  }));
  for (const { problem, control } of located) {
    if (control) markField(control, textOf(problem, control, names));
  }
  form.querySelector("[aria-invalid]")?.focus();
  return located.filter(({ control }) => !control).map(({ problem }) => problem);
}

/** Removes the problems that are shown at fields. */
export function clearProblems(form) {
  for (const error of form.querySelectorAll(".field-error")) error.remove();
  for (const control of form.querySelectorAll("[aria-describedby]")) unmark(control);
}

/** The control of a form that the last steps of a path name; undefined without one. */
function controlOf(form, { path }, names) {
  const controls = stepsOf(path, names).map((name) => form.elements.namedItem(name));
  return controls.findLast((control) => control instanceof HTMLElement);
}

const stepsOf = (path, names) =>
  (path.match(/[^.[\]:]+/g) ?? []).map((step) => names[step] ?? step);

/** What is wrong; with the path if that leads on from the field, such as to a line of a file. */
function textOf({ path, rule, suggestion }, { name }, names) {
  const place = stepsOf(path, names).at(-1) === name ? "" : `${path} `;
  return suggestion ? `${place}${rule} → ${suggestion}` : `${place}${rule}`;
}

/** Shows an error or, with another `tone`, a remark below a control, until somebody changes its value. */
export function markField(control, content, { tone = "bad" } = {}) {
  lastId += 1;
  const id = `error-${lastId}`;
  const error = h("small", { class: `field-error ${tone}`, id }, content);
  const described = [control.getAttribute("aria-describedby"), id].filter(Boolean).join(" ");
  if (tone === "bad") control.setAttribute("aria-invalid", "true");
  control.setAttribute("aria-describedby", described);
  if (control.parentElement.tagName === "LABEL") control.parentElement.append(error);
  else control.after(error);
  const remove = () => {
    error.remove();
    unmark(control);
  };
  control.addEventListener("input", remove, { once: true });
}

function unmark(control) {
  control.removeAttribute("aria-invalid");
  control.removeAttribute("aria-describedby");
}
