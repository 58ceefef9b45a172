// An ended job that runs again from one of its tasks on, with other parameters.
import { get, request, segment } from "../api.js";
import { loadCatalog } from "../compose/catalog.js";
import { asTaskParams, changeRows, parameterChanges, restoreRemoved } from "../compose/changes.js";
import { loadCopy } from "../compose/copy.js";
import { downstreamTasks, ROLES } from "../compose/draft.js";
import { placeFindings } from "../compose/findings.js";
import { parameterFields } from "../compose/parameters.js";
import { PlanPanel } from "../compose/plan_panel.js";
import { button, notify } from "../dialogs.js";
import { append, h, setChildren } from "../dom.js";
import { flowPicture } from "../graph.js";
import { listSeparator, translate } from "../language.js";
import { buttonLink, copyAddress, jobAddress, jobLink } from "../links.js";
import { box, card, hint, option, row, table } from "../widgets.js";
import { reasonText } from "./job_states.js";

export async function fillPage(body, { session, signal, ids: [id] }) {
  const [job, copy, catalog] = await Promise.all([
    get(`/api/v1/jobs/${segment(id)}`),
    loadCopy(id),
    loadCatalog(session),
  ]);
  const rerun = new Rerun(job, copy, catalog, session.node, signal);
  append(body, rerun.elements());
  rerun.redraw();
}

class Rerun {
  scope = ""; // the party whose parameters the form shows; "" for all
  #start; // the task to begin with
  #selected; // the task whose parameters are shown
  #edited; // the job with the new parameters
  #choice = h("div");
  #form = h("div");
  #changes = h("div");

  constructor(job, copy, catalog, node, signal) {
    this.job = job;
    this.copy = copy;
    this.catalog = catalog;
    this.planPanel = new PlanPanel(signal, (findings) => placeFindings(this.#form, findings));
    const mayChangeAll = [job.initiator, job.scheduler].includes(node);
    this.onlyNode = mayChangeAll ? "" : node;
    this.#edited = structuredClone(copy.job);
    const unfinished = job.tasks.find(({ status }) => status !== "SUCCESS");
    this.#start = (unfinished ?? job.tasks[0]).name;
    this.#selected = this.#start;
  }

  elements() {
    const { job_id: id } = this.job;
    const buttons = row(
      button("plan", () => this.#plan()),
      button("run again", () => this.#submit(), "main"),
      buttonLink(copyAddress(id), translate("edit as new job")),
    );
    return [
      h("h1", {}, translate("page rerun")),
      h("p", {}, translate("rerun of"), " ", jobLink(id)),
      this.#secretsNote(),
      h(
        "div",
        { class: "beside" },
        h("div", {}, this.#choice, this.#form),
        h(
          "aside",
          { "aria-label": translate("plan") },
          buttons,
          this.#changes,
          this.planPanel.element,
        ),
      ),
    ];
  }

  /** The new job has the old one's secrets, but the plan is made from a copy without them. */
  #secretsNote() {
    const { left_out: names } = this.copy;
    if (names.length === 0) return null;
    return box("wait", translate("plan lacks secrets", { names: names.join(listSeparator) }));
  }

  // -------------------------------------------------------------- tasks

  /** The names of the tasks that run again. */
  #tasksToRun() {
    const unfinished = this.job.tasks.filter(({ status }) => status !== "SUCCESS");
    const names = new Set();
    for (const first of [this.#start, ...unfinished.map(({ name }) => name)]) {
      for (const name of downstreamTasks(this.copy.job, { name: first })) names.add(name);
    }
    return names;
  }

  #tasksTakenOver() {
    const tasksToRun = this.#tasksToRun();
    return this.job.tasks.map(({ name }) => name).filter((name) => !tasksToRun.has(name));
  }

  // -------------------------------------------------------------- changes

  /** Shows a change of a parameter, and plans soon. An emptied parameter keeps its old value. */
  changed = () => {
    if (restoreRemoved(this.copy.job, this.#edited)) this.#drawForm();
    const changes = this.#possibleChanges();
    const columns = ["task", "party", "name", "before", "after"];
    setChildren(
      this.#changes,
      card("changed parameters", table(columns, changeRows(changes), "nothing changed")),
    );
    this.planPanel.soon(() => this.#plan());
  };

  /** The changes of tasks that run again. */
  #possibleChanges() {
    const tasksToRun = this.#tasksToRun();
    const changes = parameterChanges(this.copy.job, this.#edited);
    return changes.filter(({ task }) => tasksToRun.has(task));
  }

  redraw = (task = this.#selected) => {
    this.#selected = task;
    this.changed();
    this.#drawChoice();
    this.#drawForm();
  };

  #drawChoice() {
    const tasksToRun = this.#tasksToRun();
    const states = new Map(
      this.job.tasks.map(({ name }) => [name, tasksToRun.has(name) ? "runs again" : "is kept"]),
    );
    const choose = ({ target }) => {
      this.#start = target.value;
      this.redraw(target.value);
    };
    const options = this.job.tasks.map(({ name }) => option(name, this.#start));
    const select = h("select", { name: "from", onchange: choose }, options);
    setChildren(
      this.#choice,
      card(
        "",
        h("label", {}, translate("from task"), select),
        hint(translate("about rerun")),
        flowPicture(this.job.flow, { states, select: this.redraw, selected: this.#selected }),
      ),
    );
  }

  async #drawForm() {
    const task = this.#edited.dag.components.find(({ name }) => name === this.#selected);
    const { provider, version, componentName: name } = task;
    const description = await this.catalog.describe({ provider, version, name });
    const { failure } = this.job.tasks.find((run) => run.name === task.name);
    setChildren(
      this.#form,
      h(
        "section",
        { "aria-label": task.name },
        h("h2", {}, task.name, " ", h("span", { class: "faint" }, name)),
        failure && box("bad", reasonText(failure)),
        this.#parameters(task, description),
      ),
    );
  }

  #parameters(task, description) {
    if (!this.#tasksToRun().has(task.name)) return hint(translate("about kept task"));
    if (!description) return box("wait", translate("component unknown"));
    const roles = description.roleList ?? ROLES;
    return parameterFields(this.#edited, task, description.schema, roles, this);
  }

  // -------------------------------------------------------------- plan and submission

  /** Plans the new job with the results that it takes over, if this node knows all of it. */
  async #plan() {
    if (this.copy.foreign_parties.length > 0) {
      this.planPanel.show(hint(translate("no plan here")));
      return;
    }
    const job = structuredClone(this.#edited);
    const jobParams = (job.config.job_params ??= {});
    jobParams.common = { ...jobParams.common, inherit: this.#tasksTakenOver() };
    await this.planPanel.plan({ ...job, old_job_id: this.job.job_id });
  }

  async #submit() {
    const changes = this.#possibleChanges();
    const order = { from: this.#start };
    if (changes.length > 0) order.parameters = asTaskParams(changes);
    const path = `/api/v1/jobs/${segment(this.job.job_id)}/rerun`;
    const { job_id: id } = await request("POST", path, order);
    notify("good", translate("submitted"));
    location.hash = jobAddress(id);
  }
}
