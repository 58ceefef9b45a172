// The login by a token, or at an OpenID provider.
import { get, request } from "./api.js";
import { h } from "./dom.js";
import { translate } from "./language.js";
import { alertBox, code, hint } from "./widgets.js";

const ADDRESS_KEY = "place"; // session storage: the page on which the user left for the provider

/** The login page. `logIn` is called with the new session; `[data-focus]` marks the input to focus. */
export async function loginForm(message, logIn) {
  const refusal = takeProviderRefusal();
  const ways = await get("/api/v1/session/ways").catch(() => ({ oidc: false }));
  const tokenLogin = tokenForm(logIn, !ways.oidc);
  return h(
    "div",
    { class: "login" },
    h("h1", {}, translate("log in")),
    refusal && alertBox(refusal),
    h(
      "section",
      {},
      message && h("p", {}, message),
      ways.oidc ? providerLogin(ways.issuer, tokenLogin) : tokenLogin,
    ),
  );
}

/** The address of the page from which the user went to the provider, once; null if there is none. */
export function takeRememberedAddress() {
  try {
    const address = sessionStorage.getItem(ADDRESS_KEY);
    sessionStorage.removeItem(ADDRESS_KEY);
    return address;
  } catch {
    return null; // private browsing
  }
}

function rememberAddress() {
  if (location.hash.length <= 2) return;
  try {
    sessionStorage.setItem(ADDRESS_KEY, location.hash);
  } catch {
    // Private browsing: the user comes back to the first page.
  }
}

/** The reason in the address with which a refused login at the provider ends. */
function takeProviderRefusal() {
  const reason = location.hash.match(/^#refused=([A-Z_]+)$/)?.[1];
  if (!reason) return null;
  history.replaceState(null, "", "#/");
  return `${translate(`=${reason}`)} (${reason})`;
}

function providerLogin(issuer, tokenLogin) {
  const link = { class: "button main", href: "/api/v1/session/oidc", onclick: rememberAddress };
  return [
    h("p", {}, h("a", link, translate("log in by provider"))),
    hint(translate("identity provider"), " ", code(issuer)),
    h("details", {}, h("summary", {}, translate("log in by token")), tokenLogin),
  ];
}

function tokenForm(logIn, hasFocus) {
  const token = h("input", {
    type: "password",
    name: "token",
    size: 40,
    autocomplete: "current-password",
    required: true,
    "data-focus": hasFocus,
  });
  const errors = h("div");
  const submit = async (event) => {
    event.preventDefault();
    const headers = { authorization: `Bearer ${token.value.trim()}` };
    try {
      const options = { headers, quiet: true };
      await logIn(await request("POST", "/api/v1/session", undefined, options));
    } catch (error) {
      errors.replaceChildren(alertBox(error.message));
    }
  };
  const form = h(
    "form",
    { onsubmit: submit },
    h("p", {}, h("label", {}, translate("token"), token)),
    errors,
    h("button", { class: "main" }, translate("log in")),
  );
  const help = hint(translate("how to get a token"), " ", code("bfia-gateway token create"));
  return [form, help];
}
