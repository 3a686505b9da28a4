// The TypeScript SDK as a client of powernode mcp: node client.mjs MODULES POWERNODE ARGUMENT...
// MODULES is the folder that install.sh filled. It prints one JSON object: what the client made of each answer.
import { createRequire } from "node:module";
import { resolve } from "node:path";

const [modules, command, ...args] = process.argv.slice(2);
const require = createRequire(resolve(modules, "package.json"));
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = require("@modelcontextprotocol/sdk/client/stdio.js");

const client = new Client({ name: "powernode-spec-ts", version: "1" });
await client.connect(new StdioClientTransport({ command, args, stderr: "inherit" }));

const tools = [];
let cursor;
do {
  const page = await client.listTools({ cursor });
  tools.push(...page.tools);
  cursor = page.nextCursor;
} while (cursor);

// call says how a call came out: as a tool result, or thrown, which is a protocol error or an answer that the client
// holds to break the tool's output schema.
async function call(name, input) {
  try {
    return { result: await client.callTool({ name, arguments: input }) };
  } catch (e) {
    return { thrown: { code: e.code ?? null, message: String(e.message) } };
  }
}

const made = await call("system_sdwan_create_network", { name: "from-typescript" });
const id = made.result?.structuredContent?.network?.id;
const out = {
  server: client.getServerVersion(),
  instructions: client.getInstructions() ?? "",
  tools: tools.map((t) => ({ name: t.name, output: t.outputSchema !== undefined })),
  made,
  read: await call("system_sdwan_list_networks", {}),
  misspelt: await call("system_create_node", { hostname: "a" }),
  array: await call("system_sdwan_list_networks", []),
  absent: await call("system_sdwan_delete_network", { network_id: "00000000-0000-7000-8000-000000000000" }),
  parked: await call("system_sdwan_delete_network", { network_id: id }),
  unknown: await call("system_sdwan_lst_networks", {}),
};
await client.close();
process.stdout.write(JSON.stringify(out) + "\n");
