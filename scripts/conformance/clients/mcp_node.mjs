// The SDK of the Model Context Protocol for JavaScript.

import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { QUESTION, run, SEARCHING, URL_OF_SERVER } from "./suite.mjs";

const client = new Client({ name: "conformance", version: "1.0.0" });
await client.connect(new StreamableHTTPClientTransport(new URL(`${URL_OF_SERVER}/mcp`)));

await run({
  chat: async () => {
    await client.listTools();
    const asked = await client.callTool({ name: "ask", arguments: { question: QUESTION, model: SEARCHING } });
    assert.ok(asked.content[0].text && asked.structuredContent.answer);
  },
  "file search": async () => {
    const { tools } = await client.listTools();
    assert.deepEqual(tools.map((tool) => tool.name).sort(), ["ask", "search"]);
    const found = await client.callTool({ name: "search", arguments: { query: "Mona Lisa", k: 3 } });
    assert.equal(found.structuredContent.hits.length, 3);
  },
});
await client.close();
