// Differences between two JSON values.

const isObject = (value) => value !== null && typeof value === "object";

/** The values that differ, each with its path; a missing value is undefined. */
export function differences(before, after, path = "") {
  if (!isObject(before) || !isObject(after)) {
    return Object.is(before, after) ? [] : [{ path, before, after }];
  }
  const keys = new Set([...Object.keys(before), ...Object.keys(after)]);
  return [...keys].flatMap((key) => {
    const inner = path ? `${path}.${key}` : key;
    return differences(before[key], after[key], inner);
  });
}
