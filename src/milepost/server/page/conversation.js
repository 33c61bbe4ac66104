// A conversation whose messages may have several versions: a tree, of which one path is shown. No DOM here.

/** Messages by id; `null` is what stands before the first one. Each place remembers which of its versions is shown. */
export class Conversation {
  constructor(saved = null) {
    this.nodes = new Map();
    this.shown = new Map();
    this.next = 1;
    if (saved) this.#restore(saved);
  }

  /** A new version after `parent`, which is shown from now on. */
  add(parent, role, content = "") {
    const node = { id: this.next++, parent, role, content, reasoning: "", error: "", finished: role === "user", facts: null };
    this.nodes.set(node.id, node);
    this.shown.set(parent, node.id);
    return node;
  }

  /** Removes a message with all that follows it. */
  remove(id) {
    const node = this.nodes.get(id);
    if (!node) return;
    for (const child of this.versionsAfter(id)) this.remove(child.id);
    this.nodes.delete(id);
    this.shown.delete(id);
    if (this.shown.get(node.parent) === id) {
      const left = this.versionsAfter(node.parent);
      if (left.length) this.shown.set(node.parent, left[left.length - 1].id);
      else this.shown.delete(node.parent);
    }
  }

  versionsAfter(parent) {
    return [...this.nodes.values()].filter((node) => node.parent === parent);
  }

  /** The messages that are shown, the first one first. */
  path() {
    const found = [];
    let node = this.nodes.get(this.shown.get(null));
    while (node) {
      found.push(node);
      node = this.nodes.get(this.shown.get(node.id));
    }
    return found;
  }

  /** Which version of its place a message is, from 0 on, and of how many. */
  version(id) {
    const all = this.versionsAfter(this.nodes.get(id).parent).map((node) => node.id);
    return { index: all.indexOf(id), of: all.length };
  }

  /** Shows the version before (-1) or after (1) a message; what follows it comes back as it was. */
  turn(id, step) {
    const { parent } = this.nodes.get(id);
    const all = this.versionsAfter(parent);
    const place = all.findIndex((node) => node.id === id) + step;
    if (place < 0 || place >= all.length) return null;
    this.shown.set(parent, all[place].id);
    return all[place];
  }

  /** What a request sends to get the answer `id`: all that stands before it. */
  messagesBefore(id, system = "") {
    const found = [];
    let node = this.nodes.get(this.nodes.get(id).parent);
    while (node) {
      const message = { role: node.role, content: node.content };
      if (node.reasoning) message.reasoning = node.reasoning;
      found.unshift(message);
      node = this.nodes.get(node.parent);
    }
    return system.trim() ? [{ role: "system", content: system }, ...found] : found;
  }

  /** Tokens that the path takes, as of its last answer; 0 if nobody has said yet. */
  contextUsed() {
    const told = this.path().filter((node) => node.facts && node.facts.totalTokens);
    return told.length ? told[told.length - 1].facts.totalTokens : 0;
  }

  save() {
    return { nodes: [...this.nodes.values()], shown: [...this.shown], next: this.next };
  }

  #restore(saved) {
    for (const node of saved.nodes) this.nodes.set(node.id, { ...node, finished: true });
    this.shown = new Map(saved.shown);
    this.next = saved.next;
  }
}
