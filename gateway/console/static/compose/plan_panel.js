// The plan beside a job that is edited: renewed after each change.
import { request } from "../api.js";
import { h } from "../dom.js";
import { translate } from "../language.js";
import { errorBox, hint } from "../widgets.js";
import { findingsOfError, findingsOfPlan } from "./findings.js";
import { planElements } from "./plan.js";

const PLAN_DELAY_MS = 1000; // after the last change

export class PlanPanel {
  element = h("div");
  #signal;
  #timer = null;
  #lastPlan = 0; // number of the last request

  #onFindings;

  /** `onFindings` gets the findings of each plan. */
  constructor(signal, onFindings = () => {}) {
    this.#signal = signal;
    this.#onFindings = onFindings;
    signal.addEventListener("abort", () => clearTimeout(this.#timer));
  }

  /** Shows other elements in place of the plan. */
  show(...elements) {
    this.element.replaceChildren(...elements);
  }

  /** Calls a function once it was not called for a while. */
  soon(plan) {
    this.stopWaiting();
    this.#timer = setTimeout(() => {
      if (!this.#signal.aborted) plan();
    }, PLAN_DELAY_MS);
  }

  stopWaiting() {
    clearTimeout(this.#timer);
  }

  /**
   * Shows what would happen to a job. Resolves with true if every node would take it.
   * `isSubmission`: whether the user tried to submit the job.
   */
  async plan(job, isSubmission = false) {
    this.stopWaiting();
    this.#lastPlan += 1;
    const number = this.#lastPlan;
    const showIfLast = (elements, findings) => {
      if (number !== this.#lastPlan) return;
      this.show(...elements);
      this.#onFindings(findings);
    };
    this.show(hint(translate("planning")));
    try {
      const plan = await request("POST", "/api/v1/jobs/plan", job);
      showIfLast(planElements(plan, isSubmission), findingsOfPlan(plan));
      return plan.good;
    } catch (error) {
      showIfLast([errorBox(error)], findingsOfError(error));
      return false;
    }
  }
}
