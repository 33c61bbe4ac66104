// The conversation: sends, shows what comes, stops, and keeps the versions apart.

import { getJson, streamChat } from "./api.js";
import { Conversation } from "./conversation.js";
import { byId, el } from "./dom.js";
import { count, plural } from "./format.js";
import { editorView, fill, messageView } from "./message-view.js";
import { AnswerReader, EventReader } from "./stream.js";

const KEPT = "milepost.chat";
const NEAR_END = 80;

export class Chat {
  /** `settings()`: {system, temperature, max_tokens}; `onRefused(error)`: a request that the server refused;
   * `onAnswer()`: an answer began or ended. */
  constructor({ settings, onRefused, onAnswer }) {
    this.settings = settings;
    this.onRefused = onRefused;
    this.onAnswer = onAnswer;
    this.conversation = new Conversation(kept());
    this.maxTokens = 0;
    this.running = null;
    this.messages = byId("messages");
    this.actions = {
      edit: (id) => this.edit(id),
      regenerate: (id) => this.regenerate(id),
      turn: (id, step) => this.turn(id, step),
    };
    this.show();
  }

  get busy() {
    return this.running !== null;
  }

  say(text) {
    if (this.busy || !text.trim()) return;
    const last = this.conversation.path().at(-1);
    const said = this.conversation.add(last?.id ?? null, "user", text);
    this.#answer(said.id);
  }

  regenerate(id) {
    if (!this.busy) this.#answer(this.conversation.nodes.get(id).parent);
  }

  /** Another version of a message; what followed it stays with the old one. */
  edit(id) {
    if (this.busy) return;
    const node = this.conversation.nodes.get(id);
    const save = (text) => this.#answer(this.conversation.add(node.parent, "user", text).id);
    const cancel = () => {
      this.show();
      this.#find(id)?.querySelector("[data-do=edit]").focus();
    };
    const editor = editorView(node, save, cancel);
    this.#find(id).replaceChildren(editor);
    editor.querySelector("textarea").focus();
  }

  editLast() {
    const last = this.conversation.path().findLast((node) => node.role === "user");
    if (last) this.edit(last.id);
  }

  turn(id, step) {
    if (this.busy) return;
    const node = this.conversation.turn(id, step);
    this.show();
    if (!node) return;
    const place = this.#find(node.id);
    const pressed = place.querySelector(`[data-turn="${step}"]`);
    (pressed.disabled ? place.querySelector(`[data-turn="${-step}"]`) : pressed).focus();
  }

  clear() {
    this.stop();
    this.conversation = new Conversation();
    this.show();
    this.#keep();
  }

  stop() {
    this.running?.abort();
  }

  /** The path as it is now. */
  show() {
    const path = this.conversation.path();
    const views = path.map((node) => messageView(node, this.conversation.version(node.id), this.actions, this.#isLive(node)));
    this.messages.replaceChildren(...(views.length ? views : [welcome()]));
    this.showContext();
    this.messages.scrollTop = this.messages.scrollHeight;
  }

  showContext() {
    const used = this.conversation.contextUsed();
    const meter = byId("context-meter");
    const share = this.maxTokens ? Math.min(1, used / this.maxTokens) : 0;
    meter.setAttribute("aria-valuemax", this.maxTokens || 1);
    meter.setAttribute("aria-valuenow", Math.min(used, this.maxTokens));
    meter.setAttribute("aria-valuetext", `${count(used)} of ${count(this.maxTokens)} tokens`);
    meter.toggleAttribute("data-full", share > 0.85);
    meter.firstElementChild.style.width = `${100 * share}%`;
    byId("context-text").textContent = `context ${count(used)} of ${count(this.maxTokens)}`;
  }

  async #answer(parent) {
    const node = this.conversation.add(parent, "assistant");
    const running = (this.running = new AbortController());
    this.live = node;
    this.show();
    this.#controls();
    this.onAnswer();
    announce("The answer begins.");
    const reader = new AnswerReader(node, performance.now());
    try {
      await this.#read(reader, running.signal);
    } catch (error) {
      await this.#failed(node, reader, error);
    }
    node.finished = true;
    if (this.running === running) this.running = this.live = null;
    this.#controls();
    this.#refresh(node);
    this.#keep();
    this.onAnswer();
    announce(node.error ? "" : `The answer is there: ${plural(node.facts.tokens, "token")}.`);
  }

  async #read(reader, signal) {
    const events = new EventReader();
    const { system, ...sampling } = this.settings();
    const body = {
      ...sampling,
      model: "", // whatever is served
      messages: this.conversation.messagesBefore(reader.node.id, system),
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      explain_cache: true,
    };
    for await (const text of streamChat(body, signal)) {
      for (const data of events.take(text)) {
        if (data !== "[DONE]") reader.take(JSON.parse(data), performance.now());
      }
      this.#refreshSoon(reader.node);
    }
  }

  /** Stopped: it stays as far as it came, and the server still knows what it had reused. */
  async #failed(node, reader, error) {
    if (error.name !== "AbortError") {
      node.error = error.hint ? `${error.message}: ${error.hint}` : error.message;
      if (error.status) this.onRefused(error);
      return;
    }
    node.facts.finish = "stopped";
    const told = await getJson("/cache/requests?last=20").catch(() => ({ requests: [] }));
    node.facts.cache = told.requests.find((one) => one.id === reader.requestId) ?? null;
  }

  #refreshSoon(node) {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      this.#refresh(node);
    });
  }

  #refresh(node) {
    const article = this.#find(node.id);
    if (!article) return;
    const { scrollHeight, scrollTop, clientHeight } = this.messages;
    const atEnd = scrollHeight - scrollTop - clientHeight < NEAR_END;
    fill(article, node, this.conversation.version(node.id), this.actions, this.#isLive(node));
    if (atEnd) this.messages.scrollTop = this.messages.scrollHeight;
    this.showContext();
  }

  #isLive(node) {
    return this.busy && node === this.live;
  }

  /** Where the pressed button goes away, its successor has the focus. */
  #controls() {
    const [send, stop, prompt] = [byId("send"), byId("stop"), byId("prompt")];
    const [gone, next] = this.busy ? [send, stop] : [stop, send];
    const moves = document.activeElement === gone || (this.busy && document.activeElement === document.body);
    send.hidden = this.busy;
    stop.hidden = !this.busy;
    if (moves && document.activeElement !== prompt) next.focus();
  }

  #find(id) {
    return this.messages.querySelector(`[data-id="${id}"]`);
  }

  #keep() {
    try {
      sessionStorage.setItem(KEPT, JSON.stringify(this.conversation.save()));
    } catch {
      sessionStorage.removeItem(KEPT); // more than the browser keeps: a reload then starts anew
    }
  }
}

/** The conversation of this tab, if the page was loaded again. */
function kept() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT));
  } catch {
    return null;
  }
}

function welcome() {
  const words = "Each answer says what was reused of its prompt. Regenerate one, or edit a message, and see what stays.";
  return el("div", { class: "welcome" }, el("h2", {}, "What would you like to know?"), el("p", {}, words));
}

function announce(text) {
  byId("announcer").textContent = text;
}
