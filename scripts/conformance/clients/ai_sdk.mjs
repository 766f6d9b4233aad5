// Vercel's AI SDK: OpenAI's provider over responses (its default) and over chat, and the provider for other servers.

import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { BASE, CITY, EMBEDDER, FOLLOW_UP, KEY, PLAIN, QUESTION, run, SEARCHING, WEATHER } from "./suite.mjs";

const openai = createOpenAI({ baseURL: BASE, apiKey: KEY });
const compatible = createOpenAICompatible({
  name: "waymark",
  baseURL: BASE,
  apiKey: KEY,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const kinds = [(name) => openai.responses(name), (name) => openai.chat(name), (name) => compatible(name)];
const City = z.object({ name: z.string().max(40), country: z.enum(["Italy", "France"]) });
const common = { maxRetries: 0 };
const weather = tool({
  description: "Tells the weather of a city.",
  inputSchema: z.object({ city: z.enum(["Rome", "Paris"]) }),
  execute: async ({ city }) => `${city}: sunny, 21 degrees`,
});

await run({
  chat: async () => {
    for (const kind of kinds.slice(1)) {
      const { text, usage } = await generateText({ ...common, model: kind(SEARCHING), prompt: QUESTION });
      assert.ok(text && usage.totalTokens > 0);
    }
  },
  stream: async () => {
    for (const kind of kinds) {
      const result = streamText({ ...common, model: kind(SEARCHING), prompt: QUESTION });
      let text = "";
      for await (const piece of result.textStream) text += piece;
      assert.ok(text && (await result.finishReason) === "stop");
    }
  },
  tools: async () => {
    for (const kind of kinds) {
      for (const name of [PLAIN, SEARCHING]) {
        const result = await generateText({
          ...common,
          model: kind(name),
          prompt: WEATHER,
          tools: { weather },
          maxOutputTokens: 600,
          stopWhen: stepCountIs(3),
          prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "auto" }),
        });
        assert.ok(result.steps[0].toolCalls.some((call) => call.toolName === "weather"));
        assert.ok(result.steps.length > 1);
      }
    }
  },
  "structured output": async () => {
    for (const kind of kinds) {
      for (const name of [PLAIN, SEARCHING]) {
        const model = kind(name);
        const { output } = await generateText({ ...common, model, prompt: CITY, output: Output.object({ schema: City }) });
        City.parse(output);
      }
      const { output } = await generateText({
        ...common,
        model: kind(PLAIN),
        prompt: CITY,
        tools: { weather },
        stopWhen: stepCountIs(4),
        prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber < 2 ? "auto" : "none" }),
        output: Output.object({ schema: City }),
      });
      City.parse(output);
    }
  },
  "file search": async () => {
    const result = await generateText({
      ...common,
      model: openai.responses(SEARCHING),
      prompt: QUESTION,
      tools: { file_search: openai.tools.fileSearch({ vectorStoreIds: ["default"], maxNumResults: 3 }) },
    });
    assert.ok(result.toolResults.some((made) => made.toolName === "file_search") && result.text);
    return `${result.sources.length} citations`;
  },
  responses: async () => {
    const { text, response } = await generateText({ ...common, model: openai.responses(SEARCHING), prompt: QUESTION });
    assert.ok(text && response.id);
  },
  "multi-turn": async () => {
    for (const kind of kinds) {
      const model = kind(SEARCHING);
      const messages = [{ role: "user", content: QUESTION }];
      const first = await generateText({ ...common, model, messages });
      messages.push(...first.response.messages, { role: "user", content: FOLLOW_UP });
      assert.ok((await generateText({ ...common, model, messages })).text);
    }
    // Nothing stored: the earlier items come back whole, the reasoning sealed.
    const providerOptions = { openai: { store: false, include: ["reasoning.encrypted_content"] } };
    const model = openai.responses(SEARCHING);
    const messages = [{ role: "user", content: QUESTION }];
    const first = await generateText({ ...common, model, messages, providerOptions });
    messages.push(...first.response.messages, { role: "user", content: FOLLOW_UP });
    assert.ok((await generateText({ ...common, model, messages, providerOptions })).text);
  },
  embeddings: async () => {
    for (const provider of [openai, compatible]) {
      const { embeddings } = await embedMany({ model: provider.embeddingModel(EMBEDDER), values: ["Rome", "Paris"] });
      assert.deepEqual(embeddings.map((one) => one.length), [384, 384]);
    }
  },
});
