// A new job: composed from registered components, or written as JSON or YAML. All change the same body.
import { get, request, segment } from "../api.js";
import { loadCatalog } from "../compose/catalog.js";
import { newJob } from "../compose/draft.js";
import { drawing } from "../compose/drawing.js";
import { downloadText, jobText, readJobFile, yamlText } from "../compose/files.js";
import { planElements } from "../compose/plan.js";
import { askText, button, confirmAction, notify, showError } from "../dialogs.js";
import { append, h, setChildren } from "../dom.js";
import { translate } from "../language.js";
import { jobAddress } from "../links.js";
import { hasRole } from "../roles.js";
import { alertBox, box, errorBox, hint, option, row } from "../widgets.js";

const PLAN_DELAY_MS = 1000; // after the last change

export async function fillPage(body, { session, signal }) {
  const catalog = await loadCatalog(session);
  const editor = new JobEditor(session, signal, catalog);
  append(body, editor.elements());
  editor.watchPointer(body);
  await editor.loadTemplates();
  editor.redraw();
}

class JobEditor {
  #job; // null while the text is not JSON
  #selectedTask = "";
  #isPointerDown = false;
  #planTimer = null;
  #lastPlan = 0; // number of the last request for a plan
  #drawing = h("div");
  #messages = h("div"); // plan or error
  #templates = h("div", { class: "row" });
  #text = h("textarea", {
    name: "job",
    spellcheck: "false",
    "aria-label": translate("job as JSON"),
    oninput: () => this.#takeText(),
  });
  #fileInput = h("input", {
    type: "file",
    accept: ".json,.yaml,.yml,application/json",
    onchange: (event) => this.#openFile(event.target),
  });

  constructor(session, signal, catalog) {
    this.session = session;
    this.signal = signal;
    this.catalog = catalog;
    this.canSubmit = hasRole(session, "platform");
    this.#job = newJob(session.node);
    signal.addEventListener("abort", () => clearTimeout(this.#planTimer));
  }

  elements() {
    const refusal = translate("may not submit", { role: this.session.role });
    return [
      h("h1", {}, translate("page submit")),
      !this.canSubmit && box("wait", refusal),
      this.#templates,
      h(
        "div",
        { class: "beside" },
        h("div", {}, this.#drawing, this.#textCard()),
        h("aside", { "aria-label": translate("plan") }, this.#buttons(), this.#messages),
      ),
    ];
  }

  #textCard() {
    const summary = h("summary", {}, h("strong", {}, translate("job as JSON")));
    return h("section", {}, h("details", {}, summary, hint(translate("about submit")), this.#text));
  }

  #buttons() {
    const planning = row(
      button("plan", () => this.#plan()),
      button("submit", () => this.#submit(), "main"),
    );
    const saving = row(
      button("save as JSON", () => this.#saveFile("json", jobText)),
      button("save as YAML", () => this.#saveFile("yaml", yamlText)),
      this.canSubmit && button("save as template", () => this.#saveTemplate()),
    );
    return [this.canSubmit && planning, saving];
  }

  // -------------------------------------------------------------- changes

  /** Shows the job's JSON after a change by the drawing, and plans soon. */
  changed = () => {
    this.#text.value = jobText(this.#job);
    this.#planSoon();
  };

  /** Draws again after a change by the drawing; `task`: the task to select. */
  redraw = (task = this.#selectedTask) => {
    this.#selectedTask = task;
    this.changed();
    if (this.#isPointerDown) {
      // A press on a button also ends an edit: drawing before the click would remove the button.
      addEventListener("pointerup", () => setTimeout(() => this.#draw()), { once: true });
    } else {
      this.#draw();
    }
  };

  watchPointer(element) {
    const release = () => {
      this.#isPointerDown = false;
    };
    const press = () => {
      this.#isPointerDown = true;
      addEventListener("pointerup", release, { once: true });
    };
    element.addEventListener("pointerdown", press, { capture: true });
  }

  /** Takes a change of the text. */
  #takeText() {
    try {
      this.#job = JSON.parse(this.#text.value);
    } catch {
      this.#job = null;
    }
    this.#planSoon();
    this.#draw();
  }

  /** Draws the job; the focus stays at the control with the same position. */
  async #draw() {
    const controls = () => [...this.#drawing.querySelectorAll("input, select, button, [tabindex]")];
    const focused = controls().indexOf(document.activeElement);
    try {
      const elements = await drawing(this.#job, this.#selectedTask, this.catalog, this);
      this.#drawing.replaceChildren(...elements);
      if (focused >= 0) controls()[focused]?.focus();
    } catch {
      this.#drawing.replaceChildren(box("wait", translate("cannot be drawn")));
    }
  }

  /** The job in the text; null with a message if it is not JSON. */
  #readText() {
    this.#messages.replaceChildren();
    try {
      return JSON.parse(this.#text.value);
    } catch (error) {
      this.#messages.replaceChildren(alertBox(`${translate("not JSON")}: ${error.message}`));
      return null;
    }
  }

  // -------------------------------------------------------------- plan and submission

  /** Plans once nothing has changed for a while; a job without tasks has no plan. */
  #planSoon() {
    clearTimeout(this.#planTimer);
    const hasTasks = this.#job?.dag?.components?.length > 0;
    if (!this.canSubmit || !hasTasks) return;
    this.#planTimer = setTimeout(() => {
      if (!this.signal.aborted) this.#plan();
    }, PLAN_DELAY_MS);
  }

  /** Shows what would happen to the job. Resolves with the job if every node would take it, else null. */
  async #plan({ isSubmission = false } = {}) {
    const job = this.#readText();
    if (!job) return null;
    clearTimeout(this.#planTimer);
    this.#lastPlan += 1;
    const number = this.#lastPlan;
    const showIfLast = (...elements) => {
      if (number === this.#lastPlan) this.#messages.replaceChildren(...elements);
    };
    showIfLast(hint(translate("planning")));
    try {
      const plan = await request("POST", "/api/v1/jobs/plan", job);
      showIfLast(...planElements(plan, isSubmission));
      return plan.good ? job : null;
    } catch (error) {
      showIfLast(errorBox(error));
      return null;
    }
  }

  async #submit() {
    const job = await this.#plan({ isSubmission: true });
    if (!job) return;
    try {
      const { data } = await request("POST", "/v1/platform/schedule/job/create_all", job);
      notify("good", translate("submitted"));
      location.hash = jobAddress(data.job_id);
    } catch (error) {
      this.#messages.replaceChildren(errorBox(error));
    }
  }

  // -------------------------------------------------------------- files

  async #openFile(input) {
    const [file] = input.files;
    try {
      this.#text.value = await readJobFile(file);
      this.#takeText();
    } catch (error) {
      this.#messages.replaceChildren(alertBox(`${translate("not YAML")}: ${error.message}`));
    }
    input.value = ""; // so that the same file can be opened again
  }

  async #saveFile(extension, format) {
    const job = this.#readText();
    if (!job) return;
    downloadText(`${job.flow_id || "job"}.${extension}`, await format(job));
  }

  // -------------------------------------------------------------- templates

  async loadTemplates() {
    const { templates } = await get("/api/v1/templates?limit=1000");
    const choice = templates.length > 0 && this.#templateChoice(templates);
    setChildren(this.#templates, h("label", {}, translate("from a file"), this.#fileInput), choice);
  }

  #templateChoice(templates) {
    const open = (event) => {
      if (event.target.value) this.#openTemplate(event.target.value).catch(showError);
    };
    const select = h(
      "select",
      { "aria-label": translate("template"), onchange: open },
      option("", "", translate("from a template")),
      templates.map(({ name, author }) => option(name, "", `${name} · ${author}`)),
    );
    const remove = () => this.#deleteTemplate(select.value);
    return [
      h("label", {}, translate("template"), select),
      this.canSubmit && button("delete the template", remove, "danger"),
    ];
  }

  async #openTemplate(name) {
    const { job } = await get(`/api/v1/templates/${segment(name)}`);
    this.#text.value = jobText(job);
    this.#takeText();
  }

  async #saveTemplate() {
    const job = this.#readText();
    if (!job) return;
    const question = translate("about templates");
    const name = await askText(question, { label: "name", value: job.flow_id });
    if (!name) return;
    await request("PUT", `/api/v1/templates/${segment(name.trim())}`, { job });
    await this.loadTemplates();
    notify("good", translate("template saved", { name }));
  }

  async #deleteTemplate(name) {
    if (!name) return;
    const question = translate("delete the template?", { name });
    if (!(await confirmAction(question, { danger: true }))) return;
    await request("DELETE", `/api/v1/templates/${segment(name)}`);
    await this.loadTemplates();
  }
}
