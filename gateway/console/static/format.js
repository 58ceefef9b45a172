// Values, times and sizes as people read them.
import { h } from "./dom.js";
import { durationUnits } from "./language.js";

const NONE = "–";
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** A point in time by ISO 8601, in the user's time zone. */
export function timestamp(text) {
  if (!text) return NONE;
  return h("time", { datetime: text, title: text }, isoText(new Date(text)));
}

/** A time as in "2026-11-29 14:30:05 +08:00". */
function isoText(time) {
  const offset = -time.getTimezoneOffset(); // minutes
  const sign = offset < 0 ? "-" : "+";
  const zone = `${padded(Math.floor(Math.abs(offset) / 60))}:${padded(Math.abs(offset) % 60)}`;
  const day = [time.getFullYear(), time.getMonth() + 1, time.getDate()].map(padded).join("-");
  const clock = [time.getHours(), time.getMinutes(), time.getSeconds()].map(padded).join(":");
  return `${day} ${clock} ${sign}${zone}`;
}

const padded = (number) => String(number).padStart(2, "0");

/** The time between two points; without an end, until now. */
export function duration(from, to) {
  if (!from) return NONE;
  const end = to ? new Date(to) : new Date();
  const total = Math.max(0, end - new Date(from)) / 1000;
  const { hours, minutes, seconds } = durationUnits;
  if (total < 60) return `${total.toFixed(1)}${seconds}`;
  if (total < 3600) {
    return `${Math.floor(total / 60)}${minutes} ${Math.floor(total % 60)}${seconds}`;
  }
  return `${Math.floor(total / 3600)}${hours} ${Math.floor((total % 3600) / 60)}${minutes}`;
}

/** A number of bytes in a unit of fitting size. */
export function byteSize(bytes) {
  if (bytes == null) return NONE;
  let amount = bytes;
  let unit = 0;
  while (amount >= 1024 && unit < BYTE_UNITS.length - 1) {
    amount /= 1024;
    unit += 1;
  }
  const digits = unit === 0 ? amount : amount.toFixed(1);
  return `${digits} ${BYTE_UNITS[unit]}`;
}

/** A JSON value as text; fractions have six significant digits. */
export function displayValue(value) {
  if (value === null || value === undefined) return NONE;
  if (typeof value === "object") return JSON.stringify(value);
  if (typeof value === "number" && !Number.isInteger(value)) {
    return String(Number(value.toPrecision(6)));
  }
  return String(value);
}

/** A JSON value as indented text. */
export const prettyJson = (value) => JSON.stringify(value, null, 1);
