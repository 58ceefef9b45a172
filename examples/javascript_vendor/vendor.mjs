// The container: reads its environment and its table, runs the open protocol, writes the common ids
// and tells the platform. Written from docs/vendor.md.

import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { post } from "./channel.mjs";
import { intersect, refuse } from "./open_psi.mjs";

const env = process.env;
const me = env["config.self_role"];
const peer = { "guest.0": "host.0", "host.0": "guest.0" }[me];
const storage = env["system.storage"].replace("file://", "");
const parameter = (name, otherwise) => env[`runtime.component.parameter.${name}`] ?? otherwise;

process.on("SIGTERM", () => process.exit(143));

async function report(status, fields = {}) {
  const body = { task_id: env["config.task_id"], role: me, status, ...fields };
  await post(env["system.callback"], body);
}

function folderOf(kind, name) {
  const address = env[`runtime.component.${kind}.${name}`];
  if (!address) return undefined;
  const { namespace, name: file } = JSON.parse(address);
  return join(storage, namespace, file);
}

// ---------------------------------------------------------------- tables

// Returns the rows of a CSV text as lists of cells; quoted cells may hold commas and line breaks.
function rowsOf(text) {
  const rows = [];
  let row = [];
  for (const [, quoted, plain, end] of text.matchAll(
    /(?:"((?:[^"]|"")*)"|([^,\r\n]*))(,|\r?\n|$)/g,
  )) {
    const isEndOfText = quoted === undefined && plain === "" && end === "" && row.length === 0;
    if (isEndOfText) break;
    row.push(quoted === undefined ? plain : quoted.replaceAll('""', '"'));
    if (end !== ",") {
      rows.push(row);
      row = [];
    }
  }
  return rows;
}

function partitions(folder) {
  const names = readdirSync(folder).filter((name) => /^data_\d+$/.test(name));
  if (names.length === 0) throw new Error("the table has no data");
  return names.map((name) => readFileSync(join(folder, name), "utf8"));
}

function readIds(column) {
  const folder = folderOf("input", "train_data");
  if (!folder || !existsSync(folder)) throw new Error("the table is missing");
  const ids = partitions(folder).flatMap((text) => {
    const [header = [], ...rows] = rowsOf(text);
    const place = header.indexOf(column);
    if (place < 0) throw new Error(`the table has no column ${column}`);
    return rows.map((row) => row[place]);
  });
  if (ids.some((id) => !id)) throw new Error("an id is empty");
  if (new Set(ids).size !== ids.length) throw new Error("an id occurs twice");
  return ids;
}

const cell = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

function writeTable(name, header, rows, types) {
  const folder = folderOf("output", name);
  if (!folder) return;
  mkdirSync(folder, { recursive: true });
  const lines = [header, ...rows].map((row) => `${row.map(cell).join(",")}\n`);
  writeFileSync(join(folder, "data_0"), lines.join(""));
  const { namespace, name: file } = JSON.parse(env[`runtime.component.output.${name}`]);
  const metadata = {
    namespace,
    name: file,
    count: rows.length,
    partitions: 1,
    data_type: "dense",
    id_column: header[0],
    column_info: header.map((column, place) => ({ name: column, type: types[place] })),
  };
  writeFileSync(join(folder, "metadata"), JSON.stringify(metadata));
}

// ---------------------------------------------------------------- the run

function requireValue(name, supported) {
  const value = parameter(name, supported);
  if (value !== supported) throw new Error(`${name}: this image supports ${supported} only`);
}

function settings() {
  requireValue("intersect_method", "ecdh");
  requireValue("protocol", "open");
  const ecdh = JSON.parse(parameter("ecdh_params", "{}"));
  const everyone = parameter("sync_intersect_ids", "true").toLowerCase() === "true";
  return {
    curves: [ecdh.curves ?? ["curve25519", "sm2"]].flat(),
    truncatedBits: ecdh.bit_length_after_truncated ?? -1,
    batchSize: ecdh.batch_size ?? 4096,
    canTruncate: true,
    resultToRank: everyone ? -1 : 0,
  };
}

function channelSettings() {
  return {
    address: env["system.transport"],
    me,
    peer,
    headers: {
      "x-ptp-session-id": env["config.session_id"],
      "x-ptp-token": env["config.token"],
      "x-ptp-trace-id": env["config.trace_id"],
      "x-ptp-source-node-id": env[`config.node_id.${me}`],
      "x-ptp-target-node-id": env[`config.node_id.${peer}`],
    },
  };
}

function idsOrRefusal(column, channel) {
  try {
    return readIds(column);
  } catch (error) {
    return refuse(channel).then(() => {
      throw error;
    });
  }
}

async function run() {
  await report("RUNNING");
  const channel = channelSettings();
  const column = parameter("id", "id");
  const config = { ...channel, ...settings() };
  const ids = await idsOrRefusal(column, channel);
  const outcome = await intersect({ ...config, ids });
  if (outcome.refused) throw new Error(`the handshake was refused: ${outcome.refused}`);
  const common = outcome.common ?? [];
  writeTable(
    "train_data",
    [column],
    common.map((id) => [id]),
    ["string"],
  );
  const counts = [
    [me, String(ids.length)],
    [peer, String(outcome.peerCount)],
  ].sort();
  counts.push(["intersection", outcome.common ? String(common.length) : ""]);
  writeTable("train-intersection", ["party", "count"], counts, ["string", "int"]);
  console.log(
    `info ${ids.length} ids here, ${outcome.peerCount} at ${peer}, ${common.length} common`,
  );
  await report("SUCCESS", { result_code: "00000000" });
}

try {
  await run();
} catch (error) {
  console.log(`error ${error.message}`);
  await report("FAILED", { result_code: "99999999", result_message: error.message });
  process.exitCode = 1;
}
