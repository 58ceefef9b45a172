// The registered algorithm providers.
import { getAll, segment } from "../api.js";
import { append, h } from "../dom.js";
import { apiWord, listSeparator, translate } from "../language.js";
import { badge, card, code, table, textLines } from "../widgets.js";

export async function fillPage(body) {
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
  append(
    body,
    h("h1", {}, translate("page providers")),
    card("", table(columns, rows, "no providers")),
  );
}
