// Server-sent events in the response to a request; an EventSource can only GET.
import { ApiError, send } from "./api.js";

const END_OF_EVENT = "\n\n";

/** Sends a request; yields the events of its response, `{name, content}`. Throws `ApiError`. */
export async function* eventsOf(method, path) {
  const response = await send(method, path);
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => null));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split(END_OF_EVENT);
    text = events.pop();
    yield* events.map(parseEvent).filter(({ name }) => name);
  }
}

/** The name and the JSON of an event; no name for a comment. */
function parseEvent(text) {
  const lines = text.split("\n").map((line) => line.split(/: (.*)/s));
  const { event: name, data } = Object.fromEntries(lines);
  return { name, content: data && JSON.parse(data) };
}
