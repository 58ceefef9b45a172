// Changes of the routes to partners, by hand and by invitation, and their test.
import { request, segment } from "../api.js";
import { button, notify } from "../dialogs.js";
import { h } from "../dom.js";
import { stepName, translate } from "../language.js";
import { badge, card, hint, stepTable } from "../widgets.js";

/** Reason of a change by invitation; it is stored in English and translated when shown. */
export const INVITATION_ACCEPTED = "invitation accepted";

/** The fields of a route that name files at the node's machine. */
export const TLS_FIELDS = [
  { key: "ca", label: "authority", placeholder: "/etc/bfia/….pem" },
  { key: "certificate", label: "own certificate", placeholder: "/etc/bfia/….pem" },
  { key: "key", label: "own key", placeholder: "/etc/bfia/….pem" },
];

/** Changes the routes, shows the version in force, and loads the page again. */
export async function changeRoutes(method, path, body, reload) {
  const { version, not_in_file: notes } = await request(method, path, body);
  notify("good", translate("version in force", { version }), ...notes);
  await reload();
}

/** A button that tests a route, and shows the steps in `place`. */
export function testButton(route, place) {
  return button("test", async () => {
    place.replaceChildren(hint(translate("loading")));
    const result = await request("POST", `/api/v1/routes/${segment(route.node)}/test`);
    const verdict = badge(result.good ? "good" : "bad");
    const heading = h("h2", { class: "mono" }, result.node, " ", verdict);
    place.replaceChildren(card("", heading, stepTable(result.steps, stepName)));
  });
}
