// Changes of the routes to partners, by hand and by invitation.
import { request } from "../api.js";
import { notify } from "../dialogs.js";
import { translate } from "../language.js";

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
