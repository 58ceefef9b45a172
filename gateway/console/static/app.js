// The frame of the console: header, login and the page that the address names.
import { ApiError, request } from "./api.js";
import { button, dismissErrors } from "./dialogs.js";
import { h } from "./dom.js";
import { chooseLanguage, language, LANGUAGES, translate } from "./language.js";
import { loginForm, takeRememberedAddress } from "./login.js";
import { alertBox, hint, option } from "./widgets.js";

// By the first segment of the address: the module of the list, and the module of one of its members.
// Modules are loaded when they are first needed. Each exports `fillPage(body, {session, signal, ids, reload})`;
// `signal` aborts when the user leaves the page, `reload` loads it again.
const PAGES = {
  jobs: { list: "jobs", member: "job" },
  submit: { list: "submit" },
  approvals: { list: "approvals" },
  data: { list: "datasets", member: "dataset" },
  providers: { list: "providers", member: "provider" },
  partners: { list: "partners" },
  node: { list: "node" },
};
const FIRST_PAGE = "jobs";
const LOAD_PAUSES_MS = [200, 1000]; // before each further request for a module

let session = null;
let pageAbort = new AbortController(); // aborts when the user leaves the page

/** The page that the address names, and the ids of the member that it shows. */
function currentPlace() {
  const [name, ...ids] = location.hash.replace(/^#\//, "").split("/");
  if (!Object.hasOwn(PAGES, name)) return { name: FIRST_PAGE, ids: [] };
  return { name, ids: ids.map(decodeURIComponent) };
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
  const links = Object.keys(PAGES).map((name) => {
    const current = name === currentPage ? "page" : null;
    return h("a", { href: `#/${name}`, "aria-current": current }, translate(`page ${name}`));
  });
  return h("nav", { "aria-label": translate("pages") }, links);
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
  const { list, member } = PAGES[name];
  const module = ids.length > 0 && member ? member : list;
  const main = document.getElementById("main");
  const body = h("div");
  drawHeader();
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
