// Buttons, questions and messages.
import { ApiError } from "./api.js";
import { h } from "./dom.js";
import { showProblems } from "./field_errors.js";
import { translate } from "./language.js";
import { errorBox, paragraphs, problemLines, row } from "./widgets.js";

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

/** Cancels an open dialog: its question is about the page that the user has left. */
export function cancelDialogs() {
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close("");
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
      if (document.activeElement === document.body) currentTarget.focus();
    }
  };
  return h("button", { type: "button", class: cssClass, onclick: press }, translate(label));
}

/** A labelled input of a form; `label` is a key of words.js. */
export const inputField = (name, label, attributes = {}) =>
  h("label", {}, translate(label), h("input", { name, maxlength: 1000, ...attributes }));

/**
 * Asks a question with optional fields. Resolves with the form's data, or null if cancelled.
 * `send(data)`: a request whose refusal keeps the dialog open, with the problems at their fields.
 */
export function askForm(question, fields, { danger = false, yes = "yes", send = null } = {}) {
  const problems = h("div");
  const form = h(
    "form",
    { method: "dialog" },
    h("p", {}, question),
    fields && h("div", { class: "fields" }, fields),
    problems,
    row(
      h("button", { class: danger ? "danger" : "main", value: "yes" }, translate(yes)),
      h("button", { value: "", formnovalidate: true }, translate("cancel")),
    ),
  );
  const dialog = h("dialog", { "aria-label": question }, form);
  if (send) form.addEventListener("submit", (event) => sendForm(event, dialog, problems, send));
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

/** Sends the form of a dialog, which is closed once its request was accepted. */
async function sendForm(event, dialog, place, send) {
  const { submitter, target: form } = event;
  if (submitter?.value !== "yes") return; // cancelled
  event.preventDefault();
  submitter.disabled = true;
  place.replaceChildren();
  try {
    await send(new FormData(form));
    dialog.close("yes");
  } catch (error) {
    showRefusal(error, dialog, form, place);
  } finally {
    submitter.disabled = false;
  }
}

/** Shows why a form was refused. An expired session closes its dialog, as it leads to the login page. */
function showRefusal(error, dialog, form, place) {
  if (!(error instanceof ApiError)) console.error(error);
  if (error.status === 401) {
    dialog.close("");
    return;
  }
  const problems = showProblems(form, error.problems ?? []);
  const isPlaced = error.problems?.length > 0 && problems.length === 0;
  if (!isPlaced) place.replaceChildren(errorBox({ ...error, message: error.message, problems }));
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
