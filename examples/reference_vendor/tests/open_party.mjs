// A party of the open protocol ECDH-PSI, written from docs/ecdh-psi.md alone: the counterpart of the
// reference vendor in its tests. Node.js 20 and its crypto module (OpenSSL); no packages.
//
// Reads {address, headers, me, peer, ids, curves, truncatedBits, batchSize, resultToRank} as JSON
// from stdin and prints {common, peerCount, agreement} or {refused}.

import crypto from "node:crypto";
import { readFileSync } from "node:fs";

const config = JSON.parse(readFileSync(0, "utf8"));
const rank = config.me < config.peer ? 0 : 1;
const peerRank = 1 - rank;

// ---------------------------------------------------------------- protobuf

function varint(value) {
  let rest = BigInt.asUintN(64, BigInt(value));
  const bytes = [];
  while (rest > 127n) {
    bytes.push(Number(rest & 127n) | 128);
    rest >>= 7n;
  }
  bytes.push(Number(rest));
  return Buffer.from(bytes);
}

const numberField = (number, value) => Buffer.concat([varint(number * 8), varint(value)]);

function bytesField(number, value) {
  const bytes = Buffer.from(value);
  return Buffer.concat([varint(number * 8 + 2), varint(bytes.length), bytes]);
}

const message = (...fields) => Buffer.concat(fields);
const any = (name, value) =>
  message(
    bytesField(1, `type.googleapis.com/org.interconnection.v2.${name}`),
    bytesField(2, value),
  );

function readVarint(bytes, start) {
  let value = 0n;
  let place = start;
  for (;;) {
    const byte = bytes[place];
    value |= BigInt(byte & 127) << BigInt(7 * (place - start));
    place += 1;
    if (byte < 128) return [Number(BigInt.asIntN(64, value)), place];
  }
}

function fieldsOf(bytes) {
  const fields = {};
  let place = 0;
  while (place < bytes.length) {
    let tag;
    let value;
    [tag, place] = readVarint(bytes, place);
    [value, place] = readVarint(bytes, place);
    if (tag % 8 === 2) {
      const end = place + value;
      value = bytes.subarray(place, end);
      place = end;
    }
    (fields[Math.floor(tag / 8)] ??= []).push(value);
  }
  return fields;
}

const numberOf = (fields, number) => fields[number]?.at(-1) ?? 0;
const bytesOf = (fields, number) => fields[number]?.at(-1) ?? Buffer.alloc(0);

function numbersOf(fields, number) {
  const numbers = [];
  for (const value of fields[number] ?? []) {
    if (typeof value === "number") numbers.push(value);
    for (let place = 0; place < (value.length ?? 0); ) {
      let item;
      [item, place] = readVarint(value, place);
      numbers.push(item);
    }
  }
  return numbers;
}

const unpacked = (fields, number) => fieldsOf(bytesOf(fieldsOf(bytesOf(fields, number)), 2));

// ---------------------------------------------------------------- the channel

async function call(verb, body, headers = {}) {
  const response = await fetch(`http://${config.address}/v1/interconn/chan/${verb}`, {
    method: "POST",
    headers: { ...config.headers, ...headers, "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const answer = await response.json();
  if (answer.code !== "E0000000000") throw new Error(`${verb}: ${answer.code}`);
  return answer;
}

let sent = 0;

async function send(value) {
  sent += 1;
  const push = [numberField(1, rank), bytesField(2, `message ${sent}`)];
  if (config.chunkSize) {
    for (let offset = 0; offset < value.length; offset += config.chunkSize) {
      const chunk = message(numberField(1, value.length), numberField(2, offset));
      const part = value.subarray(offset, offset + config.chunkSize);
      await pushBytes(
        message(...push, bytesField(3, part), numberField(4, 1), bytesField(5, chunk)),
      );
    }
    return;
  }
  await pushBytes(message(...push, bytesField(3, value)));
}

async function pushBytes(bytes) {
  await call("push", {
    topic: `${config.me}-${config.peer}`,
    payload: bytes.toString("base64"),
    metadata: { sequence: crypto.randomUUID() },
  });
}

async function receive() {
  const topic = `${config.peer}-${config.me}`;
  const id = { "x-ptp-pop-id": crypto.randomUUID() };
  for (;;) {
    const { content } = await call("pop", { topic, timeout: 10000 }, id);
    if (!content) continue;
    const push = fieldsOf(Buffer.from(content, "base64"));
    if (numberOf(push, 1) !== peerRank) throw new Error("sender_rank");
    return bytesOf(push, 3);
  }
}

// ---------------------------------------------------------------- the suites

const x25519 = {
  suit: [1, 11, 3],
  format: 1,
  size: 32,
  secret: () => crypto.randomBytes(32),
  point: (id) => crypto.createHash("sha256").update(id).digest(),
  multiply(secret, point) {
    const privateKey = crypto.createPrivateKey({
      key: Buffer.concat([Buffer.from("302e020100300506032b656e04220420", "hex"), secret]),
      format: "der",
      type: "pkcs8",
    });
    const publicKey = crypto.createPublicKey({
      key: Buffer.concat([Buffer.from("302a300506032b656e032100", "hex"), point]),
      format: "der",
      type: "spki",
    });
    return crypto.diffieHellman({ privateKey, publicKey });
  },
};

const P = BigInt("0xFFFFFFFEFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF00000000FFFFFFFFFFFFFFFF");
const N = BigInt("0xFFFFFFFEFFFFFFFFFFFFFFFFFFFFFFFF7203DF6B21C6052B53BBF40939D54123");
const big = (bytes) => BigInt(`0x${bytes.toString("hex")}`);
const bytes32 = (value) => Buffer.from(value.toString(16).padStart(64, "0"), "hex");
const modulo = (value) => ((value % P) + P) % P;
const uncompressed = (point) =>
  crypto.ECDH.convertKey(point, "SM2", undefined, undefined, "uncompressed");

function xOfProduct(scalar, point) {
  const ecdh = crypto.createECDH("SM2");
  ecdh.setPrivateKey(bytes32(scalar));
  return ecdh.computeSecret(point);
}

const sm2 = {
  suit: [2, 1, 1],
  format: 2,
  size: 33,
  secret: () => bytes32((big(crypto.randomBytes(40)) % (N - 2n)) + 1n),
  point(id) {
    let x = big(crypto.createHash("sm3").update(id).digest()) % P;
    for (;;) {
      const point = Buffer.concat([Buffer.from([2]), bytes32(x)]);
      try {
        uncompressed(point);
        return point;
      } catch {
        x = (x + 1n) % P;
      }
    }
  },
  // OpenSSL's key agreement gives only x of Q = kA. Of the two points with this x, Q is the one for
  // which Q + A has the x of (k + 1)A: (yQ - yA)^2 = (x(Q + A) + xQ + xA) (xQ - xA)^2.
  multiply(secret, point) {
    const scalar = big(secret);
    const x = xOfProduct(scalar, point);
    const even = Buffer.concat([Buffer.from([2]), x]);
    const base = uncompressed(point);
    const [xA, yA] = [big(base.subarray(1, 33)), big(base.subarray(33))];
    const yQ = big(uncompressed(even).subarray(33));
    const difference = modulo(big(x) - xA);
    if (difference === 0n) throw new Error("the secret is 1");
    const xSum = big(xOfProduct(scalar + 1n, point));
    const square = modulo((xSum + big(x) + xA) * difference * difference);
    const isEven = modulo((yQ - yA) * (yQ - yA)) === square;
    return Buffer.concat([Buffer.from([isEven ? 2 : 3]), x]);
  },
};

const SUITES = { curve25519: x25519, sm2 };

// ---------------------------------------------------------------- the handshake

const suitOf = (bytes) => [1, 2, 3].map((number) => numberOf(fieldsOf(bytes), number));
const isSuit = (suite, suit) => suite.suit.join() === suit.join();
const encodeSuit = ({ suit }) => message(...suit.map((value, place) => numberField(place + 1, value)));

function refusalOf(request, suite) {
  if (numberOf(request, 1) !== 2) return [31100201, "version"];
  if (!numbersOf(request, 3).includes(1)) return [31100202, "algorithm"];
  if (!suite) return [31100203, "suite"];
  if (numberOf(unpacked(request, 9), 3) !== config.resultToRank) return [31100203, "result_to_rank"];
  return undefined;
}

async function respond() {
  const request = fieldsOf(await receive());
  const ecc = unpacked(request, 8);
  const proposed = (ecc[2] ?? []).map(suitOf);
  const formats = numbersOf(ecc, 3);
  const suite = config.curves
    .map((name) => SUITES[name])
    .find((one) => proposed.some((suit) => isSuit(one, suit)) && formats.includes(one.format));
  const refusal = refusalOf(request, suite);
  if (refusal) {
    await send(bytesField(1, message(numberField(1, refusal[0]), bytesField(2, refusal[1]))));
    return { refused: refusal[0] };
  }
  const bits = numberOf(ecc, 4) ? config.truncatedBits : -1;
  const result = message(
    numberField(1, 1),
    bytesField(2, encodeSuit(suite)),
    numberField(3, suite.format),
    numberField(4, bits),
  );
  await send(
    message(
      bytesField(1, numberField(1, 0)),
      numberField(2, 1),
      numberField(6, 1),
      bytesField(7, any("protocol.EccProtocolResult", result)),
      bytesField(
        8,
        any("algos.PsiDataIoResult", message(numberField(1, 1), numberField(2, config.resultToRank))),
      ),
    ),
  );
  return { suite, bits };
}

async function request() {
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
  await send(
    message(
      numberField(1, config.version ?? 2),
      numberField(2, rank),
      numberField(3, 1),
      numberField(7, 1),
      bytesField(8, any("protocol.EccProtocolProposal", proposal)),
      bytesField(9, any("algos.PsiDataIoProposal", io)),
    ),
  );
  const response = fieldsOf(await receive());
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

async function exchange({ suite, bits }) {
  const secret = suite.secret();
  const learns = [-1, rank].includes(config.resultToRank);
  const peerLearns = [-1, peerRank].includes(config.resultToRank);
  const tagSize = bits === -1 ? suite.size : bits / 8;
  const points = config.ids.map((id) => suite.multiply(secret, suite.point(id)));
  const batches = Math.max(1, Math.ceil(points.length / config.batchSize));
  for (let index = 0; index < batches; index += 1) {
    const items = points.slice(index * config.batchSize, (index + 1) * config.batchSize);
    await send(encodeBatch("enc", index, index + 1 === batches, items));
  }
  const peerTags = [];
  const ownTags = [];
  let isPeerComplete = false;
  let isOwnComplete = !learns;
  while (!isPeerComplete || !isOwnComplete) {
    const batch = fieldsOf(await receive());
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
    if (peerLearns) await send(encodeBatch("dual.enc", numberOf(batch, 3), isLast, tags));
  }
  const known = new Set(peerTags.map((tag) => tag.toString("hex")));
  const common = config.ids.filter((_, n) => learns && known.has(ownTags[n].toString("hex")));
  return { common: learns ? common : null, peerCount: peerTags.length, bits };
}

const agreement = rank === 0 ? await respond() : await request();
const outcome = agreement.refused ? agreement : await exchange(agreement);
console.log(JSON.stringify(outcome));
