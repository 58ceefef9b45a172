// Changes of the routes to partners, by hand and by invitation, and their test.
import { ApiError, request, segment } from "../api.js";
import { button, notify } from "../dialogs.js";
import { h } from "../dom.js";
import { byteSize, timestamp } from "../format.js";
import { apiWord, stepName, translate } from "../language.js";
import { eventsOf } from "../stream.js";
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

/** What proves the requests of a route's node; in red, with the next step, if nothing does. */
export function proofOf({ proof, remedy }) {
  if (!proof) return "";
  const word = apiWord(`proof ${proof}`);
  if (!remedy) return word;
  return [h("span", { class: "badge bad" }, word), hint(remedy)];
}

/** Whether messages of containers are sealed, as in force; and control requests, if they are. */
export function sealingOf(route) {
  const byKey = route.sealing_key ? "accepted" : "off";
  const ofMessages = apiWord(route.sealing ?? byKey);
  if (route.control_sealing === "off") return ofMessages;
  const mode = apiWord(route.control_sealing);
  return [ofMessages, hint(translate("control sealing", { mode }))];
}

/** The links of a route: which way, how many, since when; and why the last one failed. */
export function linksOf({ reached, dial, links, link_failure: failure }) {
  if (!reached && !dial) return "";
  const text = [translate(reached ? "dials in" : "is dialled")];
  if (links.length === 0) text.push(" ", h("span", { class: "badge bad" }, translate("no link")));
  const ends = links.map(({ since, address, gateway }) =>
    h("div", {}, timestamp(since), ` ${address}`, gateway && hint(gateway)),
  );
  const cause = failure && hint(translate("last link failed"), " ", timestamp(failure.at));
  return [...text, ends, cause, failure && hint(failure.cause)];
}

/** How one direction to a partner is used, where its bandwidth is limited. */
export const paceOf = ({ bytes_per_second: rate, limit, waiting }) =>
  translate("pace", { rate: byteSize(rate), limit: byteSize(limit), waiting });

/** The bytes received from a partner and sent to it. */
export const trafficOf = ({ bytes_in: received, bytes_out: sent }) =>
  translate("traffic", { received: byteSize(received), sent: byteSize(sent) });

/** A button that tests a route, and shows each step in `place` as it was taken. */
export const testButton = ({ node }, place) => button("test", () => testRoute(node, place));

async function testRoute(node, place) {
  const steps = [];
  showTest(place, node, "RUNNING", steps);
  const events = eventsOf("POST", `/api/v1/routes/${segment(node)}/test?follow=1`);
  try {
    for await (const { name, content } of events) {
      if (name === "problem") throw new ApiError(0, content);
      if (name === "end") {
        showTest(place, node, content.good ? "passes" : "failed", content.steps);
        return;
      }
      steps.push(content);
      showTest(place, node, "RUNNING", steps);
    }
    throw new ApiError(0, { msg: translate("no response") });
  } catch (error) {
    showTest(place, node, "failed", steps); // what was found so far
    throw error;
  }
}

function showTest(place, node, state, steps) {
  const heading = h("h2", { class: "mono", role: "status" }, node, " ", badge(state));
  const content = steps.length > 0 ? stepTable(steps, stepName) : hint(translate("loading"));
  place.replaceChildren(card("", heading, content));
}
