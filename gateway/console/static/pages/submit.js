// A new job: composed from registered components, or written as JSON or YAML. All change the same body.
import { get, request, segment } from "../api.js";
import { loadCatalog } from "../compose/catalog.js";
import { copyNotes, copyOrigin, loadCopy } from "../compose/copy.js";
import { addTask, kindOf, newJob, upstreamTask } from "../compose/draft.js";
import { Drawing } from "../compose/drawing.js";
import { downloadText, jobText, readJobFile, yamlText } from "../compose/files.js";
import { PlanPanel } from "../compose/plan_panel.js";
import { connectTasks, writeAllColumns } from "../compose/ports.js";
import { askText, button, confirmAction, notify, showError } from "../dialogs.js";
import { append, h, setChildren } from "../dom.js";
import { translate } from "../language.js";
import { jobAddress } from "../links.js";
import { hasRole } from "../roles.js";
import { alertBox, box, errorBox, hint, option, row } from "../widgets.js";

/** `ids`: the job of which the new one is a copy, if any. */
export async function fillPage(body, { session, signal, ids: [copiedJob] }) {
  const catalog = await loadCatalog(session);
  const editor = new JobEditor(session, signal, catalog);
  append(body, editor.elements());
  editor.watchPointer(body);
  await editor.loadTemplates();
  if (copiedJob) await editor.openCopy(copiedJob);
  editor.redraw();
}

class JobEditor {
  #job; // null while the text is not JSON
  #findings = []; // of the last plan
  #isPointerDown = false;
  #afterRelease = []; // functions to call once the pointer is up
  #copy = null; // the copied job with its notes, if the job began as a copy
  #origin = h("div"); // where the copy comes from
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

  selectedTask = "";
  onlyNode = ""; // all parties can be changed
  scope = ""; // the party whose parameters the form shows; "" for all

  constructor(session, signal, catalog) {
    this.session = session;
    this.catalog = catalog;
    this.canSubmit = hasRole(session, "platform");
    this.planPanel = new PlanPanel(signal, (findings) => this.#showFindings(findings));
    this.drawing = new Drawing(catalog, this);
    this.#job = newJob(session.node);
  }

  elements() {
    const refusal = translate("may not submit", { role: this.session.role });
    return [
      h("h1", {}, translate("page submit")),
      !this.canSubmit && box("wait", refusal),
      this.#origin,
      this.#templates,
      h(
        "div",
        { class: "beside" },
        h("div", {}, this.drawing.element, this.#textCard()),
        h("aside", { "aria-label": translate("plan") }, this.#buttons(), this.planPanel.element),
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

  /** Begins with a copy of an earlier job. */
  async openCopy(id) {
    this.#copy = await loadCopy(id);
    this.#job = this.#copy.job;
    this.selectedTask = this.#job.dag.components[0]?.name ?? "";
  }

  #showOrigin() {
    if (!this.#copy || !this.#job) return;
    const setOldJob = (id) => {
      if (id) this.#job.old_job_id = id;
      else delete this.#job.old_job_id;
      this.changed();
    };
    const origin = copyOrigin(this.#copy, this.#job.old_job_id, setOldJob);
    setChildren(this.#origin, origin, copyNotes(this.#copy));
  }

  /** Draws again after a change by the drawing; `task`: the task to select. */
  redraw = (task = this.selectedTask) => {
    this.selectedTask = task;
    this.changed();
    this.#whenReleased(() => this.#draw());
  };

  /** Adds a task of a component, and selects it. */
  add = (component) => this.connected(addTask(this.#job, component, component.description));

  /** Adds a task of the component that was dropped; on another task, it reads from that. */
  addDropped(index, sourceName) {
    const component = this.drawing.componentAt(index);
    const name = addTask(this.#job, component, component.description);
    const source = this.#task(sourceName);
    if (source) connectTasks(this.#job, source, this.#task(name), component.description);
    this.connected(name);
  }

  /** Selects a task with new connections; the tasks from which it reads tables write all columns. */
  async connected(name) {
    for (const input of this.#task(name).input ?? []) {
      const source = this.#task(upstreamTask(input));
      if (!source || kindOf(input.type) !== "dataset") continue;
      const { provider, version, componentName } = source;
      const component = { provider, version, name: componentName };
      writeAllColumns(this.#job, source, await this.catalog.describe(component));
    }
    this.redraw(name);
  }

  #task(name) {
    return this.#job.dag.components.find((task) => task.name === name);
  }

  #showFindings(findings) {
    this.#findings = findings;
    this.#whenReleased(() => this.drawing.showFindings(findings));
  }

  /** Calls a function, but not while the pointer is down: what it presses has to stay for the click. */
  #whenReleased(draw) {
    if (this.#isPointerDown) this.#afterRelease.push(draw);
    else draw();
  }

  watchPointer(element) {
    const release = () => {
      this.#isPointerDown = false;
      for (const draw of this.#afterRelease.splice(0)) setTimeout(draw);
    };
    const press = () => {
      this.#isPointerDown = true;
      addEventListener("pointerup", release, { once: true });
      addEventListener("pointercancel", release, { once: true }); // a drag began
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

  async #draw() {
    this.#showOrigin();
    try {
      await this.drawing.draw(this.#job, this.#findings);
    } catch {
      this.drawing.showInstead(box("wait", translate("cannot be drawn")));
    }
  }

  /** The job in the text; null with a message if it is not JSON. */
  #readText() {
    this.planPanel.show();
    try {
      return JSON.parse(this.#text.value);
    } catch (error) {
      this.planPanel.show(alertBox(`${translate("not JSON")}: ${error.message}`));
      return null;
    }
  }

  // -------------------------------------------------------------- plan and submission

  /** Plans once nothing has changed for a while; a job without tasks has no plan. */
  #planSoon() {
    this.planPanel.stopWaiting();
    const hasTasks = this.#job?.dag?.components?.length > 0;
    if (this.canSubmit && hasTasks) this.planPanel.soon(() => this.#plan());
  }

  /** Shows what would happen to the job. Resolves with the job if every node would take it, else null. */
  async #plan({ isSubmission = false } = {}) {
    const job = this.#readText();
    if (!job) return null;
    return (await this.planPanel.plan(job, isSubmission)) ? job : null;
  }

  async #submit() {
    const job = await this.#plan({ isSubmission: true });
    if (!job) return;
    try {
      const { data } = await request("POST", "/v1/platform/schedule/job/create_all", job);
      notify("good", translate("submitted"));
      location.hash = jobAddress(data.job_id);
    } catch (error) {
      this.planPanel.show(errorBox(error));
    }
  }

  // -------------------------------------------------------------- files

  async #openFile(input) {
    const [file] = input.files;
    try {
      this.#text.value = await readJobFile(file);
      this.#takeText();
    } catch (error) {
      this.planPanel.show(alertBox(`${translate("not YAML")}: ${error.message}`));
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
