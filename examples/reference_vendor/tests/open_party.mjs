// Runs a party of the JavaScript vendor for the tests: its settings come as JSON from stdin, and its
// outcome goes to stdout.

import { readFileSync } from "node:fs";
import { intersect } from "../../javascript_vendor/open_psi.mjs";

const config = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(await intersect(config)));
