// The TypeScript SDK, version 2, as a client: node v2.mjs GIVEN, with the JSON object of v1.mjs and
//   era: how the revision is agreed on: legacy, auto, or the revision that it has to be.
// It prints one JSON object: what the client made of each answer.
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { print, takenBack, waiting, walk } from "./walk.mjs";

const given = JSON.parse(process.argv[2]);
const require = createRequire(resolve(given.modules, "package.json"));
const { Client, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");
const { StdioClientTransport } = require("@modelcontextprotocol/client/stdio");

const shown = [];
const faults = [];
const mode = given.era === "legacy" || given.era === "auto" ? given.era : { pin: given.era };
const client = new Client({ name: "powernode-spec-v2", version: "1" }, { capabilities: { elicitation: {} }, versionNegotiation: { mode } });
client.onerror = (e) => faults.push(String(e.message));
client.setRequestHandler("elicitation/create", (request) => {
  shown.push(request.params.message);
  return { action: "accept", content: {} };
});
const transport = given.url
  ? new StreamableHTTPClientTransport(new URL(given.url), { requestInit: { headers: { Authorization: `Bearer ${given.token}` } } })
  : new StdioClientTransport({ command: given.command, args: given.args, stderr: "inherit" });
await client.connect(transport);
const child = transport._process;

const seen = await walk(client, given);
seen.cancelled = await takenBack((options) => client.callTool(waiting, options));
seen.revision = client.getNegotiatedProtocolVersion();
await client.close();
print({ ...seen, shown, faults, exit: child ? child.exitCode : 0 });
