// The states of jobs, tasks and runs as users know them.

const ENDED = ["FINISHED", "REJECTED"];
const RUN_ENDED = ["SUCCESS", "FAILED"];
const NOT_STARTED = ["PENDING", "READY"];

export const hasEnded = (job) => ENDED.includes(job.status);

/** True if the job has ended and so have its runs: containers can end after their job was stopped. */
export const hasSettled = (job) =>
  hasEnded(job) && job.runs.every((run) => RUN_ENDED.includes(run.status));

export const hasRunEnded = (status) => RUN_ENDED.includes(status);

/** The label of a party, as in "host.0"; tasks of a whole role have no index. */
export const partyLabel = ({ role, index }) => (index === null ? role : `${role}.${index}`);

/**
 * The state of a task or run to show. The standard has no word for one that was stopped, nor for one that
 * an ended job never ran.
 */
export function shownState(job, status, failure) {
  if (status === "FAILED" && failure?.reason === "STOPPED") return "STOPPED";
  if (hasEnded(job) && NOT_STARTED.includes(status)) return "not run";
  return status;
}

/** The states to show by task. */
export function taskStates(job) {
  const states = job.tasks.map((task) => [task.name, shownState(job, task.status, task.failure)]);
  return new Map(states);
}

/** The reason and message of a failure or of a wait. */
export const reasonText = ({ reason, message }) => `${reason} ${message}`;
