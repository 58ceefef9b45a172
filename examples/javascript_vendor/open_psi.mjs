// A party of the open protocol ECDH-PSI, written from docs/ecdh-psi.md alone. Node.js 20 without
// packages.

import { Channel } from "./channel.mjs";
import {
  any,
  bytesField,
  bytesOf,
  fieldsOf,
  message,
  numberField,
  numberOf,
  numbersOf,
  unpacked,
} from "./protobuf.mjs";
import { SUITES } from "./suites.mjs";

const INVALID_RESOURCE = 31100101;

// Runs the protocol. config: of the channel, and ids, curves, canTruncate, truncatedBits, batchSize,
// resultToRank. Returns {common, peerCount, bits}, or {refused} with the code of the refusal.
export async function intersect(config) {
  const channel = new Channel(config);
  const agreement =
    channel.rank === 0 ? await respond(channel, config) : await request(channel, config);
  return agreement.refused ? agreement : await exchange(channel, config, agreement);
}

// Tells a waiting requester that this party cannot take part; rank 1 has no message for it.
export async function refuse(config) {
  const channel = new Channel(config);
  if (channel.rank === 0) await channel.send(refusalMessage(INVALID_RESOURCE, "invalid table"));
}

// ---------------------------------------------------------------- the handshake

const suitOf = (bytes) => [1, 2, 3].map((number) => numberOf(fieldsOf(bytes), number));
const isSuit = (suite, suit) => suite.suit.join() === suit.join();
const encodeSuit = ({ suit }) =>
  message(...suit.map((value, place) => numberField(place + 1, value)));
const refusalMessage = (code, text) =>
  bytesField(1, message(numberField(1, code), bytesField(2, text)));

function refusalOf(request, suite, config) {
  if (numberOf(request, 1) !== 2) return [31100201, "version"];
  if (!numbersOf(request, 3).includes(1)) return [31100202, "algorithm"];
  if (!suite) return [31100203, "suite"];
  if (numberOf(unpacked(request, 9), 3) !== config.resultToRank)
    return [31100203, "result_to_rank"];
  return undefined;
}

async function respond(channel, config) {
  const request = fieldsOf(await channel.receive());
  const ecc = unpacked(request, 8);
  const proposed = (ecc[2] ?? []).map(suitOf);
  const formats = numbersOf(ecc, 3);
  const suite = config.curves
    .map((name) => SUITES[name])
    .find((own) => proposed.some((suit) => isSuit(own, suit)) && formats.includes(own.format));
  const refusal = refusalOf(request, suite, config);
  if (refusal) {
    await channel.send(refusalMessage(...refusal));
    return { refused: refusal[0] };
  }
  const bits = numberOf(ecc, 4) ? config.truncatedBits : -1;
  const result = message(
    numberField(1, 1),
    bytesField(2, encodeSuit(suite)),
    numberField(3, suite.format),
    numberField(4, bits),
  );
  const io = message(numberField(1, 1), numberField(2, config.resultToRank));
  await channel.send(
    message(
      bytesField(1, numberField(1, 0)),
      numberField(2, 1),
      numberField(6, 1),
      bytesField(7, any("protocol.EccProtocolResult", result)),
      bytesField(8, any("algos.PsiDataIoResult", io)),
    ),
  );
  return { suite, bits };
}

async function request(channel, config) {
  const suites = config.curves.map((name) => SUITES[name]);
  const proposal = message(
    numberField(1, 1),
    ...suites.map((suite) => bytesField(2, encodeSuit(suite))),
    ...suites.map((suite) => numberField(3, suite.format)),
    numberField(4, config.canTruncate ? 1 : 0),
  );
  const io = message(
    numberField(1, 1),
    numberField(2, config.ids.length),
    numberField(3, config.resultToRank),
  );
  await channel.send(
    message(
      numberField(1, config.version ?? 2),
      numberField(2, channel.rank),
      numberField(3, 1),
      numberField(7, 1),
      bytesField(8, any("protocol.EccProtocolProposal", proposal)),
      bytesField(9, any("algos.PsiDataIoProposal", io)),
    ),
  );
  const response = fieldsOf(await channel.receive());
  const code = numberOf(fieldsOf(bytesOf(response, 1)), 1);
  if (code) return { refused: code };
  const result = unpacked(response, 7);
  const suit = suitOf(bytesOf(result, 2));
  return {
    suite: suites.find((suite) => isSuit(suite, suit)),
    bits: numberOf(result, 4),
  };
}

// ---------------------------------------------------------------- the exchange

const split = (bytes, size) =>
  Array.from({ length: bytes.length / size }, (_, n) => bytes.subarray(n * size, (n + 1) * size));

const encodeBatch = (type, index, isLast, items) =>
  message(
    bytesField(1, type),
    numberField(3, index),
    numberField(4, isLast ? 1 : 0),
    numberField(6, items.length),
    bytesField(7, Buffer.concat(items)),
  );

// Sends the encrypted ids in batches, sorted by their bytes; returns the ids in that order.
async function sendPoints(channel, config, suite, secret) {
  const pairs = config.ids.map((id) => [suite.multiply(secret, suite.point(id)), id]);
  pairs.sort(([left], [right]) => Buffer.compare(left, right));
  const batches = Math.max(1, Math.ceil(pairs.length / config.batchSize));
  for (let index = 0; index < batches; index += 1) {
    const batch = pairs.slice(index * config.batchSize, (index + 1) * config.batchSize);
    const points = batch.map(([point]) => point);
    await channel.send(encodeBatch("enc", index, index + 1 === batches, points));
  }
  return pairs.map(([, id]) => id);
}

async function exchange(channel, config, { suite, bits }) {
  const secret = suite.secret();
  const learns = [-1, channel.rank].includes(config.resultToRank);
  const peerLearns = [-1, channel.peerRank].includes(config.resultToRank);
  const tagSize = bits === -1 ? suite.size : bits / 8;
  const sentIds = await sendPoints(channel, config, suite, secret);
  const peerTags = [];
  const ownTags = [];
  let isPeerComplete = false;
  let isOwnComplete = !learns;
  while (!isPeerComplete || !isOwnComplete) {
    const batch = fieldsOf(await channel.receive());
    const isLast = numberOf(batch, 4) === 1;
    const ciphertext = bytesOf(batch, 7);
    if (bytesOf(batch, 1).toString() === "dual.enc") {
      ownTags.push(...split(ciphertext, tagSize));
      isOwnComplete = isLast;
      continue;
    }
    const products = split(ciphertext, suite.size).map((point) => suite.multiply(secret, point));
    const tags = products.map((point) => point.subarray(point.length - tagSize));
    peerTags.push(...tags);
    isPeerComplete = isLast;
    if (peerLearns) await channel.send(encodeBatch("dual.enc", numberOf(batch, 3), isLast, tags));
  }
  if (!learns) return { common: null, peerCount: peerTags.length, bits };
  if (ownTags.length !== sentIds.length) throw new Error("not all points came back");
  const peerSet = new Set(peerTags.map((tag) => tag.toString("hex")));
  const common = sentIds.filter((_, n) => peerSet.has(ownTags[n].toString("hex")));
  common.sort((left, right) => Buffer.compare(Buffer.from(left), Buffer.from(right)));
  return { common, peerCount: peerTags.length, bits };
}
