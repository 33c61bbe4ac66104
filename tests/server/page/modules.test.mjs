// The page's modules that need no browser. Run by test_page_modules.py, which copies them beside this file.

import assert from "node:assert/strict";
import test from "node:test";

import { Conversation } from "./conversation.js";
import { bytes, promptParts, rate, seconds, whyNotMore } from "./format.js";
import { parse, safe, spans } from "./markdown.js";
import { AnswerReader, EventReader } from "./stream.js";
import { layout, without } from "./tree.js";

const texts = (conversation) => conversation.path().map((node) => node.content);

function talk() {
  const conversation = new Conversation();
  const question = conversation.add(null, "user", "one");
  const answer = conversation.add(question.id, "assistant", "1");
  const next = conversation.add(answer.id, "user", "two");
  conversation.add(next.id, "assistant", "2");
  return { conversation, question, answer, next };
}

test("an edited message begins a branch, and the old one comes back whole", () => {
  const { conversation, next } = talk();
  const edited = conversation.add(next.parent, "user", "two, but");
  conversation.add(edited.id, "assistant", "2b");
  assert.deepEqual(texts(conversation), ["one", "1", "two, but", "2b"]);
  assert.deepEqual(conversation.version(edited.id), { index: 1, of: 2 });
  conversation.turn(edited.id, -1);
  assert.deepEqual(texts(conversation), ["one", "1", "two", "2"]);
  assert.equal(conversation.turn(next.id, -1), null);
});

test("an answer is asked for with what stands before it, the system message first", () => {
  const { conversation, next } = talk();
  const again = conversation.add(next.id, "assistant", "");
  assert.deepEqual(conversation.messagesBefore(again.id, "Be brief."), [
    { role: "system", content: "Be brief." },
    { role: "user", content: "one" },
    { role: "assistant", content: "1" },
    { role: "user", content: "two" },
  ]);
  assert.equal(conversation.messagesBefore(again.id, "  ")[0].role, "user");
});

test("a conversation is the same after it was kept", () => {
  const { conversation, next, answer } = talk();
  conversation.add(next.parent, "user", "other");
  answer.facts = { totalTokens: 40 };
  const again = new Conversation(JSON.parse(JSON.stringify(conversation.save())));
  assert.deepEqual(texts(again), texts(conversation));
  assert.equal(again.contextUsed(), 40);
  assert.notEqual(again.add(null, "user", "x").id, next.id);
});

test("events are whole however they are cut, and comments are none", () => {
  const stream = 'data: {"a":1}\n\n: ping\n\ndata: {"b":2}\n\ndata: [DONE]\n\n';
  for (const size of [1, 2, 7, stream.length]) {
    const reader = new EventReader();
    const found = [];
    for (let at = 0; at < stream.length; at += size) found.push(...reader.take(stream.slice(at, at + size)));
    assert.deepEqual(found, ['{"a":1}', '{"b":2}', "[DONE]"]);
  }
});

function chunk(content, tokens) {
  const usage = { prompt_tokens: 20, completion_tokens: tokens, total_tokens: 20 + tokens, prompt_tokens_details: { cached_tokens: 16 } };
  return { id: "chatcmpl-1", choices: [{ delta: { content }, finish_reason: null }], usage };
}

test("chunks add up to an answer; its rate leaves out the first token", () => {
  const node = { content: "", reasoning: "" };
  const reader = new AnswerReader(node, 1000);
  reader.take(chunk("a", 1), 1500);
  reader.take(chunk("b", 2), 1700);
  reader.take(chunk("c", 5), 2500);
  reader.take({ id: "chatcmpl-1", choices: [], cache: { reason: null } }, 2500);
  assert.equal(node.content, "abc");
  assert.equal(node.facts.rate, 4);
  assert.equal(node.facts.firstSeconds, 0.5);
  assert.equal(node.facts.cachedTokens, 16);
  assert.equal(node.facts.totalTokens, 25);
  assert.deepEqual(node.facts.cache, { reason: null });
  assert.throws(() => reader.take({ error: { message: "it broke" } }, 2600), /it broke/);
});

test("chunks that come at once make no rate", () => {
  const node = { content: "", reasoning: "" };
  const reader = new AnswerReader(node, 0);
  reader.take(chunk("a", 1), 10);
  reader.take(chunk("b", 9), 11);
  assert.equal(node.facts.rate, 0);
});

test("Markdown becomes blocks", () => {
  const text = "# T\n\nHello **b** and `c`\n\n- a\n  - b\n- c\n\n3. x\n\n> q\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n---\n```py\nx = 1\n";
  const blocks = parse(text);
  assert.deepEqual(blocks.map(({ type }) => type), ["h", "p", "list", "list", "quote", "table", "hr", "code"]);
  assert.equal(blocks[2].items.length, 2);
  assert.equal(blocks[2].items[0][1].type, "list");
  assert.equal(blocks[3].start, 3);
  assert.deepEqual(blocks[5].rows[0][1], [{ type: "text", text: "2" }]);
  assert.deepEqual(blocks[7], { type: "code", language: "py", text: "x = 1\n" });
});

test("HTML stays text, and no address that runs anything becomes a link", () => {
  assert.deepEqual(spans("<img src=x onerror=alert(1)>"), [{ type: "text", text: "<img src=x onerror=alert(1)>" }]);
  for (const bad of ["javascript:alert(1)", "data:text/html,x", " javascript:x", "//host", "vbscript:x"]) assert.equal(safe(bad), null);
  assert.equal(spans("[x](javascript:alert)")[0].href, null);
  assert.equal(spans("![x](https://a.b/c.png)")[0].type, "link");
  assert.equal(spans("see https://a.b/c.")[1].href, "https://a.b/c");
});

test("spans", () => {
  const kinds = (text) => spans(text).map(({ type }) => type);
  assert.deepEqual(kinds("snake_case_name 2*3*4 a * b"), ["text"]);
  assert.deepEqual(kinds("**bold *both***"), ["strong"]);
  assert.deepEqual(kinds("\\*no\\* ~~gone~~"), ["text", "del"]);
  assert.deepEqual(spans("``a ` b``"), [{ type: "code", text: "a ` b" }]);
});

test("no text takes long or goes deep without end", () => {
  for (const text of ["*a _b ".repeat(2000), "`".repeat(3000), "[".repeat(3000), "> ".repeat(3000), "- ".repeat(3000)]) {
    assert.ok(parse(text).length > 0);
  }
});

const POLICY = { retention_interval: "dense", grid_tokens: 64 };

function part(node, parent, start, end, positions = [], more = {}) {
  const checkpoints = positions.map((position) => ({ position, kind: "grid", hits: 0, users: 0 }));
  return { node, parent, scope: 0, start, end, num_bytes: end - start, num_checkpoints: positions.length, checkpoints, hits: 0, ...more };
}

test("what goes on from a part stands behind it, the heaviest in its row, the others below", () => {
  const nodes = [part(0, null, 0, 128), part(1, 0, 128, 192), part(2, 0, 128, 640), part(3, null, 0, 64, [], { scope: 1 })];
  const { bars, links, scopes, height } = layout({ nodes }, POLICY, 600);
  const at = new Map(bars.map((bar) => [bar.node.node, bar]));
  assert.equal(at.get(0).y, at.get(2).y);
  assert.ok(at.get(1).y > at.get(2).y);
  assert.ok(at.get(2).x > at.get(0).x + at.get(0).width);
  assert.equal(at.get(0).node.leaves, 2);
  assert.equal(links.length, 1);
  assert.deepEqual(scopes.map(({ scope }) => scope), [0, 1]);
  assert.ok(bars.every((bar) => bar.x >= 0 && bar.x + bar.width <= 600 && bar.y < height));
});

test("places without a state are those of the policy that have none", () => {
  assert.deepEqual(without(part(0, null, 0, 256, [64, 256]), POLICY), [128, 192]);
  assert.deepEqual(without(part(0, null, 0, 256, [128]), { ...POLICY, retention_interval: 128 }), [256]);
  assert.deepEqual(without(part(0, null, 0, 256, []), { ...POLICY, retention_interval: 0 }), []);
  assert.deepEqual(without(part(0, null, 0, 256, []), { retention_interval: null, grid_tokens: null }), []);
});

test("of a part with more states than are listed, nothing is said of those before", () => {
  const node = { ...part(0, null, 0, 640, [448, 640]), num_checkpoints: 9 };
  assert.deepEqual(without(node, POLICY), [512, 576]);
});

test("an empty tree has a picture too", () => {
  assert.deepEqual(layout({ nodes: [] }, POLICY, 300).bars, []);
});

test("numbers for people", () => {
  assert.equal(bytes(1536), "1.5 KiB");
  assert.equal(bytes(12), "12 B");
  assert.equal(seconds(0.0312), "31 ms");
  assert.equal(rate(1234.5), "1,235");
  assert.deepEqual(promptParts(100, 64, { resumed_tokens: 64, recomputed_tokens: 16 }), { resumed: 64, again: 16, fresh: 20 });
  assert.match(whyNotMore({ reason: "state thinned", position: 64 }), /token 64/);
  assert.equal(whyNotMore({ reason: "something new", position: null }), "something new");
});
