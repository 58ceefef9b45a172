// Stopping and deleting several jobs, with the result of each.
import { request, segment } from "../api.js";
import { button, confirmAction } from "../dialogs.js";
import { h } from "../dom.js";
import { translate } from "../language.js";
import { compareAddress, jobLink } from "../links.js";
import { hasRole } from "../roles.js";
import { badge, card, row, table } from "../widgets.js";

const stopJob = (id) => request("POST", "/v1/platform/schedule/job/stop_all", { job_id: id });

const deleteJob = (id) => request("DELETE", `/api/v1/jobs/${segment(id)}`);

/**
 * The jobs that the user has selected, with the buttons for all of them.
 * `reload` is called after an action.
 */
export class Selection {
  #ids = new Set();
  #count = h("span", { class: "faint", role: "status" });
  #results = h("div");
  #buttons;

  constructor(session, reload) {
    this.reload = reload;
    this.isUseful = hasRole(session, "platform");
    this.#buttons = row(
      this.isUseful && button("stop the selected", () => this.#act("stop selected?", stopJob)),
      hasRole(session) &&
        button("delete the selected", () => this.#act("delete selected?", deleteJob), "danger"),
      h("a", { class: "button", hidden: true }, translate("compare side by side")),
      this.#count,
    );
    this.#showCount();
  }

  elements() {
    return this.isUseful ? [this.#buttons, this.#results] : [];
  }

  /** A box that selects a job. */
  boxOf(id) {
    return this.#box(translate("select", { what: id }), this.#ids.has(id), (checked) => {
      if (checked) this.#ids.add(id);
      else this.#ids.delete(id);
    });
  }

  /** A box that selects all the jobs of a table; `redraw` draws the table again. */
  boxOfAll(ids, redraw) {
    const all = ids.length > 0 && ids.every((id) => this.#ids.has(id));
    return this.#box(translate("select all"), all, (checked) => {
      this.#ids = new Set(checked ? ids : []);
      redraw();
    });
  }

  /** Drops the selection, as after a new search. */
  clear() {
    this.#ids.clear();
    this.#showCount();
  }

  #box(label, checked, change) {
    const onchange = (event) => {
      change(event.target.checked);
      this.#showCount();
    };
    return h("input", { type: "checkbox", "aria-label": label, checked, onchange });
  }

  #showCount() {
    const count = this.#ids.size;
    this.#count.textContent = translate("selected", { count });
    for (const each of this.#buttons.querySelectorAll("button")) each.hidden = count === 0;
    const link = this.#buttons.querySelector("a");
    link.hidden = count !== 2;
    if (count === 2) link.href = compareAddress(...this.#ids);
  }

  /** Asks for a confirmation, acts on each job, and shows the results as they come. */
  async #act(question, action) {
    const ids = [...this.#ids];
    const text = translate(question, { count: ids.length });
    if (!(await confirmAction(text, { danger: true }))) return;
    const results = [];
    for (const id of ids) {
      results.push(await resultOf(id, action));
      this.#results.replaceChildren(resultCard(results, ids.length));
    }
    this.clear();
    await this.reload();
  }
}

/** The cells of a job's result. */
async function resultOf(id, action) {
  try {
    await action(id);
    return [jobLink(id), badge("ok"), ""];
  } catch (error) {
    return [jobLink(id), badge("failed"), error.message];
  }
}

function resultCard(results, total) {
  const heading = h("h2", {}, `${translate("result")} (${results.length}/${total})`);
  return card("", heading, table(["job", "state", "why"], results));
}
