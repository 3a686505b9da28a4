// What a client is asked to do, whichever SDK it is made with, and what it made of each answer.

// walk makes the calls of a session that has begun, as one assistant would, and says how each came out. given.name is
// what the network that it makes is called.
export async function walk(client, given) {
  const tools = [];
  let cursor;
  do {
    const page = await client.listTools({ cursor });
    tools.push(...page.tools);
    cursor = page.nextCursor;
  } while (cursor);

  const call = (name, input) => outcome(() => client.callTool({ name, arguments: input }));
  const read = (uri) => outcome(() => client.readResource({ uri }));
  const prompt = (name, input) => outcome(() => client.getPrompt({ name, arguments: input }));

  const made = await call("system_sdwan_create_network", { name: given.name });
  const id = made.result?.structuredContent?.network?.id;
  return {
    server: client.getServerVersion(),
    instructions: client.getInstructions() ?? "",
    tools: tools.map((t) => ({ name: t.name, output: t.outputSchema !== undefined })),
    made,
    again: await call("system_sdwan_create_network", { name: given.name }),
    read: await call("system_sdwan_get_network", { network_id: id }),
    misspelt: await call("system_create_node", { hostname: "a" }),
    array: await call("system_sdwan_list_networks", []),
    absent: await call("system_sdwan_delete_network", { network_id: "00000000-0000-7000-8000-000000000000" }),
    parked: await call("system_sdwan_delete_network", { network_id: id }),
    unknown: await call("system_sdwan_lst_networks", {}),
    resources: (await client.listResources()).resources.map((r) => r.uri),
    templates: (await client.listResourceTemplates()).resourceTemplates.map((t) => t.uriTemplate),
    document: await read(`powernode://networks/${id}`),
    nowhere: await read("powernode://nowhere"),
    prompts: (await client.listPrompts()).prompts.map((p) => p.name),
    prompt: await prompt("set-up-clusters", { clusters: "blue,green" }),
    noPrompt: await prompt("set-up-nothing", {}),
    completed: await client.complete({ ref: { type: "ref/resource", uri: "powernode://networks/{id}" }, argument: { name: "id", value: "" } }),
    network: id,
  };
}

// outcome says how a request came out: answered, or thrown, which is a protocol error or an answer that the client holds
// to break the tool's output schema.
export async function outcome(request) {
  try {
    return { result: await request() };
  } catch (e) {
    return { thrown: { code: Number.isInteger(e.code) ? e.code : null, message: String(e.message) } };
  }
}

// takenBack begins a call that waits, takes it back once it has begun to tell of itself, and says what came of it.
// begin is given the options of the call.
export async function takenBack(begin) {
  const progress = [];
  const taking = new AbortController();
  const came = await outcome(() =>
    begin({
      signal: taking.signal,
      onprogress: (p) => {
        progress.push(p.message ?? "");
        taking.abort("no longer wanted");
      },
    }),
  );
  return { progress, thrown: came.thrown ?? null };
}

export const waiting = { name: "system_watch_signals", arguments: { wait_seconds: 30 } };

// print is how a client's program ends.
export function print(seen) {
  process.stdout.write(JSON.stringify(seen) + "\n");
}
