// Two nodes become partners: they exchange invitations and compare six words by telephone.
import { get, request, segment } from "../api.js";
import { askForm, button, inputField, notify } from "../dialogs.js";
import { append, h } from "../dom.js";
import { prettyJson } from "../format.js";
import { translate } from "../language.js";
import { buttonLink } from "../links.js";
import { alertBox, card, code, hint, row } from "../widgets.js";
import { changeRoutes, INVITATION_ACCEPTED, TLS_FIELDS } from "./routes.js";

/** A page of its own, with the steps that the people at both nodes take. */
export async function fillPage(body, { session }) {
  const leave = async () => {
    location.hash = "#/partners";
  };
  const steps = ["invite step 1", "invite step 2", "invite step 3", "invite step 4"];
  append(
    body,
    h("h1", {}, translate("page invitation")),
    card(
      "",
      h(
        "ol",
        {},
        steps.map((step) => h("li", {}, translate(step))),
      ),
      invitationForm(session, leave),
    ),
  );
}

export function invitationForm(session, reload) {
  const address = h("input", {
    name: "address",
    type: "url",
    size: 34,
    placeholder: "https://gw.bank.example:7380",
  });
  fillOwnAddress(address);
  const dial = () => {
    address.value = `link://${session.node}`;
  };
  return [
    hint(translate("about inviting")),
    h("label", {}, translate("own address"), address),
    row(button("no open port", dial)),
    h("div", { class: "grid" }, ownInvitation(session, address), theirInvitation(address, reload)),
  ];
}

/** Fills in the address of the settings, if they have one and nobody has typed another. */
export async function fillOwnAddress(input) {
  const { address } = await get("/api/v1/invitation").catch(() => ({ address: "" }));
  if (!input.value) input.value = address;
}

// ---------------------------------------------------------------- this node's invitation

function ownInvitation(session, address) {
  const place = h("div");
  const show = async () => {
    const ownAddress = segment(address.value.trim());
    const text = prettyJson(await get(`/api/v1/invitation?address=${ownAddress}`));
    const download = buttonLink(`data:application/json,${segment(text)}`, translate("download"), {
      download: `invitation-${session.node}.json`,
    });
    place.replaceChildren(h("pre", {}, text), row(download));
  };
  const heading = h("h2", {}, translate("own invitation"));
  return h("div", {}, heading, button("show invitation", show), place);
}

// ---------------------------------------------------------------- the partner's invitation

function theirInvitation(address, reload) {
  const text = h("textarea", {
    class: "short",
    name: "invitation",
    spellcheck: "false",
    "aria-label": translate("their invitation"),
  });
  const place = h("div");
  const readFile = async (event) => {
    text.value = await event.target.files[0].text();
  };
  const file = h("input", {
    type: "file",
    accept: ".json,application/json",
    "aria-label": translate("from a file"),
    onchange: readFile,
  });
  return h(
    "div",
    {},
    h("h2", {}, translate("their invitation")),
    file,
    text,
    row(button("compare", () => compareWords(text.value, address.value.trim(), place, reload))),
    place,
  );
}

/** Shows the words of both invitations, and the button that accepts the partner's. */
async function compareWords(text, address, place, reload) {
  let invitation;
  try {
    invitation = JSON.parse(text);
  } catch (error) {
    place.replaceChildren(alertBox(`${translate("not JSON")}: ${error.message}`));
    return;
  }
  const partner = await request("POST", "/api/v1/invitation/words", { invitation, address });
  const warnings = [
    !isEncrypted(partner) && !dialsIn(partner) && translate("not encrypted"),
    dialsIn(partner) && translate("partner dials in"),
    partner.way.dial && translate("node dials"),
    partner.has_route && translate("replaces route"),
  ];
  const comparison = h(
    "div",
    { class: "box wait" },
    h("p", {}, h("span", { class: "mono" }, partner.node), " ", code(partner.address)),
    h("p", { class: "words" }, partner.words),
    h("p", {}, translate("in digits"), " ", h("span", { class: "mono" }, partner.digits)),
    h("p", {}, translate("compare words")),
    warnings.filter(Boolean).map((warning) => h("p", {}, warning)),
    row(button("accept", () => accept(partner, reload), "main")),
  );
  place.replaceChildren(comparison);
}

const isEncrypted = ({ address }) => address.toLowerCase().startsWith("https:");

/** Whether the partner opens links to this node, and has no address. */
const dialsIn = ({ way }) => way.reached === "by-link";

/** Asks whether the words are the same, and writes the route to the partner. */
async function accept(partner, reload) {
  const fileInputs = TLS_FIELDS.map(({ key, label, ...attributes }) =>
    inputField(key, label, attributes),
  );
  const question = translate("same words?", { words: partner.words });
  const send = (form) => writeRoute(partner, form, reload);
  if (!(await askForm(question, isEncrypted(partner) && fileInputs, { send }))) return;
  notify("good", translate("accepted", { node: partner.node }));
}

async function writeRoute(partner, form, reload) {
  const route = {
    ...partner.way,
    keys: partner.keys.join(", "),
    signing: "required",
    bundles: "required",
    ...sealingOf(partner),
    ...filledIn(form),
  };
  if (partner.has_route) route.enabled = true;
  await changeRoutes(
    partner.has_route ? "PATCH" : "PUT",
    `/api/v1/routes/${segment(partner.node)}?version=${partner.version}`,
    { route, reason: INVITATION_ACCEPTED },
    reload,
  );
}

/** The fields for sealed messages of containers; none unless both nodes offer a key. */
function sealingOf(partner) {
  if (!partner.sealing) return {};
  return { sealing_key: partner.sealing_key, sealing: partner.sealing };
}

/** The fields of a form that are not empty. */
function filledIn(form) {
  const trimmed = [...form].map(([key, text]) => [key, text.trim()]);
  return Object.fromEntries(trimmed.filter(([, text]) => text));
}
