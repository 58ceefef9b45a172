// A new job: drawn from the registered components, or written as JSON or YAML. All change one and the same body.
import {
  add,
  button,
  call,
  card,
  checked,
  confirmed,
  fill,
  get,
  h,
  notice,
  problems,
  refused,
  segment,
  step,
  t,
  table,
} from "./core.js";
import { picture } from "./graph.js";

const ROLES = ["guest", "host", "arbiter"];
const begun = (node) => ({
  flow_id: "",
  dag: { version: "2.0", components: [] },
  config: {
    version: "2.0.0",
    initiator: { role: "guest", node_id: node },
    role: { guest: [node] },
    job_params: { common: { sync_type: "poll" } },
    task_params: { common: {} },
  },
});
const inside = (object, ...keys) => keys.reduce((place, key) => (place[key] ??= {}), object);
const groupOf = (type) =>
  /data|set/.test(type) ? "dataset" : /model/.test(type) ? "model" : "report";
const source = (input) => input.key.split(".")[0];
const option = (text, chosen, shown = text) =>
  h("option", { value: text, selected: text === chosen }, shown);

/** Checks with what stands in the way first. */
const inOrder = (checks) =>
  ["problem", "waits", "warning", "unknown", "ok"].flatMap((standing) =>
    checks.filter((c) => c.standing === standing),
  );

export async function submitPage(body, { session, stopped }) {
  const may = !session.user || ["admin", "platform"].includes(session.role);
  const text = h("textarea", { name: "job", spellcheck: "false", "aria-label": t("job as JSON") });
  const drawn = h("div"),
    found = h("div");
  const known = await knownHere(session);
  let job = begun(session.node),
    chosen = "",
    pressed = false;

  const write = () => {
    text.value = JSON.stringify(job, null, 2);
    planSoon();
  };
  const controls = () => [...drawn.querySelectorAll("input, select, button, [tabindex]")];
  const redraw = async () => {
    const focused = controls().indexOf(document.activeElement);
    try {
      drawn.replaceChildren(...(await drawing(job, chosen, known, view)));
      if (focused >= 0) controls()[focused]?.focus();
    } catch {
      drawn.replaceChildren(h("div", { class: "box wait" }, t("cannot be drawn")));
    }
  };
  /** `wrote`: shows the JSON as it is now; `draw`: the drawing, too. */
  const view = {
    wrote: write,
    draw: (pick = chosen) => {
      chosen = pick;
      write();
      if (pressed)
        addEventListener("pointerup", () => setTimeout(redraw), { once: true }); // else the click would be lost
      else redraw();
    },
  };
  body.addEventListener(
    "pointerdown",
    () => {
      pressed = true;
      addEventListener(
        "pointerup",
        () => {
          pressed = false;
        },
        { once: true },
      );
    },
    true,
  );
  const read = () => {
    found.replaceChildren();
    try {
      return JSON.parse(text.value);
    } catch (error) {
      found.replaceChildren(
        h(
          "div",
          { class: "box bad", role: "alert" },
          h("p", {}, `${t("not JSON")}: ${error.message}`),
        ),
      );
      return null;
    }
  };
  const take = () => {
    try {
      job = JSON.parse(text.value);
    } catch {
      job = null;
    }
    planSoon();
    redraw();
  };
  text.addEventListener("input", take);

  let due = null,
    asked = 0;
  /** Shows what would happen to the job as it is now; resolves with it where nothing stands in its way. `submits`: else says that it is not submitted. */
  const plan = async (submits = false) => {
    const given = read();
    if (!given) return null;
    const mine = (asked += 1);
    clearTimeout(due);
    found.replaceChildren(h("p", { class: "faint" }, t("planning")));
    try {
      const planned = await call("POST", "/api/v1/jobs/plan", given);
      if (mine === asked)
        found.replaceChildren(
          h(
            "div",
            { class: `box ${planned.good ? "" : "bad"}`, role: planned.good ? "status" : "alert" },
            h("p", {}, planned.good ? t("would run") : t("would not run")),
            !planned.good &&
              submits &&
              h("p", {}, h("strong", {}, t("not submitted", { count: planned.problem_count }))),
          ),
          ...planned.nodes.map((n) =>
            card(
              "",
              h("h2", { class: "mono" }, `${n.node} ${n.parties.join(", ")}`),
              inOrder(n.checks).map((c, at, all) =>
                h(
                  "div",
                  { class: "check" },
                  h(
                    "div",
                    { class: "row" },
                    checked(c.standing),
                    h("strong", {}, step(c.check)),
                    h("span", { class: "faint" }, c.about),
                  ),
                  c.found && h("p", {}, c.found),
                  c.cause && h("p", { class: "faint" }, c.cause),
                  c.remedy &&
                    c.remedy !== all[at + 1]?.remedy &&
                    h("p", {}, h("strong", {}, `${t("next step")}: `), c.remedy),
                ),
              ),
            ),
          ),
        );
      return planned.good ? given : null;
    } catch (error) {
      if (mine === asked) found.replaceChildren(problems(error));
      return null;
    }
  };
  /** Plans once nothing has changed for a while; a job without tasks has nothing to plan. */
  const planSoon = () => {
    clearTimeout(due);
    due =
      may && job?.dag?.components?.length
        ? setTimeout(() => stopped.aborted || plan(), 1000)
        : null;
  };
  stopped.addEventListener("abort", () => clearTimeout(due));
  const submit = async () => {
    const planned = await plan(true);
    if (!planned) return;
    try {
      const made = await call("POST", "/v1/platform/schedule/job/create_all", planned);
      notice("good", t("submitted"));
      location.hash = `#/jobs/${segment(made.data.job_id)}`;
    } catch (error) {
      found.replaceChildren(problems(error));
    }
  };
  const save = (ending, written) => async () => {
    const given = read();
    if (!given) return;
    const url = URL.createObjectURL(
      new Blob([await written(given)], { type: "application/octet-stream" }),
    );
    h("a", { href: url, download: `${given.flow_id || "job"}.${ending}` }).click();
    URL.revokeObjectURL(url);
  };
  const file = h("input", {
    type: "file",
    accept: ".json,.yaml,.yml,application/json",
    onchange: async (event) => {
      const [chosen] = event.target.files;
      try {
        const content = await chosen.text();
        text.value = /\.ya?ml$/i.test(chosen.name)
          ? JSON.stringify(await fromYaml(content), null, 2)
          : content;
        take();
      } catch (error) {
        found.replaceChildren(
          h(
            "div",
            { class: "box bad", role: "alert" },
            h("p", {}, `${t("not YAML")}: ${error.message}`),
          ),
        );
      }
      event.target.value = ""; // so that the same file can be read again
    },
  });
  const drafts = h("div", { class: "row" });
  const begin = async (name) => {
    text.value = JSON.stringify((await get(`/api/v1/templates/${segment(name)}`)).job, null, 2);
    take();
  };
  const listed = async () => {
    const { templates } = await get("/api/v1/templates?limit=1000");
    const select = h(
      "select",
      {
        "aria-label": t("template"),
        onchange: (e) => {
          if (e.target.value) begin(e.target.value).catch(refused);
        },
      },
      option("", "", t("from a template")),
      templates.map(({ name, author }) => option(name, "", `${name} · ${author}`)),
    );
    const remove = button(
      "delete the template",
      async () => {
        if (
          !select.value ||
          (await confirmed(t("delete the template?", { name: select.value }), { danger: true })) ===
            null
        )
          return;
        await call("DELETE", `/api/v1/templates/${segment(select.value)}`);
        await listed();
      },
      "danger",
    );
    fill(
      drafts,
      h("label", {}, t("from a file"), file),
      templates.length > 0 && [h("label", {}, t("template"), select), may && remove],
    );
  };
  const keep = async () => {
    const given = read(),
      name =
        given && (await confirmed(t("about templates"), { input: "name", value: given.flow_id }));
    if (!name) return;
    await call("PUT", `/api/v1/templates/${segment(name.trim())}`, { job: given });
    await listed();
    notice("good", t("template saved", { name }));
  };
  add(
    body,
    h("h1", {}, t("page submit")),
    !may &&
      h("div", { class: "box wait" }, h("p", {}, t("may not submit", { role: session.role }))),
    drafts,
    h(
      "div",
      { class: "beside" },
      h(
        "div",
        {},
        drawn,
        h(
          "section",
          {},
          h(
            "details",
            {},
            h("summary", {}, h("strong", {}, t("job as JSON"))),
            h("p", { class: "faint" }, t("about submit")),
            text,
          ),
        ),
      ),
      h(
        "aside",
        { "aria-label": t("plan") },
        may &&
          h(
            "div",
            { class: "row" },
            button("plan", () => plan()),
            button("submit", submit, "main"),
          ),
        h(
          "div",
          { class: "row" },
          button(
            "save as JSON",
            save("json", (given) => JSON.stringify(given, null, 2)),
          ),
          button("save as YAML", save("yaml", toYaml)),
          may && button("save as template", keep),
        ),
        found,
      ),
    ),
  );
  await listed();
  view.draw();
}

/** YAML without what JSON cannot hold, and so without loss; the library is fetched once somebody uses it. */
async function yaml() {
  await import("./vendor/js-yaml-4.3.2.min.js");
  return globalThis.jsyaml;
}
const fromYaml = async (content) => {
  const { load, JSON_SCHEMA } = await yaml();
  return load(content, { schema: JSON_SCHEMA });
};
const toYaml = async (given) => (await yaml()).dump(given, { lineWidth: -1, noRefs: true });

/** What jobs can be made of at this node; descriptions are asked for once they are used. */
async function knownHere(session) {
  const [providers, routes, datasets] = await Promise.all(
    [
      "/api/v1/providers?limit=1000",
      "/api/v1/routes?limit=1000",
      "/api/v1/datasets?unregistered=false&limit=1000",
    ].map(get),
  );
  const described = new Map();
  const describe = (provider, version, component) => {
    const at = providers.providers.find(
      (p) => p.name === provider && p.version === version && p.components.includes(component),
    );
    const key = `${provider} ${version} ${component}`;
    if (!at) return null;
    if (!described.has(key))
      described.set(
        key,
        Promise.all(
          [
            `/api/v1/providers/${segment(at.provider_name)}`,
            `/api/v1/providers/${segment(at.provider_name)}/components/${segment(component)}/parameters`,
          ].map(get),
        ).then(([whole, schema]) => ({ ...whole.components_description[component], schema })),
      );
    return described.get(key);
  };
  const own = datasets.datasets.map((d) => d.dataset_id),
    asked = new Map();
  /** Ids of the datasets that a node offers: this one, or a partner with a contract. */
  const offered = (node) => {
    if (node === session.node) return Promise.resolve(own);
    if (!asked.has(node))
      asked.set(
        node,
        get(`/api/v1/partners/${segment(node)}/datasets`)
          .then((found) => found.records.map((one) => one.dataset_id).filter(Boolean))
          .catch(() => []),
      );
    return asked.get(node);
  };
  return {
    node: session.node,
    describe,
    offered,
    nodes: [session.node, ...routes.routes.filter((r) => r.enabled).map((r) => r.node)],
    providers: providers.providers.filter((p) => !p.retired),
  };
}

const partiesOf = (job) =>
  Object.entries(job.config.role).flatMap(([role, nodes]) =>
    nodes.map((node, index) => ({ role, node, index })),
  );

async function drawing(job, chosen, known, view) {
  const tasks = job.dag.components;
  const task = tasks.find((one) => one.name === chosen);
  const flow = tasks.map((one) => ({
    name: one.name,
    inputs: (one.input ?? []).map((i) => ({ task: source(i) })),
    component: { provider: one.provider, name: one.componentName, version: one.version },
  }));
  return [
    card(
      "",
      h(
        "label",
        {},
        t("flow"),
        h("input", {
          name: "flow",
          value: job.flow_id ?? "",
          maxlength: 128,
          onchange: (e) => {
            job.flow_id = e.target.value.trim();
            view.wrote();
          },
        }),
      ),
      parties(job, known, view),
    ),
    card(
      "tasks",
      flow.length
        ? picture(flow, new Map(), view.draw, chosen)
        : h("p", { class: "faint" }, t("no tasks yet")),
      adding(job, known, view),
    ),
    task ? await form(job, task, known, view) : "",
  ];
}

// ---------------------------------------------------------------- parties

function parties(job, known, view) {
  const { role: roles, initiator } = job.config;
  const remove = ({ role, index }) => {
    roles[role].splice(index, 1);
    if (!roles[role].length) delete roles[role];
    for (const params of [job.config.job_params, job.config.task_params]) {
      const own = Object.entries(params?.[role] ?? {})
        .filter(([at]) => Number(at) !== index)
        .map(([at, one]) => [Number(at) > index ? Number(at) - 1 : at, one]);
      if (params?.[role]) params[role] = Object.fromEntries(own);
    }
    view.draw();
  };
  const rows = partiesOf(job).map((party) => {
    const { role, node, index } = party,
      label = `${role}.${index}`;
    const first = initiator.role === role && initiator.node_id === node;
    return [
      label,
      h(
        "select",
        {
          "aria-label": `${t("node")} ${label}`,
          onchange: (e) => {
            roles[role][index] = e.target.value;
            if (first) initiator.node_id = e.target.value;
            view.draw();
          },
        },
        [...new Set([...known.nodes, node])].map((one) => option(one, node)),
      ),
      h("input", {
        type: "radio",
        name: "initiator",
        "aria-label": `${t("initiator")} ${label}`,
        checked: first,
        onchange: () => {
          Object.assign(initiator, { role, node_id: node });
          view.draw();
        },
      }),
      first ? "" : button("remove", async () => remove(party)),
    ];
  });
  const unused =
    known.nodes.find((node) => !partiesOf(job).some((party) => party.node === node)) ?? known.node;
  const role = h(
    "select",
    { "aria-label": t("role") },
    [...new Set([...ROLES, ...Object.keys(roles)])].map((one) => option(one, "host")),
  );
  return [
    table(["role", "node", "initiator", ""], rows),
    h(
      "div",
      { class: "row" },
      role,
      button("add a party", async () => {
        (roles[role.value] ??= []).push(unused);
        view.draw();
      }),
    ),
  ];
}

// ---------------------------------------------------------------- tasks

function adding(job, known, view) {
  const offered = known.providers.flatMap((p) =>
    p.components.map((name) =>
      option(JSON.stringify([p.name, p.version, name]), "", `${name} · ${p.provider_name}`),
    ),
  );
  const select = h(
    "select",
    { "aria-label": t("component"), required: true },
    option("", "", t("choose a component")),
    offered,
  );
  if (!offered.length) return h("p", { class: "faint" }, t("no providers"));
  return h(
    "div",
    { class: "row" },
    select,
    button("add a task", async () => {
      if (!select.reportValidity()) return;
      const [provider, version, component] = JSON.parse(select.value);
      const described = await known.describe(provider, version, component);
      const stem = component.replace(/([a-z0-9])([A-Z])/g, "$1_$2").toLowerCase();
      let number = 1;
      while (job.dag.components.some((task) => task.name === `${stem}_${number}`)) number += 1;
      const before = job.dag.components.findLast((task) =>
        (task.output ?? []).some((o) => groupOf(o.type) === "dataset"),
      );
      const wants = (described.inputData ?? []).find((d) => groupOf(d.category) === "dataset");
      const taken =
        before && wants
          ? [
              {
                type: wants.category,
                key: `${before.name}.${before.output.find((o) => groupOf(o.type) === "dataset").key}`,
              },
            ]
          : [];
      job.dag.components.push({
        name: `${stem}_${number}`,
        componentName: component,
        provider,
        version,
        input: taken,
        output: (described.outputData ?? []).map((d) => ({ type: d.category, key: d.name })),
      });
      view.draw(`${stem}_${number}`);
    }),
  );
}

/** Calls `change` for each place that holds a task's own parameters. */
function eachPlace(job, change) {
  const { common, ...roles } = inside(job.config, "task_params");
  for (const place of [common, ...Object.values(roles).flatMap((own) => Object.values(own))])
    if (place) change(place);
}

function renamed(job, task, name) {
  for (const other of job.dag.components)
    for (const input of other.input ?? [])
      if (source(input) === task.name) input.key = name + input.key.slice(task.name.length);
  eachPlace(job, (place) => {
    if (task.name in place) {
      place[name] = place[task.name];
      delete place[task.name];
    }
  });
  task.name = name;
}

async function form(job, task, known, view) {
  const described = await known.describe(task.provider, task.version, task.componentName);
  const name = h("input", {
    name: "task",
    value: task.name,
    required: true,
    pattern: "[A-Za-z0-9_\\-]+",
    maxlength: 64,
    onchange: (e) => {
      const taken = job.dag.components.some((one) => one !== task && one.name === e.target.value);
      e.target.setCustomValidity(taken ? t("name taken") : "");
      if (!e.target.reportValidity()) return;
      renamed(job, task, e.target.value);
      view.draw(task.name);
    },
  });
  const remove = button(
    "remove the task",
    async () => {
      job.dag.components.splice(job.dag.components.indexOf(task), 1);
      for (const other of job.dag.components)
        if (other.input) other.input = other.input.filter((input) => source(input) !== task.name);
      eachPlace(job, (place) => {
        delete place[task.name];
      });
      view.draw("");
    },
    "danger",
  );
  const head = [
    h(
      "div",
      { class: "row" },
      h(
        "h2",
        {},
        task.componentName,
        " ",
        h("span", { class: "faint" }, `${task.provider} ${task.version}`),
      ),
      remove,
    ),
    described?.description && h("p", { class: "faint" }, described.description),
    h("label", {}, t("name"), name),
  ];
  const rest = described
    ? [
        connections(job, task, described, view),
        datasets(job, task, described, known, view),
        parameters(job, task, described.schema, view),
      ]
    : h("div", { class: "box wait" }, t("component unknown"));
  return h("section", { "aria-label": task.name }, head, rest);
}

/** Tasks that need an output of this one, and the task itself: what it cannot take an input from. */
function after(job, task) {
  const found = new Set([task.name]);
  for (let size = 0; size !== found.size;) {
    size = found.size;
    for (const one of job.dag.components)
      if ((one.input ?? []).some((i) => found.has(source(i)))) found.add(one.name);
  }
  return found;
}

function connections(job, task, described, view) {
  const wanted = described.inputData ?? [];
  if (!wanted.length) return null;
  const later = after(job, task),
    left = [...(task.input ?? [])];
  const taken = wanted.map((d) => {
    // of one kind in the order of the description
    const at = left.findIndex((input) => groupOf(input.type) === groupOf(d.category));
    return at < 0 ? null : left.splice(at, 1)[0];
  });
  const offered = (d) =>
    job.dag.components
      .filter((one) => !later.has(one.name))
      .flatMap((one) =>
        (one.output ?? [])
          .filter((o) => groupOf(o.type) === groupOf(d.category))
          .map((o) => `${one.name}.${o.key}`),
      );
  const choose = (at, key) => {
    taken[at] = key ? { type: wanted[at].category, key } : null;
    task.input = [...taken.filter(Boolean), ...left];
    view.draw();
  };
  return h(
    "div",
    { class: "row" },
    wanted.map((d, at) =>
      h(
        "label",
        { title: d.description },
        `${t("input")} ${d.name}`,
        h(
          "select",
          { onchange: (e) => choose(at, e.target.value) },
          option("", "", t("not connected")),
          [...new Set([...offered(d), taken[at]?.key])]
            .filter(Boolean)
            .map((key) => option(key, taken[at]?.key)),
        ),
      ),
    ),
  );
}

function datasets(job, task, described, known, view) {
  const wants = (described.inputData ?? []).some((d) => groupOf(d.category) === "dataset");
  if (!wants || (task.input ?? []).some((input) => groupOf(input.type) === "dataset")) return null;
  const roles = described.roleList ?? ROLES;
  const nodes = [...new Set(partiesOf(job).map((party) => party.node))];
  const lists = nodes.map((node) => {
    const list = h("datalist", { id: `datasets-${node}` });
    known
      .offered(node)
      .then((ids) => list.replaceChildren(...ids.map((id) => h("option", { value: id }))));
    return list;
  });
  const set = (party, id) => {
    const place = inside(job.config.task_params, party.role, String(party.index), task.name);
    if (id) place.dataset_id = id;
    else delete place.dataset_id;
    view.wrote();
  };
  return h(
    "div",
    { class: "row" },
    lists,
    partiesOf(job)
      .filter((p) => roles.includes(p.role))
      .map((party) =>
        h(
          "label",
          {},
          `${t("dataset")} ${party.role}.${party.index}`,
          h("input", {
            list: `datasets-${party.node}`,
            value:
              job.config.task_params?.[party.role]?.[party.index]?.[task.name]?.dataset_id ?? "",
            onchange: (e) => set(party, e.target.value.trim()),
          }),
        ),
      ),
  );
}

// ---------------------------------------------------------------- parameters

const written = (value) =>
  value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);

/** A control for a value that a JSON Schema describes; an empty one leaves the component's default. */
function control(field, value, set) {
  const choices = field.enum ?? (field.type === "boolean" ? [true, false] : null);
  const ours = written(value),
    usual = field.default === undefined ? "" : t("default is", { value: written(field.default) });
  if (choices) {
    const all = new Map(choices.map((one) => [written(one), one]));
    if (value !== undefined && !all.has(ours)) all.set(ours, value);
    return h(
      "select",
      { onchange: (e) => set(e.target.value === "" ? undefined : all.get(e.target.value)) },
      option("", ours, usual || "–"),
      [...all.keys()].map((one) => option(one, ours, field["x-bfia"]?.labels?.[one] ?? one)),
    );
  }
  const number =
    ["integer", "number"].includes(field.type) &&
    (value === undefined || typeof value === "number");
  const many =
    ["object", "array"].includes(field.type) || (value !== null && typeof value === "object");
  const bounds = number
    ? {
        type: "number",
        step: field.type === "integer" ? 1 : "any",
        min: field.minimum ?? field.exclusiveMinimum,
        max: field.maximum ?? field.exclusiveMaximum,
      }
    : { pattern: many ? null : field.pattern };
  return h("input", {
    ...bounds,
    value: ours,
    placeholder: usual,
    size: many ? 40 : 20,
    onchange: (e) => {
      const given = e.target.value.trim();
      let made = given === "" ? undefined : number ? Number(given) : given;
      e.target.setCustomValidity("");
      if (many && given)
        try {
          made = JSON.parse(given);
        } catch {
          e.target.setCustomValidity(t("not JSON"));
        }
      if (e.target.reportValidity()) set(made);
    },
  });
}

function parameters(job, task, schema, view) {
  const common = inside(job.config, "task_params", "common");
  const field = ([name, about]) =>
    h(
      "label",
      {},
      `${about.title ?? name}${about.title && about.title !== name ? ` (${name})` : ""}`,
      control(about, common[task.name]?.[name], (value) => {
        const own = inside(common, task.name);
        if (value === undefined) delete own[name];
        else own[name] = value;
        view.wrote();
      }),
      about.description &&
        ![about.title, name].includes(about.description) &&
        h("small", {}, about.description),
      about["x-bfia"]?.dependsOn &&
        h("small", {}, t("only with", { what: about["x-bfia"].dependsOn.join(", ") })),
    );
  const all = Object.entries(schema.properties),
    folded = all.filter(([, about]) => about["x-bfia"]?.advanced);
  const shown = all.filter(([, about]) => !about["x-bfia"]?.advanced);
  return [
    h("h3", {}, t("parameters")),
    h("div", { class: "fields" }, shown.map(field)),
    folded.length > 0 &&
      h(
        "details",
        { open: folded.some(([name]) => name in (common[task.name] ?? {})) },
        h("summary", {}, t("further parameters")),
        h("div", { class: "fields" }, folded.map(field)),
      ),
  ];
}
