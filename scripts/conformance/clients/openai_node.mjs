// OpenAI's SDK for JavaScript.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { BASE, CITY, EMBEDDER, FOLLOW_UP, KEY, PLAIN, QUESTION, run, SEARCHING, WEATHER } from "./suite.mjs";

const client = new OpenAI({ baseURL: BASE, apiKey: KEY, maxRetries: 0 });
const messages = [{ role: "user", content: QUESTION }];
const City = z.object({ name: z.string().max(40), country: z.enum(["Italy", "France"]) });
const parameters = {
  type: "object",
  properties: { city: { enum: ["Rome", "Paris"] } },
  required: ["city"],
  additionalProperties: false,
};
const description = "Tells the weather of a city.";

await run({
  chat: async () => {
    const whole = await client.chat.completions.create({ model: SEARCHING, messages });
    assert.ok(whole.choices[0].message.content && whole.usage.total_tokens > 0);
  },
  stream: async () => {
    const stream = client.chat.completions.stream({
      model: SEARCHING,
      messages,
      stream_options: { include_usage: true },
    });
    let text = "";
    stream.on("content", (delta) => (text += delta));
    const final = await stream.finalChatCompletion();
    assert.ok(text && text === final.choices[0].message.content && final.usage.completion_tokens > 0);
  },
  tools: async () => {
    const called = [];
    const look = ({ city }) => called.push(city) && `${city}: sunny, 21 degrees`;
    for (const model of [PLAIN, SEARCHING]) {
      called.length = 0;
      const runner = client.chat.completions.runTools(
        {
          model,
          messages: [{ role: "user", content: WEATHER }],
          tool_choice: { type: "function", function: { name: "get_weather" } },
          tools: [
            {
              type: "function",
              function: { name: "get_weather", description, parameters, parse: JSON.parse, function: look },
            },
          ],
        },
        { maxChatCompletions: 3 },
      );
      await runner.done();
      assert.ok(called.length > 0);
    }
  },
  "structured output": async () => {
    for (const model of [PLAIN, SEARCHING]) {
      const made = await client.chat.completions.parse({
        model,
        messages: [{ role: "user", content: CITY }],
        response_format: zodResponseFormat(City, "city"),
      });
      City.parse(made.choices[0].message.parsed);
    }
  },
  "file search": async () => {
    const response = await client.responses.create({
      model: SEARCHING,
      input: QUESTION,
      tools: [{ type: "file_search", vector_store_ids: ["default"] }],
      include: ["file_search_call.results"],
    });
    assert.ok(response.output.find((item) => item.type === "file_search_call").results.length > 0);
  },
  responses: async () => {
    const stream = client.responses.stream({ model: SEARCHING, input: QUESTION });
    const final = await stream.finalResponse();
    assert.ok(final.status === "completed" && final.output_text);
    const made = await client.responses.parse({ model: PLAIN, input: CITY, text: { format: zodTextFormat(City, "city") } });
    City.parse(made.output_parsed);
    const called = await client.responses.create({
      model: PLAIN,
      input: WEATHER,
      tools: [{ type: "function", name: "get_weather", description, parameters, strict: true }],
      tool_choice: "required",
    });
    assert.equal(called.output[0].name, "get_weather");
  },
  "multi-turn": async () => {
    const first = await client.responses.create({ model: SEARCHING, input: QUESTION });
    const next = { model: SEARCHING, input: FOLLOW_UP, previous_response_id: first.id };
    assert.ok((await client.responses.create(next)).output_text);
    const { message } = (await client.chat.completions.create({ model: SEARCHING, messages })).choices[0];
    const follow = [...messages, message, { role: "user", content: FOLLOW_UP }];
    assert.ok((await client.chat.completions.create({ model: SEARCHING, messages: follow })).choices[0].message.content);
  },
  embeddings: async () => {
    const made = await client.embeddings.create({ model: EMBEDDER, input: ["Rome", "Paris"] });
    assert.deepEqual(made.data.map((one) => one.embedding.length), [384, 384]);
  },
});
