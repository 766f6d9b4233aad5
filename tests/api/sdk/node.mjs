// The official Node SDK against a running server: node.mjs URL. Prints `ok` at the end, or fails.

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

// The SDK lies where the test has put it, and not beside this file.
const { default: OpenAI } = await import(pathToFileURL(process.argv[3]).href);

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Who wrote Faust?" }];
const input = "Who wrote Faust and Tell?";
const answer = "Goethe wrote Faust. Schiller wrote Tell.";

// Chat: whole, streamed, and through the helper.
const whole = await client.chat.completions.create({ model: "routerag", messages, rag: { trace: true } });
assert.equal(whole.choices[0].message.content, "Goethe");
const steps = whole.choices[0].message.rag.trace.map((step) => step.type);
assert.deepEqual(steps, ["search_started", "search_finished", "observation"]);
let content = "";
let usage = null;
const chat = { model: "routerag", messages, stream: true, stream_options: { include_usage: true } };
for await (const chunk of await client.chat.completions.create(chat)) {
  content += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(content, "Goethe");
assert.equal(usage.total_tokens, whole.usage.total_tokens);
const helper = client.chat.completions.stream({ model: "routerag", messages });
assert.equal((await helper.finalChatCompletion()).choices[0].message.content, "Goethe");
const several = await client.chat.completions.create({ model: "plain", messages, n: 3, logprobs: true, top_logprobs: 2 });
assert.deepEqual(several.choices.map((choice) => choice.index), [0, 1, 2]);

// Responses: whole, streamed, and through the helper.
const asked = { model: "routerag", input, include: ["file_search_call.results"] };
const response = await client.responses.create(asked);
assert.equal(response.output_text, answer);
const items = ["reasoning", "file_search_call", "reasoning", "file_search_call", "reasoning", "message"];
assert.deepEqual(response.output.map((item) => item.type), items);
assert.equal(response.output[3].results[0].attributes.turn, 2);
const notes = response.output[5].content[0].annotations;
// The index counts characters; JavaScript's strings count otherwise beyond the basic plane.
const until = (index) => [...answer].slice(0, index).join("");
assert.deepEqual(notes.map((note) => until(note.index)), ["Goethe wrote Faust.", answer]);
const kinds = [];
let text = "";
for await (const event of await client.responses.create({ ...asked, stream: true, rag: { trace: true } })) {
  assert.equal(event.sequence_number, kinds.length);
  kinds.push(event.type);
  text += event.type === "response.output_text.delta" ? event.delta : "";
}
assert.equal(text, answer);
assert.deepEqual([kinds[0], kinds.at(-1)], ["response.created", "response.completed"]);
assert.equal(kinds.filter((kind) => kind === "response.rag.step").length, 6);
// The helper refuses events that it does not know, so nothing beyond OpenAI's own is asked for.
const stream = client.responses.stream(asked);
const final = await stream.finalResponse();
assert.equal(final.output_text, answer);
assert.deepEqual(final.output[5].content[0].annotations, notes);

// In the background, followed by the helper from its beginning.
const queued = await client.responses.create({ ...asked, background: true });
const followed = client.responses.stream({ response_id: queued.id });
assert.equal((await followed.finalResponse()).output_text, answer);
assert.equal((await client.responses.retrieve(queued.id)).status, "completed");
assert.equal((await client.responses.cancel(queued.id)).status, "completed");
await client.responses.delete(queued.id);
await assert.rejects(client.responses.retrieve(queued.id), (error) => error.code === "response_not_found");

// Models with a slash, and embeddings, which this SDK asks for in base64 too.
assert.equal((await client.models.retrieve("a/b")).id, "a/b");
const embedding = await client.embeddings.create({ model: "letters", input: ["abba", "c"] });
assert.deepEqual([...embedding.data[0].embedding], [2, 2, 0]);

// Errors keep their names.
const refused = (error) => error.status === 400 && error.param === "modalities" && error.requestID.startsWith("req_");
await assert.rejects(client.chat.completions.create({ model: "plain", messages, modalities: ["audio"] }), refused);

console.log("ok");
