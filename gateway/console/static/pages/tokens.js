// The tokens of people and programs, for admins.
import { getAll, request, segment } from "../api.js";
import { askForm, button, confirmAction, inputField, notifyDone } from "../dialogs.js";
import { append, h } from "../dom.js";
import { timestamp } from "../format.js";
import { apiWord, translate } from "../language.js";
import { badge, box, card, code, hint, option, row, table } from "../widgets.js";

const ROLES = ["viewer", "platform", "vendor", "admin"];
const DEFAULT_DAYS = 90; // as `token create` has it

export async function fillPage(body, { session }) {
  const list = h("div");
  const show = async (secret = null) => {
    const tokens = await getAll("/api/v1/tokens", "tokens");
    list.replaceChildren(tokenTable(tokens, show), ...(secret ? [secretBox(secret)] : []));
  };
  await show();
  append(
    body,
    h("h1", {}, translate("page tokens")),
    card(
      "",
      hint(translate("about tokens")),
      session.user ? row(createButton(show)) : box("wait", translate("no tokens needed")),
      list,
    ),
  );
}

function tokenTable(tokens, show) {
  const rows = tokens.map((token) => [
    code(token.id),
    token.name,
    apiWord(token.role),
    timestamp(token.created_at),
    timestamp(token.expires_at),
    badge(token.state),
    token.state === "valid" ? revokeButton(token, show) : "",
  ]);
  const columns = ["id", "name", "role", "created", "expires", "state", ""];
  return table(columns, rows, "no tokens");
}

const createButton = (show) =>
  button(
    "create token",
    async () => {
      const roles = ROLES.map((role) => option(role, "platform", apiWord(role)));
      const fields = [
        inputField("name", "token owner", { required: true, maxlength: 255 }),
        h("label", {}, translate("role"), h("select", { name: "role" }, roles)),
        inputField("days", "valid days", {
          type: "number",
          min: 0,
          max: 36500,
          value: DEFAULT_DAYS,
        }),
      ];
      const send = async (form) => show(await createToken(Object.fromEntries(form)));
      await askForm(translate("create token"), fields, { yes: "create token", send });
    },
    "main",
  );

const createToken = ({ name, role, days }) =>
  request("POST", "/api/v1/tokens", { name: name.trim(), role, days: Number(days) });

/** The text of a new token, which is shown only now. */
const secretBox = ({ name, token }) =>
  h(
    "div",
    { class: "box wait", role: "status" },
    h("p", {}, translate("token of", { name })),
    h("pre", {}, token),
  );

function revokeButton({ id, name }, show) {
  const revoke = async () => {
    const question = translate("revoke token?", { name });
    if (!(await confirmAction(question, { danger: true }))) return;
    await request("DELETE", `/api/v1/tokens/${segment(id)}`);
    notifyDone("revoke", name);
    await show();
  };
  return button("revoke", revoke, "danger");
}
