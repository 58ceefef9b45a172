// Requests to the gateway.
import { language, translate } from "./language.js";

const PAGE_SIZE = 200;
const MAX_ROWS = 2000; // of a list that is read to its end

/** A refused request, or one without a response (status 0). */
export class ApiError extends Error {
  constructor(status, body) {
    super(body?.message ?? body?.msg ?? `HTTP ${status}`);
    this.status = status;
    this.reason = body?.data?.reason ?? "";
    this.problems = body?.data?.problems ?? [];
    // If nodes refuse a job, the message also has refusals without a path.
    if (body?.code === 400 && this.problems.length > 0 && body.data.next_step) {
      this.message = `${this.reason}: ${body.data.next_step}`; // the problems say the rest
    }
  }
}

/** Encodes a value for a segment of a path. */
export const segment = encodeURIComponent;

/**
 * Sends a request and returns the JSON of the response. Throws `ApiError`.
 * `quiet`: an expired session does not lead to the login page.
 */
export async function request(method, path, body, { headers = {}, quiet = false } = {}) {
  const response = await send(method, path, body, headers);
  const content = await response.json().catch(() => null);
  if (isRefusal(response, content)) {
    if (response.status === 401 && !quiet) dispatchEvent(new Event("logged-out"));
    throw new ApiError(response.status, content);
  }
  return content;
}

export const get = (path) => request("GET", path);

/** Reads a list page by page; `key` names the rows in the responses. */
export async function getAll(path, key, parameters = {}) {
  const rows = [];
  let after = "";
  while (after !== null && rows.length < MAX_ROWS) {
    const page = await get(`${path}?${query({ ...parameters, limit: PAGE_SIZE, after })}`);
    rows.push(...page[key]);
    after = page.next ?? null;
  }
  return rows;
}

/** The query of an address, without empty parameters. */
export function query(parameters) {
  const present = Object.entries(parameters).filter(([, value]) => value !== "");
  return new URLSearchParams(present);
}

/** Sends a request; the response may be a refusal. Throws `ApiError` without a response. */
export async function send(method, path, body, extraHeaders = {}) {
  const headers = { "x-console": "1", "accept-language": language, ...extraHeaders };
  const options = { method, headers, credentials: "same-origin" };
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  try {
    return await fetch(path, options);
  } catch {
    throw new ApiError(0, { msg: translate("no response") });
  }
}

/** True if the status or the code in the body is one of an error. */
function isRefusal(response, content) {
  if (!response.ok) return true;
  if (!content || Array.isArray(content)) return false;
  return typeof content.code === "number" && content.code !== 0 && content.code !== 200;
}
