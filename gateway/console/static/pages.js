// Approvals, data, providers, partners, and the node itself.
import {
  add,
  ask,
  badge,
  between,
  button,
  bytes,
  call,
  card,
  checked,
  confirmed,
  done,
  entry,
  facts,
  fill,
  get,
  h,
  lang,
  moment,
  notice,
  problems,
  Refused,
  refused,
  said,
  segment,
  step,
  t,
  table,
  value,
} from "./core.js";

const all = async (path, key) => {
  const rows = [];
  for (let after = ""; after !== null && rows.length < 2000;) {
    const page = await get(
      `${path}${path.includes("?") ? "&" : "?"}limit=200${after === "" ? "" : `&after=${segment(after)}`}`,
    );
    rows.push(...page[key]);
    after = page.next ?? null;
  }
  return rows;
};
const dataLink = (id) => h("a", { href: `#/data/${id.split("#").map(segment).join("/")}` }, id);
const may = (session, ...roles) =>
  !session.user || session.role === "admin" || roles.includes(session.role);

// ---------------------------------------------------------------- approvals

export async function approvalsPage(body, { session, again }) {
  const [jobs, applications] = await Promise.all([
    all("/api/v1/approvals", "approvals"),
    all("/api/v1/applications", "applications"),
  ]);
  const decide = (path, what, verb, danger) =>
    button(
      verb,
      async () => {
        const reason = await confirmed(t(`${verb}?`, { what }), { reason: true, danger });
        if (reason === null) return;
        await call("POST", `${path}/${verb}`, { reason });
        done(verb, what);
        await again();
      },
      danger ? "danger" : "main",
    );
  const both = (path, what, yes) =>
    yes
      ? h(
          "div",
          { class: "row" },
          decide(path, what, "approve"),
          decide(path, what, "reject", true),
        )
      : "";
  const asked = applications.filter((a) => a.side !== "mine" && a.status === "APPLIED");
  add(
    body,
    h("h1", {}, t("page approvals")),
    card(
      "jobs that wait",
      jobs.length ? "" : h("p", { class: "faint" }, t("nothing waits")),
      jobs.map((j) =>
        h(
          "article",
          { "aria-label": j.job_id },
          h(
            "div",
            { class: "row" },
            h("a", { href: `#/jobs/${segment(j.job_id)}`, class: "mono" }, j.job_id),
            both(`/api/v1/jobs/${segment(j.job_id)}`, j.job_id, may(session, "platform")),
          ),
          facts([
            ["flow", j.flow_id],
            ["initiator", j.initiator],
            ["scheduling node", j.scheduler],
            ["until", moment(j.approval?.until ?? j.approval?.deadline)],
          ]),
          h("h3", {}, t("would run here")),
          table(
            ["task", "party", "component", "image", "reads", "parameters"],
            j.tasks.map((one) => [
              one.task,
              one.party,
              one.component,
              [
                h("code", {}, one.image || "–"),
                one.digest && h("p", {}, h("code", { class: "faint" }, one.digest)),
              ],
              one.dataset ? dataLink(one.dataset) : t("outputs of tasks"),
              Object.entries(one.parameters).map(([name, set]) =>
                h("p", {}, h("code", {}, `${name}: ${value(set)}`)),
              ),
            ]),
          ),
        ),
      ),
    ),
    card(
      "partners ask",
      table(
        ["kind", "partner", "subject", "address", "key id", "asked", ""],
        asked.map((a) => [
          said(a.kind),
          a.partner,
          a.subject,
          a.url,
          a.key && h("code", {}, a.key),
          moment(a.at),
          both(
            `/api/v1/applications/${segment(a.number)}`,
            [a.partner, said(a.kind), a.subject].filter(Boolean).join(" "),
            may(session),
          ),
        ]),
        "nothing waits",
      ),
    ),
    card(
      "all applications",
      table(
        ["kind", "side", "partner", "subject", "state", "changed", "expires", "why"],
        applications.map((a) => [
          said(a.kind),
          said(a.side),
          a.partner,
          a.subject,
          badge(a.status),
          moment(a.changed_at),
          moment(a.expires_at),
          a.reason || a.trouble,
        ]),
        "no applications",
      ),
    ),
  );
}

// ---------------------------------------------------------------- data

export async function dataPage(body, { session, again }) {
  const datasets = await all("/api/v1/datasets?unregistered=false", "datasets");
  add(
    body,
    h("h1", {}, t("page data")),
    card(
      "",
      table(
        ["dataset", "rows", "columns", "size", "state", "created"],
        datasets.map((d) => [
          h("a", { href: `#/data/${segment(d.namespace)}/${segment(d.name)}` }, d.dataset_id),
          d.count,
          d.columns,
          bytes(d.size),
          badge(d.disabled ? "disabled" : "enabled"),
          moment(d.created_at),
        ]),
        "no data",
      ),
    ),
    may(session, "platform") && uploading(again),
  );
}

function uploading(again) {
  const field = (name, options = {}) => h("label", {}, t(name), h("input", { name, ...options }));
  const bar = h("progress", { max: 1, hidden: true, "aria-label": t("progress") }),
    said_ = h("div");
  const form = h(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        const given = new FormData(form),
          sent = new FormData();
        const meta = {
          label_name: given.get("label column"),
          match_id_name: given.get("id column"),
          delimiter: given.get("delimiter"),
        };
        sent.set("namespace", given.get("namespace"));
        sent.set("name", given.get("name"));
        sent.set(
          "meta",
          JSON.stringify(Object.fromEntries(Object.entries(meta).filter(([, v]) => v))),
        );
        if (given.get("overwrite")) sent.set("overwrite", "true");
        sent.set("file", given.get("file"));
        const request = new XMLHttpRequest();
        request.open("POST", "/v2/component/upload/file");
        request.setRequestHeader("x-console", "1");
        request.setRequestHeader("accept-language", lang());
        request.upload.onprogress = (e) => {
          bar.hidden = false;
          if (e.lengthComputable) bar.value = e.loaded / e.total;
        };
        request.upload.onload = () => {
          bar.removeAttribute("value");
          said_.replaceChildren(h("p", { class: "faint" }, t("checking")));
        };
        request.onloadend = async () => {
          bar.hidden = true;
          said_.replaceChildren();
          let found = null;
          try {
            found = JSON.parse(request.responseText);
          } catch {
            /* said below */
          }
          if (request.status === 200 && found?.code === 0) {
            notice(
              "good",
              t("uploaded", {
                rows: found.data.count,
                columns: found.data.columns.length,
                id: found.data.dataset_id,
              }),
            );
            if (found.data.warnings.length > 0) notice("wait", ...found.data.warnings);
            await again();
          } else
            said_.replaceChildren(
              problems(new Refused(request.status, found ?? { msg: t("no response") })),
            );
        };
        request.send(sent);
      },
    },
    h(
      "div",
      { class: "row" },
      field("namespace", { required: true }),
      field("name", { required: true }),
      field("id column"),
      field("label column"),
      field("delimiter", { size: 3 }),
      h(
        "label",
        { class: "flat" },
        h("input", { type: "checkbox", name: "overwrite" }),
        t("overwrite"),
      ),
    ),
    h(
      "div",
      { class: "row" },
      h("input", { type: "file", name: "file", required: true, "aria-label": t("file") }),
      h("button", { class: "main" }, t("upload")),
      bar,
    ),
    said_,
  );
  return card("upload", h("p", { class: "faint" }, t("about upload")), form);
}

export async function datasetPage(body, { session, parts: [namespace, name], again }) {
  const path = `/api/v1/datasets/${segment(namespace)}/${segment(name)}`;
  const [d, routes] = await Promise.all([get(path), get("/api/v1/routes?limit=1000")]);
  const preview = h("div"),
    columns = h(
      "div",
      {},
      table(
        ["name", "type"],
        d.columns.map((c) => [c.name, c.type]),
      ),
    );
  const count = async () => {
    const one = await get(`${path}/preview?rows=100`);
    columns.replaceChildren(
      h("p", { class: "faint" }, t("about statistics", { rows: one.rows.length, all: d.count })),
      statistics(d.columns, one),
    );
  };
  const act = (label, method, at, question, danger) =>
    button(
      label,
      async () => {
        const reason = await confirmed(t(question, { what: d.dataset_id }), {
          reason: true,
          danger,
        });
        if (reason === null) return;
        await call(method, at, method === "DELETE" ? undefined : { reason });
        done(label, d.dataset_id);
        await again();
      },
      danger ? "danger" : "",
    );
  const node = h(
    "select",
    { "aria-label": t("partner") },
    routes.routes.map((r) =>
      h("option", { value: r.node }, r.institution ? `${r.node} ${r.institution}` : r.node),
    ),
  );
  add(
    body,
    h(
      "div",
      { class: "row" },
      h("h1", {}, d.dataset_id),
      badge(d.disabled ? "disabled" : d.there ? "enabled" : "bad"),
    ),
    d.changed && h("div", { class: "box bad" }, d.changed),
    d.warnings.length > 0 &&
      h(
        "div",
        { class: "box wait" },
        d.warnings.map((one) => h("p", {}, one)),
      ),
    card(
      "",
      facts([
        ["rows", d.count],
        ["columns", d.columns.length],
        ["size", bytes(d.size)],
        ["description", d.description],
        ["origin", d.origin],
        ["id column", d.match_id_name],
        ["label column", d.label_name],
        ["format", `${d.format} ${d.encoding} ${d.delimiter ?? ""}`],
        ["sha256", h("code", {}, d.checksum)],
        ["created", moment(d.created_at)],
        ["used by", d.used_by.join(between)],
      ]),
      h(
        "div",
        { class: "row" },
        may(session, "platform") && button("statistics", count),
        may(session, "platform") &&
          button("look", async () => {
            const one = await get(`${path}/preview`);
            preview.replaceChildren(table(one.columns, one.rows, "no rows", true));
          }),
        may(session, "platform") &&
          h("a", { class: "button", href: `${path}/download` }, t("download")),
        may(session) &&
          (d.disabled
            ? act("enable", "POST", `${path}/enable`, "enable?")
            : act("disable", "POST", `${path}/disable`, "disable?", true)),
      ),
      preview,
    ),
    card("columns", columns),
    card(
      "grants",
      d.grants_default === "open" && h("p", { class: "faint" }, t("grants open")),
      table(
        ["partner", "state", "granted", "by", "why", "expires", ""],
        d.grants.map((g) => [
          g.node,
          badge(g.state),
          moment(g.granted_at),
          g.granted_by,
          g.reason,
          moment(g.expires_at),
          may(session) && g.state === "in force"
            ? act("revoke", "DELETE", `${path}/grants/${segment(g.node)}`, "revoke?", true)
            : "",
        ]),
        "no grants",
      ),
      may(session) &&
        routes.routes.length > 0 &&
        h(
          "div",
          { class: "row" },
          node,
          button("grant", async () => {
            const reason = await confirmed(t("grant?", { node: node.value }), { reason: true });
            if (reason === null) return;
            await call("PUT", `${path}/grants/${segment(node.value)}`, { reason });
            done("grant", `${d.dataset_id} → ${node.value}`);
            await again();
          }),
        ),
    ),
  );
}

/** What the values of each column are like. */
function statistics(columns, { columns: names, rows }) {
  return table(
    ["name", "type", "missing", "distinct", "least", "mean", "most"],
    columns.map((column) => {
      const at = names.indexOf(column.name),
        all = rows.map((row) => row[at]);
      const there = all.filter((one) => one !== null && one !== undefined && one !== "");
      const numbers = there.map(Number),
        numeric = there.length > 0 && column.type !== "string" && numbers.every(Number.isFinite);
      const mean = numeric ? numbers.reduce((sum, one) => sum + one, 0) / numbers.length : null;
      const edge = (fold) => (numeric ? numbers.reduce((a, b) => fold(a, b)) : null);
      return [
        column.name,
        column.type,
        all.length - there.length,
        new Set(there.map(String)).size,
        edge(Math.min),
        mean,
        edge(Math.max),
      ];
    }),
  );
}

// ---------------------------------------------------------------- providers

export async function providersPage(body) {
  const found = await all("/api/v1/providers", "providers");
  add(
    body,
    h("h1", {}, t("page providers")),
    card(
      "",
      table(
        ["provider", "image", "components", "warnings", "state", "owner"],
        found.map((p) => [
          h("a", { href: `#/providers/${segment(p.provider_name)}` }, p.provider_name),
          h("code", {}, p.image),
          p.components.join(between),
          p.warning_count,
          badge(p.retired ? "retired" : "enabled"),
          p.owner || said("admins"),
        ]),
        "no providers",
      ),
    ),
  );
}

export async function providerPage(body, { session, parts: [name], again }) {
  const path = `/api/v1/providers/${segment(name)}`;
  const [p, history] = await Promise.all([get(path), get(`${path}/history`)]);
  const act = (verb, danger) =>
    button(
      verb,
      async () => {
        const reason = await confirmed(t(`${verb}?`), { reason: true, danger });
        if (reason === null) return;
        await call("POST", `${path}/${verb.split(" ")[0]}`, { reason });
        done(verb, p.provider_name);
        await again();
      },
      danger ? "danger" : "",
    );
  const difference = h("div");
  add(
    body,
    h(
      "div",
      { class: "row" },
      h("h1", {}, p.provider_name),
      badge(p.retired ? "retired" : "enabled"),
    ),
    card(
      "",
      facts([
        ["owner", p.owner || said("admins")],
        ["revision", p.revision],
        ["protocol", p.protocol],
        ["used by", p.jobs.join(between)],
      ]),
      table(
        ["image", "digest"],
        Object.entries(p.images).map(([image]) => [
          h("code", {}, image),
          h("code", {}, p.digests[image] ?? "–"),
        ]),
      ),
      may(session, "vendor") &&
        h(
          "div",
          { class: "row" },
          act("approve image"),
          p.retired ? act("unretire") : act("retire", true),
        ),
    ),
    p.warnings.length > 0 &&
      card(
        "warnings",
        table(
          ["where", "what"],
          p.warnings.map((w) => [w.path ?? "", w.rule ?? w.message ?? value(w)]),
        ),
      ),
    ...Object.values(p.components_description).map((c) =>
      h(
        "section",
        {},
        h(
          "details",
          {},
          h(
            "summary",
            {},
            h("strong", {}, c.componentName),
            ` ${[...new Set([c.title, c.description].filter(Boolean))].join(" ")}`,
          ),
          facts([
            ["roles", (c.roleList ?? []).join(between)],
            ["storages", (c.storageEngine ?? []).join(between)],
          ]),
          table(
            ["name", "type", "default", "description"],
            (c.inputParam ?? []).map((i) => [
              i.name,
              i.type,
              value(i.defaultValue),
              i.description ?? i.title,
            ]),
          ),
        ),
      ),
    ),
    card(
      "history",
      table(
        ["revision", "time", "by", "what", "why", ""],
        history.history.map((e) => [
          e.revision,
          moment(e.at),
          e.author,
          e.in_words,
          e.reason,
          e.revision > 1
            ? button("difference", async () => {
                const { changes } = await get(
                  `${path}/diff?since=${e.revision - 1}&until=${e.revision}`,
                );
                difference.replaceChildren(
                  h("h3", {}, `${t("difference")} ${e.revision - 1} → ${e.revision}`),
                  table(
                    ["where", "before", "after"],
                    changes.map((c) => [
                      h("code", {}, c.path),
                      h("code", {}, value(c.before)),
                      h("code", {}, value(c.after)),
                    ]),
                  ),
                );
                difference.scrollIntoView({ block: "nearest" });
              })
            : "",
        ]),
      ),
      difference,
    ),
  );
}

// ---------------------------------------------------------------- partners

export async function partnersPage(body, { session, again }) {
  const [found, versions, ends] = await Promise.all([
    get("/api/v1/routes?limit=1000"),
    get("/api/v1/route-versions"),
    get("/api/v1/certificates"),
  ]);
  const steps = h("div");
  const test = (route) =>
    button("test", async () => {
      steps.replaceChildren(h("p", { class: "faint" }, t("loading")));
      const one = await call("POST", `/api/v1/routes/${segment(route.node)}/test`);
      steps.replaceChildren(
        card(
          "",
          h("h2", { class: "mono" }, one.node, " ", badge(one.good ? "good" : "bad")),
          stepTable(one),
        ),
      );
    });
  const changed = (...request) => edited(again, ...request);
  const change = (route) =>
    button(route.enabled ? "disable" : "enable", async () => {
      const reason = await confirmed(
        t(route.enabled ? "disable?" : "enable?", { what: route.node }),
        { reason: true, danger: route.enabled },
      );
      if (reason === null) return;
      await changed("PATCH", `/api/v1/routes/${segment(route.node)}`, {
        route: { enabled: !route.enabled },
        reason,
      });
    });
  const edit = (route) =>
    button(route ? "edit" : "add a route", async () => {
      const keys = [
        ["url", "address", { type: "url", placeholder: "https://gw.bank.example:7380" }],
        ["via", "through"],
        ["institution", "institution"],
        ...FILES,
      ];
      const given = await ask(
        route ? route.node : t("add a route"),
        [
          !route && entry("node", "node", { required: true }),
          keys.map(([key, label, more]) =>
            entry(key, label, { value: route?.[key] ?? "", ...more }),
          ),
          signingChoice(route),
          entry("reason", "reason"),
        ],
        { yes: "save" },
      );
      if (!given) return;
      const text = (key) => given.get(key).trim() || null;
      const there = route ?? found.routes.find(({ node }) => node === text("node")); // written anew, it would lose what is not asked here
      const values = Object.fromEntries(
        [...keys, ["signing"]]
          .map(([key]) => [key, text(key)])
          .filter(([key, one]) => one !== (there?.[key] ?? null) && (route || one)),
      );
      await changed(
        there ? "PATCH" : "PUT",
        `/api/v1/routes/${segment(there?.node ?? text("node"))}?version=${found.version}`,
        { route: values, reason: text("reason") ?? "" },
      );
    });
  add(
    body,
    h("h1", {}, t("page partners")),
    found.problems.length > 0 &&
      h(
        "div",
        { class: "box bad" },
        found.problems.map((p) => h("p", {}, value(p))),
      ),
    card(
      "",
      table(
        ["node", "institution", "address", "through", "profile", "signing", "state", ""],
        found.routes.map((r) => [
          h("span", { class: "mono" }, r.node),
          r.institution,
          r.url,
          r.via,
          r.profile,
          signing(r),
          badge(r.enabled ? "enabled" : "disabled"),
          h(
            "div",
            { class: "row" },
            may(session, "platform") && test(r),
            may(session) && [edit(r), change(r)],
          ),
        ]),
        "no partners",
      ),
      may(session) &&
        h(
          "details",
          {},
          h("summary", {}, h("strong", {}, t("new partner"))),
          inviting(session, again),
          h("div", { class: "row" }, edit()),
        ),
    ),
    steps,
    card(
      "certificates",
      table(
        ["where", "file", "until", "days left"],
        ends.certificates.map((c) => [
          h("code", {}, c.where),
          h("code", {}, c.file),
          h("div", {}, moment(c.ends), c.cause && h("p", { class: "faint" }, c.cause)),
          h(
            "span",
            { class: `badge ${c.days < 0 ? "bad" : c.days < 30 ? "wait" : "good"}` },
            String(c.days),
          ),
        ]),
        "no certificates",
      ),
    ),
    card(
      "history",
      table(
        ["version", "time", "by", "why", "changes", ""],
        versions.versions.map((v) => [
          v.version,
          moment(v.at),
          v.source === "file" ? said(v.author) : v.author,
          v.reason === ACCEPTED ? said(ACCEPTED) : v.reason,
          v.changes.length
            ? h(
                "details",
                {},
                h(
                  "summary",
                  {},
                  v.changes.map((c) => [c.node, c.field].filter(Boolean).join(".")).join(", "),
                ),
                v.changes.map((c) =>
                  h(
                    "p",
                    {},
                    h("code", {}, [c.node, c.field].filter(Boolean).join(".")),
                    " ",
                    h("code", { class: "faint" }, value(c.before)),
                    " → ",
                    h("code", {}, value(c.after)),
                  ),
                ),
              )
            : "",
          may(session) && v.version !== found.version
            ? button("back to this", async () => {
                const reason = await confirmed(t("back?", { version: v.version }), {
                  reason: true,
                });
                if (reason === null) return;
                await changed("POST", `/api/v1/route-versions/${v.version}/rollback`, { reason });
              })
            : "",
        ]),
      ),
    ),
  );
}

/** Chooses whether a route's requests need a signature; of a new route they do, unless somebody says otherwise. */
const signingChoice = (route) => {
  const unsaid = route ? t("as the keys say") : said("required");
  const words = route ? ["required", "accepted", "off"] : ["accepted", "off"];
  const options = words.map((word) =>
    h("option", { value: word, selected: word === route?.signing }, said(word)),
  );
  return h(
    "label",
    {},
    t("signing"),
    h(
      "select",
      { name: "signing" },
      !route?.signing && h("option", { value: "" }, unsaid),
      options,
    ),
    h("span", { class: "faint" }, t("about signing")),
  );
};

/** Whether a route's requests need a signature, as it is in force. */
const signing = (route) => [
  said(route.signing ?? (route.keys.length ? "required" : "accepted")),
  route.signing === "required" && !route.keys.length && h("p", { class: "faint" }, t("no key")),
];

/** Makes a change of the routes and says which version is in force. */
async function edited(again, ...request) {
  const made = await call(...request);
  notice("good", t("version in force", { version: made.version }), ...made.not_in_file);
  await again();
}
/** The keys of a route that name files of the node's machine. */
const FILES = [
  ["ca", "authority"],
  ["certificate", "own certificate"],
  ["key", "own key"],
].map(([key, label]) => [key, label, { placeholder: "/etc/bfia/….pem" }]);

const ACCEPTED = "invitation accepted";

/** Exchange invitations, compare six words, and write the route. */
function inviting(session, again) {
  const address = h("input", {
    name: "address",
    type: "url",
    size: 34,
    placeholder: "https://gw.bank.example:7380",
  });
  const own = h("div"),
    theirs = h("textarea", {
      class: "short",
      name: "invitation",
      spellcheck: "false",
      "aria-label": t("their invitation"),
    }),
    compared = h("div");
  const show = async () => {
    const text = JSON.stringify(
      await get(`/api/v1/invitation?address=${segment(address.value.trim())}`),
      null,
      1,
    );
    own.replaceChildren(
      h("pre", {}, text),
      h(
        "div",
        { class: "row" },
        h(
          "a",
          {
            class: "button",
            download: `invitation-${session.node}.json`,
            href: `data:application/json,${segment(text)}`,
          },
          t("download"),
        ),
      ),
    );
  };
  const compare = async () => {
    let invitation;
    try {
      invitation = JSON.parse(theirs.value);
    } catch (error) {
      compared.replaceChildren(
        h(
          "div",
          { class: "box bad", role: "alert" },
          h("p", {}, `${t("not JSON")}: ${error.message}`),
        ),
      );
      return;
    }
    const one = await call("POST", "/api/v1/invitation/words", {
      invitation,
      address: address.value.trim(),
    });
    const accept = async () => {
      const given = await ask(
        t("same words?", { words: one.words }),
        one.address.toLowerCase().startsWith("https:") &&
          FILES.map(([key, label, more]) => entry(key, label, more)),
      );
      if (!given) return;
      const files = Object.fromEntries(
        [...given].map(([key, path]) => [key, path.trim()]).filter(([, path]) => path),
      );
      const route = {
        url: one.address,
        keys: one.keys.join(", "),
        signing: "required",
        bundles: "required",
        ...files,
        ...(one.has_route ? { enabled: true } : {}),
      };
      await edited(
        again,
        one.has_route ? "PATCH" : "PUT",
        `/api/v1/routes/${segment(one.node)}?version=${one.version}`,
        { route, reason: ACCEPTED },
      );
      notice("good", t("accepted", { node: one.node }));
    };
    compared.replaceChildren(
      h(
        "div",
        { class: "box wait" },
        h("p", {}, h("span", { class: "mono" }, one.node), " ", h("code", {}, one.address)),
        h("p", { class: "words" }, one.words),
        h("p", {}, t("compare words")),
        !one.address.toLowerCase().startsWith("https:") && h("p", {}, t("not encrypted")),
        one.has_route && h("p", {}, t("replaces route")),
        h("div", { class: "row" }, button("accept", accept, "main")),
      ),
    );
  };
  return [
    h("p", { class: "faint" }, t("about inviting")),
    h("label", {}, t("own address"), address),
    h(
      "div",
      { class: "grid" },
      h("div", {}, h("h3", {}, t("own invitation")), button("show invitation", show), own),
      h(
        "div",
        {},
        h("h3", {}, t("their invitation")),
        h("input", {
          type: "file",
          accept: ".json,application/json",
          "aria-label": t("from a file"),
          onchange: async (event) => {
            theirs.value = await event.target.files[0].text();
          },
        }),
        theirs,
        h("div", { class: "row" }, button("compare", compare)),
        compared,
      ),
    ),
  ];
}

/** The steps of a trial, each with what was found and what to do. */
const stepTable = ({ steps }) =>
  table(
    ["step", "state", "found", "next step"],
    steps.map((s) => [
      step(s.name),
      checked(s.result),
      [s.found, s.cause && h("p", { class: "faint" }, s.cause)],
      s.remedy || "",
    ]),
  );

// ---------------------------------------------------------------- the node

export async function nodePage(body, { session }) {
  const [ready, engine, held, kept] = await Promise.all([
    fetch("/health/ready", { headers: { "accept-language": lang() } }).then((r) => r.json()),
    get("/api/v1/engine"),
    get("/api/v1/resources"),
    get("/api/v1/storages"),
  ]);
  const rows = Object.entries(ready.checks).map(([name, { ok, ...rest }]) => [
    said(name),
    badge(ok ? "ok" : "bad"),
    Object.entries(rest)
      .filter(([, v]) => !Array.isArray(v) || v.length)
      .map(([k, v]) => `${said(`of ${k}`).replace(/^of /, "")}: ${said(value(v))}`)
      .join(between),
  ]);
  const kinds = Object.keys(held.total).filter((kind) => kind !== "gpu" || held.total.gpu),
    amounts = (of) => kinds.map((kind) => of[kind] ?? "–");
  const job = (id) => h("a", { href: `#/jobs/${segment(id)}`, class: "mono" }, id);
  const engines = [{ name: "", ...engine }, ...engine.engines];
  const steps = h("div"),
    look = async () => {
      steps.replaceChildren(h("p", { class: "faint" }, t("loading")));
      try {
        steps.replaceChildren(stepTable(await get("/api/v1/doctor")));
      } catch (error) {
        steps.replaceChildren(problems(error));
      }
    };
  add(
    body,
    h(
      "div",
      { class: "row" },
      h("h1", {}, `${t("page node")} ${session.node}`),
      badge(ready.ready ? "ok" : "bad"),
    ),
    card(
      "",
      facts([
        ["institution", session.institution],
        ["version", session.version],
      ]),
    ),
    card(
      "health",
      table(["check", "state", "found"], rows),
      may(session) &&
        h(
          "div",
          { class: "row" },
          button("look at all", look),
          h("span", { class: "faint" }, t("about doctor")),
        ),
      steps,
    ),
    card(
      "resources",
      table(
        ["", ...kinds.map(said)],
        ["total", "held", "others", "remaining"]
          .filter((key) => key !== "others" || Object.values(held.others).some(Boolean))
          .map((key) => [t(key), ...amounts(held[key])]),
      ),
      h("h3", {}, t("held by jobs")),
      table(
        ["job", ...kinds.map(said), "since when"],
        held.holders.map((one) => [job(one.job_id), ...amounts(one), moment(one.since)]),
        "nothing held",
      ),
      held.waiting.length > 0 && [
        h("h3", {}, t("waiting jobs")),
        table(
          ["job", ...kinds.map(said), "since when", "why"],
          held.waiting.map((one) => [
            job(one.job_id),
            ...amounts(one),
            moment(one.since),
            one.reason,
          ]),
        ),
      ],
    ),
    card(
      "engine",
      table(
        ["name", "kind", "state", "isolation"],
        engines.map((one) => [
          one.name || "–",
          one.kind,
          badge(one.answers ? "ok" : "bad"),
          one.answers ? (one.isolation?.gaps ?? []).map((gap) => h("p", {}, gap)) : one.cause,
        ]),
      ),
    ),
    card(
      "storages",
      table(
        ["name", "kind", "address", "state", "uploads"],
        kept.storages.map((one) => [
          one.name,
          one.kind,
          h("code", {}, one.url),
          [badge(one.ok ? "ok" : "bad"), " ", one.cause],
          one.uploads ? "✓" : "",
        ]),
      ),
    ),
  );
  if (may(session)) add(body, await audit());
}

const outcome = ({ status, code, detail }) =>
  status < 400 && [null, 0, 200].includes(code)
    ? said(detail.dry_run ? "dry run" : "done")
    : `${said("refused")} (${code || status})`;

/** The audit log, newest first; by who and by what was done. */
async function audit() {
  const chosen = { who: "", action: "" },
    lines = h("div");
  const load = async (after = "", before = []) => {
    const found = await get(
      `/api/v1/audit?${new URLSearchParams(Object.entries({ ...chosen, after, limit: 50 }).filter(([, v]) => v !== ""))}`,
    );
    const all = [...before, ...found.audit];
    fill(
      lines,
      table(
        ["time", "by", "what", "result", "detail"],
        all.map((a) => [
          moment(a.at),
          a.who === "somebody"
            ? said(a.who)
            : a.who.replace(/ \(command line\)$/, said(" (command line)")),
          a.in_words === a.action ? a.action : [a.in_words, h("br"), h("code", {}, a.action)],
          outcome(a),
          Object.keys(a.detail).length
            ? h(
                "details",
                {},
                h("summary", {}, t("show")),
                h("pre", {}, JSON.stringify(a.detail, null, 1)),
              )
            : "",
        ]),
        "no audit",
      ),
      found.next != null && button("older", () => load(found.next, all)),
    );
  };
  const filter = (name, label, placeholder) =>
    h(
      "label",
      {},
      t(label),
      h("input", {
        name,
        placeholder,
        onchange: (e) => {
          chosen[name] = e.target.value.trim();
          load().catch(refused);
        },
      }),
    );
  await load();
  return card(
    "audit",
    h("div", { class: "row" }, filter("who", "by"), filter("action", "what")),
    lines,
  );
}
