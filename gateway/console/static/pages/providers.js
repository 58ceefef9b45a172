// The registered algorithm providers.
import { getAll, segment } from "../api.js";
import { append, h } from "../dom.js";
import { apiWord, listSeparator, translate } from "../language.js";
import { hasRole } from "../roles.js";
import { badge, card, code, table, textLines } from "../widgets.js";
import { uploadCard } from "./provider_upload.js";

export async function fillPage(body, { session }) {
  const list = h("div");
  const show = async () => list.replaceChildren(await providerTable());
  await show();
  append(
    body,
    h("h1", {}, translate("page providers")),
    card("", list),
    hasRole(session, "vendor") && uploadCard(show),
  );
}

async function providerTable() {
  const providers = await getAll("/api/v1/providers", "providers");
  const rows = providers.map((provider) => [
    h("a", { href: `#/providers/${segment(provider.provider_name)}` }, provider.provider_name),
    code(provider.image),
    provider.components.join(listSeparator),
    provider.warning_count,
    badge(provider.retired ? "retired" : "enabled"),
    textLines(provider.granted),
    provider.owner || apiWord("admins"),
  ]);
  const columns = ["provider", "image", "components", "warnings", "state", "extra rights", "owner"];
  return table(columns, rows, "no providers");
}
