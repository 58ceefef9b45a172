// The frame: who is logged in, where one is, and which page shows.
import { submitPage } from "./compose.js";
import { button, call, get, h, lang, languages, Refused, speak, t } from "./core.js";
import { jobPage, jobsPage } from "./jobs.js";
import { approvalsPage, datasetPage, dataPage, nodePage, partnersPage, providerPage, providersPage } from "./pages.js";

const pages = [
  ["jobs", jobsPage, jobPage], ["submit", submitPage], ["approvals", approvalsPage], ["data", dataPage, datasetPage],
  ["providers", providersPage, providerPage], ["partners", partnersPage], ["node", nodePage],
];
let session = null;
let left = new AbortController();

function header() {
  const [here] = place();
  document.getElementById("skip").textContent = t("skip");
  document.getElementById("header").replaceChildren(h("div", { class: "bar" },
    h("span", { class: "name" }, "BFIA"),
    session && h("span", { class: "mono faint", title: session.institution }, session.node),
    session && h("nav", { "aria-label": t("pages") }, pages.map(([name]) =>
      h("a", { href: `#/${name}`, "aria-current": name === here ? "page" : null }, t(`page ${name}`)))),
    h("span", { class: "who" },
      session?.user && h("span", {}, `${session.user} (${session.role})`),
      h("select", { "aria-label": t("language"), onchange: (event) => speak(event.target.value) },
        Object.entries(languages).map(([code, name]) => h("option", { value: code, selected: code === lang() }, name))),
      session?.user && button("log out", async () => { await call("DELETE", "/api/v1/session"); login(); }))));
}

const place = () => {
  const [name, ...rest] = location.hash.replace(/^#\//, "").split("/");
  const known = pages.find(([of]) => of === name);
  return known ? [name, rest.map(decodeURIComponent)] : ["jobs", []];
};

function login(why = "") {
  session = null;
  left.abort();
  header();
  const token = h("input", { type: "password", name: "token", size: 40, autocomplete: "current-password", required: true });
  const said = h("div");
  const form = h("form", { onsubmit: async (event) => {
    event.preventDefault();
    try {
      session = await call("POST", "/api/v1/session", undefined, { headers: { authorization: `Bearer ${token.value.trim()}` }, quiet: true });
      show();
    } catch (error) {
      said.replaceChildren(h("div", { class: "box bad", role: "alert" }, h("p", {}, error.message)));
    }
  } }, h("p", {}, h("label", {}, t("token"), token)), said, h("button", { class: "main" }, t("log in")));
  document.getElementById("main").replaceChildren(h("h1", {}, t("log in")),
    h("section", {}, why && h("p", {}, why), form, h("p", {}, t("how to get a token"), " ", h("code", {}, "bfia-gateway token create"))));
  token.focus();
}

async function show() {
  left.abort();
  left = new AbortController();
  const mine = left;
  const [name, rest] = place();
  header();
  const main = document.getElementById("main");
  const [, list, one] = pages.find(([of]) => of === name);
  const body = h("div");
  try {
    document.title = `${t(`page ${name}`)} · ${session.node}`;
    main.replaceChildren(h("p", { class: "faint" }, t("loading")));
    await (rest.length && one ? one : list)(body, { session, stopped: mine.signal, parts: rest, again: show });
  } catch (error) {
    if (mine.signal.aborted) return;
    if (!(error instanceof Refused)) console.error(error);
    body.replaceChildren(h("h1", {}, t(`page ${name}`)), h("div", { class: "box bad", role: "alert" }, h("p", {}, error.message)), button("try again", show));
  }
  if (!mine.signal.aborted) main.replaceChildren(body);
}

addEventListener("hashchange", () => session && show().then(() => document.getElementById("main").focus()));
addEventListener("logged-out", () => session && login(t("logged out")));

try {
  session = await call("GET", "/api/v1/session", undefined, { quiet: true });
  await show();
} catch (error) {
  login(error.status === 401 ? "" : error.message);
}
