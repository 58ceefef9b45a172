// Jobs: the list, and one job.
import {
  add,
  ask,
  badge,
  between,
  button,
  call,
  card,
  confirmed,
  done,
  facts,
  fill,
  get,
  h,
  lasted,
  moment,
  refused,
  said,
  segment,
  t,
  table,
  tone,
  value,
} from "./core.js";
import { picture } from "./graph.js";

const EVENTS = [
  "created",
  "approval_asked",
  "approved",
  "ready",
  "started",
  "task_started",
  "task_ended",
  "task_again",
  "task_inherited",
  "run_started",
  "run_ended",
  "suspended",
  "resumed",
  "stopped",
  "model_saved",
  "finished",
  "rejected",
  "run_again",
  "deleted",
  "cleaned",
];
/** Whether a role may read what jobs hold, and act on them; `more`: further roles. */
const allowed = (session, ...more) =>
  !session.user || ["admin", "platform", ...more].includes(session.role);
const bar = (progress) => [
  h("progress", { max: 100, value: progress, "aria-label": t("progress") }),
  ` ${progress} %`,
];
const short = (id) => (id.length > 20 ? `${id.slice(0, 16)}…` : id);
const link = (id) => h("a", { href: `#/jobs/${segment(id)}`, title: id, class: "mono" }, short(id));

/** Calls again when something happened to a job, at most once a second, until the page is left. */
function following(stopped, path, again) {
  const source = new EventSource(path);
  let due = null;
  const soon = () => {
    due ??= setTimeout(() => {
      due = null;
      if (!stopped.aborted) again().catch(refused);
    }, 1000);
  };
  for (const name of EVENTS) source.addEventListener(name, soon);
  source.onmessage = soon;
  const timer = setInterval(() => document.hidden || soon(), 5000);
  stopped.addEventListener("abort", () => {
    source.close();
    clearTimeout(due);
    clearInterval(timer);
  });
}

export async function jobsPage(body, { stopped }) {
  const chosen = { status: "", outcome: "", flow_id: "", partner: "" };
  const list = h("div", { class: "list", tabindex: "-1" });
  const load = async (after = "", before = []) => {
    const query = new URLSearchParams(
      Object.entries({ ...chosen, after, limit: 50 }).filter(([, v]) => v !== ""),
    );
    const page = await get(`/api/v1/jobs?${query}`);
    const jobs = [...before, ...page.jobs];
    fill(
      list,
      table(
        ["job", "state", "progress", "flow", "created", "duration", "submitted by", "this node is"],
        jobs.map((j) => [
          link(j.job_id),
          badge(j.outcome ?? j.status),
          bar(j.progress),
          j.flow_id,
          moment(j.created_at),
          lasted(j.created_at, j.ended_at),
          j.user,
          j.sides.map(said).join(between),
        ]),
        "no jobs",
      ),
      page.next &&
        h(
          "div",
          { class: "row" },
          button("older", () => load(page.next, jobs)),
        ),
    );
  };
  const select = (name, words) =>
    h(
      "label",
      {},
      t(name === "status" ? "state" : name),
      h(
        "select",
        {
          onchange: (e) => {
            chosen[name] = e.target.value;
            load().catch(refused);
          },
        },
        h("option", { value: "" }, t("all")),
        words.map((w) => h("option", { value: w }, said(w))),
      ),
    );
  const text = (name, label) =>
    h(
      "label",
      {},
      t(label),
      h("input", {
        onchange: (e) => {
          chosen[name] = e.target.value.trim();
          load().catch(refused);
        },
      }),
    );
  add(
    body,
    h(
      "div",
      { class: "row" },
      h("h1", {}, t("page jobs")),
      h("a", { class: "button", href: "#/submit" }, t("page submit")),
    ),
    card(
      "",
      h(
        "div",
        { class: "row" },
        select("status", ["PENDING", "READY", "RUNNING", "FINISHED", "REJECTED"]),
        select("outcome", ["SUCCEEDED", "FAILED", "STOPPED", "REJECTED"]),
        text("flow_id", "flow"),
        text("partner", "partner"),
      ),
      list,
    ),
  );
  await load();
  following(stopped, "/api/v1/events?follow=1", async () => {
    if (list.querySelectorAll("tbody tr").length <= 50) await load();
  });
}

// ---------------------------------------------------------------- one job

export async function jobPage(body, { stopped, parts: [id], session }) {
  const path = `/api/v1/jobs/${segment(id)}`;
  const top = h("div"),
    graph = h("div"),
    lanes = h("div"),
    runs = h("div"),
    timeline = h("div"),
    results = h("div"),
    curves = h("div");
  const log = h("div");
  add(body, top, graph, lanes, runs, log, curves, results, timeline);
  let over = false,
    settled = false,
    shown = "";
  const load = async () => {
    const [job, { timeline: lines }] = await Promise.all([get(path), get(`${path}/timeline`)]);
    over = ["FINISHED", "REJECTED"].includes(job.status);
    settled = over && job.runs.every((run) => ["SUCCESS", "FAILED"].includes(run.status)); // a container ends after its job was stopped
    if (stopped.aborted) return;
    fill(top, await head(job, lines, path, load, session));
    graph.replaceChildren(
      job.flow.length ? card("tasks", picture(job.flow, states(job))) : "",
      card(job.flow.length ? "" : "tasks", tasks(job)),
    );
    const text = JSON.stringify([job.runs, job.parameters]);
    if (text !== shown) {
      runs.replaceChildren(
        card("runs here", runTable(job, log, stopped, allowed(session, "vendor"))),
        parameters(job),
      );
      shown = text;
      results.replaceChildren(job.runs.length ? await outputs(path, over, allowed(session)) : "");
    }
    if (job.runs.length && allowed(session)) await grown(curves, await reports(path));
    lanes.replaceChildren(card("over time", gantt(job, lines)));
    const opened = timeline.querySelector("details")?.open;
    timeline.replaceChildren(
      h(
        "section",
        {},
        h(
          "details",
          { open: opened },
          h("summary", {}, h("strong", {}, t("timeline")), ` (${lines.length})`),
          table(
            ["time", "side", "event", "by", "detail"],
            lines.map((l) => [
              moment(l.at),
              said(l.side),
              h("span", { title: l.event }, l.in_words),
              l.by,
              Object.keys(l.detail).length
                ? h(
                    "details",
                    {},
                    h("summary", {}, t("show")),
                    h("pre", {}, JSON.stringify(l.detail, null, 1)),
                  )
                : "",
            ]),
          ),
        ),
      ),
    );
  };
  await load();
  following(stopped, `/api/v1/events?follow=1&job_id=${segment(id)}`, async () => {
    if (!settled) await load();
  });
}

const explained = new Map();
/** What a reason means and what to do next, in the user's language. */
const explain = async (reason, job, failure) => {
  if (!explained.has(reason))
    explained.set(
      reason,
      await call("GET", `/api/v1/reasons/${segment(reason)}`, undefined).catch(() => null),
    );
  const found = explained.get(reason);
  return (
    found && [
      h("p", {}, found.means),
      h("p", {}, h("strong", {}, `${t("next step")}: `), filled(found.next_step, job, failure)),
    ]
  );
};
/** What to do next, its `JOB --task T --party P` at node `N` or `NODE` being the run that failed, quoted for a shell. */
const filled = (step, job, failure) => {
  const at = failure && job.parties.find((p) => p.role === failure.role && p.node === failure.node);
  const values = {
    JOB: job.job_id,
    T: failure?.task,
    P: at && party(at),
    N: failure?.node,
    NODE: failure?.node,
  };
  const quoted = (text) =>
    /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
  return step.replace(/\b(NODE|JOB|[TPN])\b/g, (word) =>
    values[word] ? quoted(values[word]) : word,
  );
};

/** Asks from which task on a job runs again; resolves with its name, "" for the first that has not succeeded, or null. */
async function fromWhich(job) {
  const select = h(
    "select",
    { name: "from" },
    job.outcome !== "SUCCEEDED" && h("option", { value: "" }, t("first not succeeded")),
    job.tasks.map((task) => h("option", { value: task.name }, task.name)),
  );
  const given = await ask(t("run again?"), h("label", {}, t("from task"), select), {
    yes: "run again",
  });
  return given && given.get("from");
}

async function head(job, lines, path, load, session) {
  const may = allowed(session);
  const over = ["FINISHED", "REJECTED"].includes(job.status);
  const act = (label, verb, question, danger) =>
    button(
      label,
      async () => {
        const reason = await confirmed(t(question, { what: job.job_id }), {
          reason: verb !== "resume" && verb !== "suspend",
          danger,
        });
        if (reason === null) return;
        await call(
          "POST",
          `${path}/${verb}`,
          ["approve", "reject"].includes(verb) ? { reason } : {},
        );
        done(label, job.job_id);
        await load();
      },
      danger ? "danger" : "",
    );
  const stop = button(
    "stop",
    async () => {
      if ((await confirmed(t("stop?"), { danger: true })) === null) return;
      await call("POST", "/v1/platform/schedule/job/stop_all", { job_id: job.job_id });
      done("stop", job.job_id);
      await load();
    },
    "danger",
  );
  const rerun = button("run again", async () => {
    const from = await fromWhich(job);
    if (from === null) return;
    const made = await call("POST", `${path}/rerun`, from ? { from } : {});
    location.hash = `#/jobs/${segment(made.job_id)}`;
  });
  const asked = job.approval && job.local_status === "PENDING";
  const failure = job.failure ?? job.local_failure;
  const person =
    failure?.reason === "STOPPED" &&
    lines.find((one) => one.event === "stop requested" && !one.detail.task)?.by; // at the node where it was done
  const waiting = job.waiting ?? job.local_waiting;
  const ours =
    job.outcome === "STOPPED"
      ? []
      : job.runs.flatMap((run) =>
          run.warnings.map((one) => `${run.task_name} ${party(run.party)}: ${one}`),
        );
  const warnings = [...new Set([...job.warnings, ...job.local_warnings, ...ours])];
  return [
    h(
      "div",
      { class: "row" },
      h("h1", { class: "mono" }, job.job_id),
      badge(job.outcome ?? job.status),
      h("progress", { max: 100, value: job.progress, "aria-label": t("progress") }),
      `${job.progress} %`,
    ),
    may &&
      h(
        "div",
        { class: "row" },
        asked && act("approve", "approve", "approve?"),
        asked && act("reject", "reject", "reject?", true),
        !over &&
          job.scheduler === session.node &&
          (waiting?.reason === "SUSPENDED"
            ? act("resume", "resume", "resume?")
            : act("suspend", "suspend", "suspend?")),
        !over && stop,
        over && job.scheduler === session.node && rerun,
        h("a", { class: "button", href: `${path}/archive` }, t("archive")),
      ),
    failure &&
      h(
        "div",
        { class: "box bad" },
        h(
          "p",
          {},
          h("strong", {}, failure.reason),
          failure.message &&
            `: ${failure.message.replace(`${failure.node}: ${failure.reason}: `, "")}`,
        ),
        h(
          "p",
          {},
          [failure.node, failure.role, failure.task, person && `${t("by")} ${person}`]
            .filter(Boolean)
            .join(" · "),
        ),
        await explain(failure.reason, job, failure),
      ),
    waiting &&
      !over &&
      h(
        "div",
        { class: `box ${waiting.reason === "RUNNING" ? "" : "wait"}` },
        h(
          "p",
          {},
          h(
            "strong",
            {},
            waiting.reason === "RUNNING" ? said("RUNNING") : `${t("waits")}: ${waiting.reason}`,
          ),
          ` ${waiting.message}`,
        ),
        h("p", {}, t("since"), " ", moment(waiting.since)),
        await explain(waiting.reason, job),
      ),
    warnings.length > 0 && warned(warnings),
    card(
      "",
      facts([
        ["flow", job.flow_id],
        ["initiator", job.initiator],
        ["scheduling node", job.scheduler],
        [
          "parties",
          job.parties
            .map((p) => `${p.role}${p.index === null ? "" : `.${p.index}`} ${p.node}`)
            .join(between),
        ],
        ["old job", job.old_job_id && link(job.old_job_id)],
        [
          "model",
          job.model && !["FAILED", "STOPPED", "REJECTED"].includes(job.outcome ?? job.status)
            ? `${job.model.model_id} ${job.model.version}`
            : "",
        ],
        ["trace", job.trace_id],
      ]),
    ),
  ].filter(Boolean);
}

const party = (p) => `${p.role}${p.index === null ? "" : `.${p.index}`}`;
/** The state of a task or a run as people know it: the standard has no word for one that was stopped, nor for one that a job which is over never ran. */
const stateOf = (job, state, failure) =>
  state === "FAILED" && failure?.reason === "STOPPED"
    ? "STOPPED"
    : ["FINISHED", "REJECTED"].includes(job.status) && ["PENDING", "READY"].includes(state)
      ? "not run"
      : state;
const states = (job) =>
  new Map(job.tasks.map((task) => [task.name, stateOf(job, task.status, task.failure)]));
const warned = (lines) =>
  h(
    "div",
    { class: "box wait" },
    h(
      "details",
      { open: lines.length < 4 },
      h("summary", {}, `${t("warnings")} (${lines.length})`),
      lines.map((line) => h("p", {}, line)),
    ),
  );

function tasks(job) {
  const cell = (task, p) => {
    const own = task.nodes[p.node]?.[p.role] ?? task.nodes[p.node]?.[`${p.role}.${p.index}`];
    return own ? badge(stateOf(job, own, task.failure)) : "–";
  };
  return table(
    ["task", "state", ...job.parties.map((p) => h("span", { title: p.node }, party(p))), "why"],
    job.tasks.map((task) => [
      [
        task.name,
        task.attempt
          ? h("span", { class: "faint" }, ` ${t("attempt", { number: task.attempt + 1 })}`)
          : "",
      ],
      badge(stateOf(job, task.status, task.failure)),
      ...job.parties.map((p) => cell(task, p)),
      task.failure
        ? `${task.failure.reason} ${task.failure.message}`
        : task.waiting
          ? `${task.waiting.reason} ${task.waiting.message}`
          : task.inherited
            ? t("taken over")
            : "",
    ]),
  );
}

/** When each task began and ended at each party: this node's runs, and what the scheduling node heard of the others. */
function spans(job, lines) {
  const found = new Map();
  const mark = (task, who, status, at) => {
    const key = `${task} ${who}`;
    if (!found.has(key)) found.set(key, { task, who, status, from: null, to: null });
    const one = found.get(key);
    one.status = status;
    if (status === "RUNNING") Object.assign(one, { from: one.from ?? at, to: null });
    else if (["SUCCESS", "FAILED"].includes(status)) one.to = at;
  };
  const here = new Set(job.runs.map((run) => run.party.node));
  for (const { event, by, at, detail } of lines)
    if (["status reported", "heard"].includes(event) && !here.has(by))
      job.parties
        .filter((p) => p.node === by && [p.role, party(p)].includes(detail.role))
        .forEach((p) => mark(detail.task, party(p), detail.status, at));
  for (const run of job.runs)
    if (run.started_at)
      found.set(`${run.task_id} ${party(run.party)} ${run.attempt}`, {
        task: run.task_name,
        who: party(run.party),
        status: stateOf(job, run.status, run.failure),
        from: run.started_at,
        to: run.ended_at,
      });
  const order = new Map(job.tasks.map((task, at) => [task.name, at]));
  return [...found.values()]
    .filter((one) => one.from)
    .sort((a, b) => order.get(a.task) - order.get(b.task));
}

/** The state of a bar: a run that went on until its job was over ended as its task did. */
const stateAt = (job, one) =>
  ["FINISHED", "REJECTED"].includes(job.status) && one.status === "RUNNING"
    ? (job.tasks.find((task) => task.name === one.task)?.status ?? "")
    : one.status;

function gantt(job, lines) {
  const begun = spans(job, lines);
  const over = ["FINISHED", "REJECTED"].includes(job.status);
  if (!begun.length)
    return h("p", { class: "faint" }, t(over ? "nothing was started" : "nothing started"));
  const ends = (one) =>
    one.to ? new Date(one.to) : over ? new Date(lines.at(-1)?.at ?? one.from) : Date.now();
  const first = Math.min(...begun.map((one) => new Date(one.from))),
    last = Math.max(...begun.map(ends));
  const whole = Math.max(1, last - first),
    part = (ms) => `${(100 * ms) / whole}%`;
  return table(
    ["task", "party", "", "duration"],
    begun.map((one) => {
      const start = new Date(one.from) - first,
        state = stateAt(job, one);
      return [
        one.task,
        one.who,
        h(
          "div",
          { class: "lane", title: said(state) },
          h("span", {
            class: state === "STOPPED" && job.outcome === "FAILED" ? "wait" : tone(state),
            style: { left: part(start), width: part(ends(one) - first - start) },
          }),
        ),
        lasted(one.from, ends(one)),
      ];
    }),
  );
}

function runTable(job, log, stopped, readable) {
  return table(
    ["task", "party", "state", "started", "duration", "result", ""],
    job.runs.map((run) => [
      [
        run.task_name,
        run.attempt
          ? h("span", { class: "faint" }, ` ${t("attempt", { number: run.attempt + 1 })}`)
          : "",
      ],
      `${run.party.role}.${run.party.index}`,
      badge(stateOf(job, run.status, run.failure)),
      moment(run.started_at),
      lasted(run.started_at, run.ended_at),
      [
        run.failure?.reason === "STOPPED" && job.outcome === "FAILED"
          ? t("stopped with the job")
          : run.failure
            ? `${run.failure.reason} ${run.failure.message}`
            : run.waiting
              ? `${run.waiting.reason} ${run.waiting.message}`
              : run.result_message || (run.exit ? `exit ${run.exit.code}` : ""),
        run.last_lines?.length
          ? h(
              "details",
              {},
              h("summary", {}, t("last lines")),
              h("pre", {}, run.last_lines.join("\n")),
            )
          : "",
      ],
      readable ? button("log", async () => openLog(log, run, stopped)) : "",
    ]),
    "no runs here",
  );
}

function openLog(place, run, stopped) {
  const lines = h("pre", { class: "log", tabindex: "0", "aria-label": t("log") });
  const state = h("span", { class: "faint" });
  const source = new EventSource(`${run.log}?follow=1&tail=2000&attempt=${run.attempt}`);
  let count = 0;
  const add = (event) => {
    const below = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40;
    lines.append(h("span", {}, `${event.data}\n`));
    count += 1;
    if (count > 5000) lines.firstChild.remove();
    if (below) lines.scrollTop = lines.scrollHeight;
  };
  source.addEventListener("stdout", add);
  source.addEventListener("stderr", add);
  source.addEventListener("end", (event) => {
    const end = JSON.parse(event.data);
    state.textContent = ` ${end.reason ?? said(end.status)}${end.exit_code == null ? "" : `, exit ${end.exit_code}`}`;
    if (!count) lines.textContent = t("empty log");
    source.close();
  });
  const close = () => {
    source.close();
    place.replaceChildren();
  };
  stopped.addEventListener("abort", close);
  place.replaceChildren(
    h(
      "section",
      {},
      h(
        "div",
        { class: "row" },
        h("h2", {}, `${t("log")}: ${run.task_name} ${run.party.role}.${run.party.index}`),
        state,
        h(
          "a",
          {
            class: "button",
            href: `${run.log}?attempt=${run.attempt}`,
            target: "_blank",
            rel: "noopener",
          },
          t("as text"),
        ),
        h("button", { type: "button", onclick: close }, t("close")),
      ),
      lines,
    ),
  );
  place.scrollIntoView({ block: "nearest" });
}

function parameters(job) {
  const rows = Object.entries(job.parameters).flatMap(([party, byTask]) =>
    Object.entries(byTask).flatMap(([task, found]) =>
      Object.entries(found).map(([name, one]) => [task, party, name, value(one.value), one.origin]),
    ),
  );
  return rows.length
    ? h(
        "section",
        {},
        h(
          "details",
          {},
          h("summary", {}, h("strong", {}, t("parameters")), ` (${rows.length})`),
          table(["task", "party", "name", "value", "origin"], rows),
        ),
      )
    : h("div");
}

/** The reports, each as it is by now. */
async function reports(path) {
  const found = await get(`${path}/reports`).catch(() => ({ reports: [] }));
  return Promise.all(
    found.reports
      .filter((r) => r.there)
      .map(async (r) => ({
        ...r,
        ...(await get(r.url).catch((error) => ({
          problem: error.message,
          values: {},
          series: [],
          plots: [],
        }))),
      })),
  );
}

/** Shows the reports where they differ from what is shown; what is folded out stays so. */
async function grown(place, found) {
  const text = JSON.stringify(found);
  if (text === place.dataset.shown) return;
  const shown = await Promise.all(
    found.map(async (r) => {
      const pairs = Object.entries(r.values);
      const plots = r.plots
        .filter((name) => name !== "values")
        .map(async (name) => {
          // asked for again: an image of the same address is not
          const drawn = await fetch(`${r.url}/plot?series=${segment(name)}`).then((answer) =>
            answer.text(),
          );
          return h(
            "p",
            {},
            h("img", {
              class: "plot",
              alt: `${r.output} ${name}`,
              src: `data:image/svg+xml,${segment(drawn)}`,
            }),
          );
        });
      return h(
        "section",
        {},
        h("h2", {}, `${r.output} · ${r.task} ${r.party}`),
        r.problem && h("div", { class: "box wait" }, r.problem),
        pairs.length > 0 &&
          facts(
            pairs.map(([name, one]) => [name, value(one)]),
            true,
          ),
        await Promise.all(plots),
        r.series.map((s) =>
          h(
            "details",
            {},
            h("summary", {}, `${s.name || t("table")} (${s.points.length})`),
            table(s.columns, s.points.slice(0, 200), "", true),
          ),
        ),
      );
    }),
  );
  const open = [...place.querySelectorAll("details")].map((one) => one.open);
  place.dataset.shown = text;
  place.replaceChildren(h("div", { class: "grid reports" }, shown));
  place.querySelectorAll("details").forEach((one, at) => {
    one.open = open[at] ?? false;
  });
}

async function outputs(path, over, readable) {
  const found = await get(`${path}/outputs`).catch(() => ({ outputs: [] }));
  if (!found.outputs.length) return h("div");
  const preview = h("div");
  return card(
    "outputs",
    table(
      ["task", "party", "output", ""],
      found.outputs.map((o) => {
        const at = `${path}/outputs/${segment(o.task)}/${segment(o.party)}/${segment(o.key)}`;
        return [
          o.task,
          o.party,
          o.output || o.key,
          o.there
            ? !readable
              ? ""
              : h(
                  "div",
                  { class: "row" },
                  button("look", async () => {
                    const one = await get(at);
                    preview.replaceChildren(
                      h("h2", {}, `${o.task} ${o.party} ${o.output || o.key}`),
                      one.rows
                        ? table(one.columns, one.rows, "no rows", true)
                        : h("pre", {}, JSON.stringify(one.value ?? one, null, 1)),
                    );
                    preview.scrollIntoView({ block: "nearest" });
                  }),
                  h("a", { class: "button", href: `${at}/download` }, t("download")),
                )
            : t(over ? "not there" : "not yet"),
        ];
      }),
    ),
    preview,
  );
}
