// Buttons, questions and messages.
import { ApiError } from "./api.js";
import { h } from "./dom.js";
import { translate } from "./language.js";
import { paragraphs, problemLines, row } from "./widgets.js";

const GOOD_NOTICE_MS = 5_000;
const NOTICE_MS = 15_000;
const NOTICE_PROBLEMS = 8; // problems of an error in a notice

/** Shows a message in the corner for some seconds; `tone`: "good", "wait" or "bad". */
export function notify(tone, ...lines) {
  const close = () => notice.remove();
  const closeButton = h(
    "button",
    { type: "button", class: "close", "aria-label": translate("close"), onclick: close },
    "×",
  );
  const notice = h("div", { class: `box ${tone}` }, closeButton, paragraphs(lines));
  document.getElementById("notices").append(notice);
  setTimeout(close, tone === "good" ? GOOD_NOTICE_MS : NOTICE_MS);
}

/** Confirms an action; `verb`: the label of its button. */
export function notifyDone(verb, what) {
  const label = translate(verb).toLowerCase();
  notify("good", translate("done", { verb: label, what }));
}

/** Removes the errors of earlier actions. */
export function dismissErrors() {
  for (const notice of document.querySelectorAll("#notices .bad")) notice.remove();
}

/** Shows an error as a notice. An expired session is not shown, as it leads to the login page. */
export function showError(error) {
  if (!(error instanceof ApiError)) console.error(error);
  if (error.status !== 401) notify("bad", error.message, ...problemLines(error, NOTICE_PROBLEMS));
}

/** A button that is disabled while its action runs, and shows why the action was refused. */
export function button(label, action, cssClass = "") {
  const press = async ({ currentTarget }) => {
    currentTarget.disabled = true;
    try {
      await action();
    } catch (error) {
      showError(error);
    } finally {
      currentTarget.disabled = false;
    }
  };
  return h("button", { type: "button", class: cssClass, onclick: press }, translate(label));
}

/** A labelled input of a form; `label` is a key of words.js. */
export const inputField = (name, label, attributes = {}) =>
  h("label", {}, translate(label), h("input", { name, maxlength: 1000, ...attributes }));

/** Asks a question with optional fields. Resolves with the form's data, or null if cancelled. */
export function askForm(question, fields, { danger = false, yes = "yes" } = {}) {
  const form = h(
    "form",
    { method: "dialog" },
    h("p", {}, question),
    fields && h("div", { class: "fields" }, fields),
    row(
      h("button", { class: danger ? "danger" : "main", value: "yes" }, translate(yes)),
      h("button", { value: "", formnovalidate: true }, translate("cancel")),
    ),
  );
  const dialog = h("dialog", { "aria-label": question }, form);
  dismissErrors();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes" ? new FormData(form) : null);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Asks for a yes. Resolves with true or false. */
export async function confirmAction(question, { danger = false } = {}) {
  return (await askForm(question, null, { danger })) !== null;
}

/** Asks for a text, such as a reason. Resolves with the text, or null if cancelled. */
export async function askText(question, { danger = false, label = "reason", value = "" } = {}) {
  const form = await askForm(question, inputField("text", label, { value }), { danger });
  return form && form.get("text");
}
