// The frame: who is logged in, where one is, and which page shows.
import { submitPage } from "./compose.js";
import { button, call, forget, get, h, lang, languages, Refused, speak, t } from "./core.js";
import { jobPage, jobsPage } from "./jobs.js";
import {
  approvalsPage,
  datasetPage,
  dataPage,
  nodePage,
  partnersPage,
  providerPage,
  providersPage,
} from "./pages.js";

const pages = [
  ["jobs", jobsPage, jobPage],
  ["submit", submitPage],
  ["approvals", approvalsPage],
  ["data", dataPage, datasetPage],
  ["providers", providersPage, providerPage],
  ["partners", partnersPage],
  ["node", nodePage],
];
let session = null;
let left = new AbortController();

function header() {
  const [here] = place();
  Object.assign(document.getElementById("skip"), {
    textContent: t("skip"),
    onclick: (event) => {
      event.preventDefault(); // the address names the page
      (document.querySelector("main .list") ?? document.getElementById("main")).focus();
    },
  });
  document.getElementById("header").replaceChildren(
    h(
      "div",
      { class: "bar" },
      h("span", { class: "name" }, "BFIA"),
      session && h("span", { class: "mono faint", title: session.institution }, session.node),
      session &&
        h(
          "nav",
          { "aria-label": t("pages") },
          pages.map(([name]) =>
            h(
              "a",
              { href: `#/${name}`, "aria-current": name === here ? "page" : null },
              t(`page ${name}`),
            ),
          ),
        ),
      h(
        "span",
        { class: "who" },
        session?.user && h("span", {}, `${session.user} (${session.role})`),
        h(
          "select",
          { "aria-label": t("language"), onchange: (event) => speak(event.target.value) },
          Object.entries(languages).map(([code, name]) =>
            h("option", { value: code, selected: code === lang() }, name),
          ),
        ),
        session?.user &&
          button("log out", async () => {
            const { provider } = await call("DELETE", "/api/v1/session");
            login(provider && t("still at provider", { provider }));
          }),
      ),
    ),
  );
}

const place = () => {
  const [name, ...rest] = location.hash.replace(/^#\//, "").split("/");
  const known = pages.find(([of]) => of === name);
  return known ? [name, rest.map(decodeURIComponent)] : ["jobs", []];
};

/** What the way back from the login at a provider left in the address: why it was refused. */
function refusedThere() {
  const reason = location.hash.match(/^#refused=([A-Z_]+)$/)?.[1];
  if (reason) history.replaceState(null, "", "#/");
  return reason && `${t(`=${reason}`)} (${reason})`;
}
const remembered = {
  // where somebody was who goes to log in elsewhere
  set: () => {
    if (location.hash.length > 2)
      try {
        sessionStorage.setItem("place", location.hash);
      } catch {
        /* private browsing */
      }
  },
  take: () => {
    try {
      const at = sessionStorage.getItem("place");
      sessionStorage.removeItem("place");
      return at;
    } catch {
      return null;
    }
  },
};

async function login(why = "") {
  session = null;
  left.abort();
  header();
  const token = h("input", {
    type: "password",
    name: "token",
    size: 40,
    autocomplete: "current-password",
    required: true,
  });
  const said = h("div");
  const form = h(
    "form",
    {
      onsubmit: async (event) => {
        event.preventDefault();
        try {
          session = await call("POST", "/api/v1/session", undefined, {
            headers: { authorization: `Bearer ${token.value.trim()}` },
            quiet: true,
          });
          show();
        } catch (error) {
          said.replaceChildren(
            h("div", { class: "box bad", role: "alert" }, h("p", {}, error.message)),
          );
        }
      },
    },
    h("p", {}, h("label", {}, t("token"), token)),
    said,
    h("button", { class: "main" }, t("log in")),
  );
  const refused = refusedThere();
  const ways = await call("GET", "/api/v1/session/ways").catch(() => ({ oidc: false }));
  const byToken = [
    form,
    h(
      "p",
      { class: "faint" },
      t("how to get a token"),
      " ",
      h("code", {}, "bfia-gateway token create"),
    ),
  ];
  document
    .getElementById("main")
    .replaceChildren(
      h(
        "div",
        { class: "login" },
        h("h1", {}, t("log in")),
        refused && h("div", { class: "box bad", role: "alert" }, h("p", {}, refused)),
        h(
          "section",
          {},
          why && h("p", {}, why),
          ways.oidc
            ? [
                h(
                  "p",
                  {},
                  h(
                    "a",
                    { class: "button main", href: "/api/v1/session/oidc", onclick: remembered.set },
                    t("log in by provider"),
                  ),
                ),
                h("p", { class: "faint" }, t("identity provider"), " ", h("code", {}, ways.issuer)),
                h("details", {}, h("summary", {}, t("log in by token")), byToken),
              ]
            : byToken,
        ),
      ),
    );
  if (!ways.oidc) token.focus();
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
    await (rest.length && one ? one : list)(body, {
      session,
      stopped: mine.signal,
      parts: rest,
      again: show,
    });
  } catch (error) {
    if (mine.signal.aborted) return;
    if (!(error instanceof Refused)) console.error(error);
    body.replaceChildren(
      h("h1", {}, t(`page ${name}`)),
      h("div", { class: "box bad", role: "alert" }, h("p", {}, error.message)),
      button("try again", show),
    );
  }
  if (!mine.signal.aborted) main.replaceChildren(body);
}

addEventListener("hashchange", () => {
  forget();
  if (session) show().then(() => document.getElementById("main").focus());
});
addEventListener("logged-out", () => session && login(t("logged out")));

try {
  session = await call("GET", "/api/v1/session", undefined, { quiet: true });
  const back = remembered.take();
  if (!location.hash && back) history.replaceState(null, "", back);
  await show();
} catch (error) {
  login(error.status === 401 ? "" : error.message);
}
