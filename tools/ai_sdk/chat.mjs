// Streams a text, and then one that needs a tool: node chat.mjs http://127.0.0.1:8000/v1 MODEL
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL, name] = process.argv.slice(2);
const model = createOpenAICompatible({ name: "milepost", baseURL, includeUsage: true })(name);

const plain = streamText({ model, prompt: "What is the capital of France?" });
const pieces = [];
for await (const piece of plain.textStream) pieces.push(piece);

const cities = [];
const weather = tool({
  description: "The weather of a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => {
    cities.push(city);
    return "rain";
  },
});
const called = streamText({
  model,
  prompt: "Weather?",
  tools: { weather },
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "auto" }),
  stopWhen: stepCountIs(2),
});
const answer = await called.text;
const outputTokens = (await plain.usage).outputTokens;
console.log(JSON.stringify({ text: pieces.join(""), pieces: pieces.length, outputTokens, cities, answer }));
