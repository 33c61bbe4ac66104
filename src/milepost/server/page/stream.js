// A streamed answer: server-sent events, and what they add up to. No DOM here.

/** Takes text as it comes; returns the data of the events that are whole now. */
export class EventReader {
  #rest = "";

  take(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    return lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim());
  }
}

const SHORTEST_MS = 50;

/** Adds the chunks of a chat completion to a message. Times are in milliseconds, on any clock. */
export class AnswerReader {
  constructor(node, startedMs) {
    this.node = node;
    this.startedMs = startedMs;
    this.firstMs = null;
    this.firstTokens = null;
    this.requestId = null;
    node.facts = { promptTokens: 0, cachedTokens: 0, tokens: 0, totalTokens: 0, rate: 0, firstSeconds: 0, finish: null, cache: null };
  }

  take(chunk, nowMs) {
    if (chunk.error) throw new Error(chunk.error.message);
    this.requestId = chunk.id ?? this.requestId;
    const [choice] = chunk.choices ?? [];
    if (choice) this.#delta(choice);
    if (chunk.usage) this.#usage(chunk.usage, nowMs);
    if (chunk.cache) this.node.facts.cache = chunk.cache;
  }

  #delta({ delta = {}, finish_reason: finish }) {
    this.node.content += delta.content ?? "";
    this.node.reasoning += delta.reasoning ?? "";
    if (finish) this.node.facts.finish = finish;
  }

  /** The first token belongs to the prompt's time, so the rate is that of the others. Chunks that come together say
   * nothing of a rate. */
  #usage(usage, nowMs) {
    const { facts } = this.node;
    if (usage.completion_tokens > facts.tokens) {
      this.firstMs ??= nowMs;
      facts.firstSeconds = (this.firstMs - this.startedMs) / 1000;
      const between = nowMs - this.firstMs;
      this.firstTokens ??= usage.completion_tokens;
      facts.rate = between >= SHORTEST_MS ? (1000 * (usage.completion_tokens - this.firstTokens)) / between : 0;
    }
    facts.tokens = usage.completion_tokens;
    facts.promptTokens = usage.prompt_tokens;
    facts.totalTokens = usage.total_tokens;
    facts.cachedTokens = usage.prompt_tokens_details?.cached_tokens ?? 0;
  }
}
