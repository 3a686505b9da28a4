// The TypeScript SDK, version 1, as a client: node v1.mjs GIVEN, with a JSON object of
//   modules: the folder that install.sh filled; name: see walk.mjs;
//   command and args: of a server on stdio, or url and token: of one over HTTP.
// It prints one JSON object: what the client made of each answer.
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { print, takenBack, waiting, walk } from "./walk.mjs";

const given = JSON.parse(process.argv[2]);
const require = createRequire(resolve(given.modules, "package.json"));
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = require("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
const { CallToolResultSchema, ElicitRequestSchema } = require("@modelcontextprotocol/sdk/types.js");

const shown = [];
const faults = [];
const client = new Client({ name: "powernode-spec-v1", version: "1" }, { capabilities: { elicitation: {} } });
client.onerror = (e) => faults.push(String(e.message));
client.setRequestHandler(ElicitRequestSchema, (request) => {
  shown.push(request.params.message);
  return { action: "accept", content: {} };
});
const transport = given.url
  ? new StreamableHTTPClientTransport(new URL(given.url), { requestInit: { headers: { Authorization: `Bearer ${given.token}` } } })
  : new StdioClientTransport({ command: given.command, args: given.args, stderr: "inherit" });
await client.connect(transport);
const child = transport._process;

const seen = await walk(client, given);
seen.cancelled = await takenBack((options) => client.callTool(waiting, CallToolResultSchema, options));
seen.revision = transport.protocolVersion ?? null;
await client.close();
print({ ...seen, shown, faults, exit: child ? child.exitCode : 0 });
