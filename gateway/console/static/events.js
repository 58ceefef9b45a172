// The stream of events, by which pages show changes as they happen.
import { showError } from "./dialogs.js";

const EVENT_NAMES = [
  "created",
  "approval_asked",
  "approved",
  "ready",
  "started",
  "task_started",
  "task_ended",
  "task_again",
  "task_inherited",
  "run_started",
  "run_ended",
  "suspended",
  "resumed",
  "stopped",
  "model_saved",
  "finished",
  "rejected",
  "run_again",
  "deleted",
  "cleaned",
];
const RELOAD_DELAY_MS = 1000; // several events lead to one reload
const POLL_MS = 5000; // progress has no events

/** Calls `reload` after each event of a stream, at most once a second, until `signal` aborts. */
export function followEvents(address, signal, reload) {
  const source = new EventSource(address);
  let timer = null;
  const reloadNow = () => {
    timer = null;
    if (!signal.aborted) reload().catch(showError);
  };
  const scheduleReload = () => {
    timer ??= setTimeout(reloadNow, RELOAD_DELAY_MS);
  };
  const poll = setInterval(() => {
    if (!document.hidden) scheduleReload();
  }, POLL_MS);
  for (const name of EVENT_NAMES) source.addEventListener(name, scheduleReload);
  source.onmessage = scheduleReload;
  signal.addEventListener("abort", () => {
    source.close();
    clearTimeout(timer);
    clearInterval(poll);
  });
}
