// Carries the open protocol's values between two parties over the platform's push and pop.

import crypto from "node:crypto";
import { bytesField, bytesOf, fieldsOf, message, numberField, numberOf } from "./protobuf.mjs";

const PAUSE = 500; // milliseconds before a request is repeated
const TRIES = 600; // of one request, while a node is away
const SUCCESS = "E0000000000";
const AWAY = ["E0000000607", "E0000000700"]; // unreachable, too many unread messages

const pause = () => new Promise((resolve) => setTimeout(resolve, PAUSE));

// Posts JSON and returns the response; repeats the request while the gateway restarts.
export async function post(url, body, headers = {}) {
  for (let left = TRIES; ; left -= 1) {
    try {
      const response = await fetch(url, {
        method: "POST",
        headers: { ...headers, "Content-Type": "application/json" },
        body: JSON.stringify(body),
      });
      if (response.status < 500) return await response.json();
    } catch (error) {
      if (left === 1) throw error;
    }
    if (left === 1) throw new Error(`${url} answers with errors`);
    await pause();
  }
}

export class Channel {
  // config: address, headers, me, peer; chunkSize if values are to be sent in chunks
  constructor(config) {
    this.config = config;
    this.rank = config.me < config.peer ? 0 : 1;
    this.peerRank = 1 - this.rank;
    this.sent = 0;
  }

  async send(value) {
    this.sent += 1;
    const push = [numberField(1, this.rank), bytesField(2, `message ${this.sent}`)];
    const { chunkSize } = this.config;
    if (!chunkSize) {
      await this.push(message(...push, bytesField(3, value)));
      return;
    }
    for (let offset = 0; offset < value.length; offset += chunkSize) {
      const chunk = message(numberField(1, value.length), numberField(2, offset));
      const part = value.subarray(offset, offset + chunkSize);
      await this.push(
        message(...push, bytesField(3, part), numberField(4, 1), bytesField(5, chunk)),
      );
    }
  }

  async receive() {
    const topic = `${this.config.peer}-${this.config.me}`;
    const id = { "x-ptp-pop-id": crypto.randomUUID() };
    for (;;) {
      const { content } = await this.call("pop", { topic, timeout: 10000 }, id);
      if (!content) continue;
      const push = fieldsOf(Buffer.from(content, "base64"));
      if (numberOf(push, 1) !== this.peerRank) throw new Error("sender_rank");
      if (numberOf(push, 4) !== 0) throw new Error("values in chunks are not supported");
      return bytesOf(push, 3);
    }
  }

  async push(bytes) {
    await this.call("push", {
      topic: `${this.config.me}-${this.config.peer}`,
      payload: bytes.toString("base64"),
      metadata: { sequence: crypto.randomUUID() },
    });
  }

  async call(verb, body, headers = {}) {
    const url = `http://${this.config.address}/v1/interconn/chan/${verb}`;
    for (let left = TRIES; ; left -= 1) {
      const answer = await post(url, body, { ...this.config.headers, ...headers });
      if (answer.code === SUCCESS) return answer;
      if (!AWAY.includes(answer.code) || left === 1) throw new Error(`${verb}: ${answer.code}`);
      await pause();
    }
  }
}
