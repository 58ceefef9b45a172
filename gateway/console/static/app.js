// The frame of the console: header, login and the page that the address names.
import { ApiError, get, request } from "./api.js";
import { button, cancelDialogs, dismissErrors } from "./dialogs.js";
import { h } from "./dom.js";
import { chooseLanguage, language, LANGUAGES, translate } from "./language.js";
import { buttonLink } from "./links.js";
import { loginForm, takeRememberedAddress } from "./login.js";
import { alertBox, hint, option, row } from "./widgets.js";

// By the first segment of the address: the module of the list, and the module of one of its members.
// `help`: the document about it. Modules are loaded when they are first needed. Each exports `fillPage(body, {session, signal, ids, reload})`;
// `signal` aborts when the user leaves the page, `reload` loads it again.
const PAGES = {
  overview: { list: "overview", help: "console" },
  jobs: { list: "jobs", member: "job", help: "platform" },
  submit: { list: "submit", help: "platform" },
  approvals: { list: "approvals", help: "management" },
  data: { list: "datasets", member: "dataset", help: "data" },
  models: { list: "models", member: "model", help: "models" },
  providers: { list: "providers", member: "provider", help: "vendor" },
  partners: { list: "partners", member: "partner", help: "routes" },
  node: { list: "node", help: "admin" },
  invitation: { list: "invitation", help: "together", isInMenu: false },
  compare: { list: "models", member: "compare", help: "models", isInMenu: false },
  tokens: { list: "tokens", help: "admin", isInMenu: false },
};
const FIRST_PAGE = "overview";
const LOAD_PAUSES_MS = [200, 1000]; // before each further request for a module

let session = null;
let pageAbort = new AbortController(); // aborts when the user leaves the page
let decisions = 0; // that wait for a person, as last read

/** The page that the address names, and the ids of the member that it shows. */
function currentPlace() {
  const [path] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...ids] = path.split("/");
  return { name: name || FIRST_PAGE, ids: ids.map(decodeSegment) };
}

/** A segment of the address as text; as it is if it was not encoded. */
function decodeSegment(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// ---------------------------------------------------------------- header

function drawHeader() {
  const skipLink = document.getElementById("skip");
  skipLink.textContent = translate("skip");
  skipLink.onclick = skipToContent;
  const bar = h(
    "div",
    { class: "bar" },
    h("span", { class: "name" }, "BFIA"),
    session && h("span", { class: "mono faint", title: session.institution }, session.node),
    session && navigation(),
    h(
      "span",
      { class: "who" },
      session?.user && h("span", {}, `${session.user} (${session.role})`),
      session && helpLink(),
      languageChoice(),
      session?.user && button("log out", logOut),
    ),
  );
  document.getElementById("header").replaceChildren(bar);
}

function skipToContent(event) {
  event.preventDefault(); // the address would name no page
  const content = document.querySelector("main .list") ?? document.getElementById("main");
  content.focus();
}

function navigation() {
  const { name: currentPage } = currentPlace();
  const links = menuPages().map((name) => {
    const current = name === currentPage ? "page" : null;
    const count = name === "approvals" && decisionCount();
    return h("a", { href: `#/${name}`, "aria-current": current }, translate(`page ${name}`), count);
  });
  return h("nav", { "aria-label": translate("pages") }, links);
}

/** A link to the document about the current page, in the user's language. */
function helpLink() {
  const { help = "README" } = PAGES[currentPlace().name] ?? {};
  const suffix = language === "zh" ? ".zh-CN.md" : ".md";
  return h("a", { href: `/docs/${help}${suffix}`, target: "_blank" }, translate("help"));
}

/** The pages of the navigation; others are reached from these. */
const menuPages = () => Object.keys(PAGES).filter((name) => PAGES[name].isInMenu !== false);

const decisionCount = () =>
  h("span", { class: "count", hidden: decisions === 0, id: "decisions" }, String(decisions));

/** Reads how many decisions wait, and shows the number in the navigation. */
async function countDecisions() {
  try {
    const { approvals, applications } = await get("/api/v1/waiting");
    decisions = approvals + applications;
  } catch {
    return; // the page itself says what is wrong
  }
  document.getElementById("decisions")?.replaceWith(decisionCount());
}

function languageChoice() {
  const options = Object.entries(LANGUAGES).map(([code, name]) => option(code, language, name));
  const choose = (event) => chooseLanguage(event.target.value);
  return h("select", { "aria-label": translate("language"), onchange: choose }, options);
}

async function logOut() {
  const { provider } = await request("DELETE", "/api/v1/session");
  await showLogin(provider && translate("still at provider", { provider }));
}

// ---------------------------------------------------------------- pages

/** Shows the login page; `message`: why the user has to log in. */
async function showLogin(message = "") {
  session = null;
  pageAbort.abort();
  drawHeader();
  const form = await loginForm(message, async (newSession) => {
    session = newSession;
    await showPage();
  });
  document.getElementById("main").replaceChildren(form);
  form.querySelector("[data-focus]")?.focus();
}

/** Shows the page that the address names. */
async function showPage() {
  pageAbort.abort();
  pageAbort = new AbortController();
  const { signal } = pageAbort;
  const { name, ids } = currentPlace();
  drawHeader();
  countDecisions();
  if (!Object.hasOwn(PAGES, name)) {
    showNoSuchPage();
    return;
  }
  const { list, member } = PAGES[name];
  const module = ids.length > 0 && member ? member : list;
  const main = document.getElementById("main");
  const body = h("div");
  document.title = `${translate(`page ${name}`)} · ${session.node}`;
  main.replaceChildren(hint(translate("loading")));
  try {
    const { fillPage } = await loadPage(module);
    await fillPage(body, { session, signal, ids, reload: showPage });
  } catch (error) {
    if (!(error instanceof ApiError) && !signal.aborted) console.error(error);
    showPageError(body, name, error);
  }
  if (!signal.aborted) main.replaceChildren(body);
}

function showNoSuchPage() {
  const links = menuPages().map((name) => buttonLink(`#/${name}`, translate(`page ${name}`)));
  document.title = `${translate("no such page")} · ${session.node}`;
  document
    .getElementById("main")
    .replaceChildren(
      h("h1", {}, translate("no such page")),
      hint(h("code", {}, location.hash)),
      row(links),
    );
}

/**
 * Loads the module of a page. After a lost connection it is requested again: a browser repeats
 * only requests on connections that were in use before.
 */
async function loadPage(module) {
  const path = `./pages/${module}.js`;
  for (const pause of LOAD_PAUSES_MS) {
    try {
      return await import(path);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
  return import(path);
}

function showPageError(body, name, error) {
  body.replaceChildren(
    h("h1", {}, translate(`page ${name}`)),
    alertBox(error.message),
    button("try again", showPage),
  );
}

addEventListener("hashchange", async () => {
  dismissErrors();
  cancelDialogs();
  if (!session) return;
  await showPage();
  document.getElementById("main").focus();
});

addEventListener("logged-out", () => {
  if (session) showLogin(translate("logged out"));
});

try {
  session = await request("GET", "/api/v1/session", undefined, { quiet: true });
  const address = takeRememberedAddress();
  if (!location.hash && address) history.replaceState(null, "", address);
  await showPage();
} catch (error) {
  await showLogin(error.status === 401 ? "" : error.message);
}
