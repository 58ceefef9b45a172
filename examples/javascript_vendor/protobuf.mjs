// The few parts of protobuf (proto3) that the open protocol needs: varints and length-delimited
// fields. A decoded message maps field numbers to lists of numbers and buffers.

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

export const numberField = (number, value) => Buffer.concat([varint(number * 8), varint(value)]);

export function bytesField(number, value) {
  const bytes = Buffer.from(value);
  return Buffer.concat([varint(number * 8 + 2), varint(bytes.length), bytes]);
}

export const message = (...fields) => Buffer.concat(fields);

export const any = (name, value) =>
  message(
    bytesField(1, `type.googleapis.com/org.interconnection.v2.${name}`),
    bytesField(2, value),
  );

function readVarint(bytes, start) {
  let value = 0n;
  let place = start;
  for (;;) {
    const byte = bytes[place];
    if (byte === undefined) throw new Error("a message is cut off");
    value |= BigInt(byte & 127) << BigInt(7 * (place - start));
    place += 1;
    if (byte < 128) return [Number(BigInt.asIntN(64, value)), place];
  }
}

export function fieldsOf(bytes) {
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

export const numberOf = (fields, number) => fields[number]?.at(-1) ?? 0;
export const bytesOf = (fields, number) => fields[number]?.at(-1) ?? Buffer.alloc(0);

// A repeated number may be packed into one buffer.
export function numbersOf(fields, number) {
  const numbers = [];
  for (const value of fields[number] ?? []) {
    if (typeof value === "number") numbers.push(value);
    for (let place = 0; place < (value.length ?? 0);) {
      let item;
      [item, place] = readVarint(value, place);
      numbers.push(item);
    }
  }
  return numbers;
}

// Returns the fields of the message inside a google.protobuf.Any.
export const unpacked = (fields, number) => fieldsOf(bytesOf(fieldsOf(bytesOf(fields, number)), 2));
