// Commutative encryption of ids on Curve25519 and SM2, by Node's crypto module (OpenSSL).

import crypto from "node:crypto";

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

export const SUITES = { curve25519: x25519, sm2 };
