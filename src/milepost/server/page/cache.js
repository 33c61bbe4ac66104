// What the prefix cache holds and has given, asked again and again while somebody looks.

import { getJson } from "./api.js";
import { byId, el } from "./dom.js";
import { bytes, count, percent } from "./format.js";
import { TreeView } from "./tree-view.js";

const CALM_MS = 4000;
const BUSY_MS = 1000;

export class CachePanel {
  /** `isBusy()`: an answer is being written here; `onRefused(error)`: the server refused to tell. */
  constructor({ isBusy, onRefused }) {
    this.isBusy = isBusy;
    this.onRefused = onRefused;
    this.tree = new TreeView();
    this.timer = null;
    this.asking = false;
    document.addEventListener("visibilitychange", () => this.look());
  }

  /** Asks now, and from now on. One question at a time. */
  async look() {
    clearTimeout(this.timer);
    if (this.asking) return;
    if (this.#isSeen()) {
      this.asking = true;
      await this.#ask();
      this.asking = false;
    }
    this.timer = setTimeout(() => this.look(), this.isBusy() ? BUSY_MS : CALM_MS);
  }

  async #ask() {
    try {
      const told = await getJson("/cache");
      byId("cache-numbers").replaceChildren(...numbers(told));
      this.tree.show(told);
      this.#problem("");
    } catch (error) {
      this.#problem(error.status ? error.message : "The server does not answer.");
      if (error.status) this.onRefused(error);
    }
  }

  #problem(text) {
    byId("cache-problem").textContent = text;
    byId("cache-problem").hidden = !text;
  }

  #isSeen() {
    return !document.hidden && byId("cache").offsetParent !== null;
  }
}

function numbers({ policy, bytes: space, counters, known_tokens: known, checkpoints }) {
  const { kv, state } = space.by_kind;
  const stack = el("span", { class: "stack", "aria-hidden": "true" }, part("kv", kv.used, space), part("state", state.used, space));
  const kinds = `keys and values ${bytes(kv.used)}, states ${bytes(state.used)}, pinned ${bytes(space.pinned)}`;
  const cells = [
    cell("Memory used", `${bytes(space.used)} of ${bytes(space.budget)}`, kinds, stack),
    cell("Reused", percent(counters.hits, counters.queries), `${count(counters.hits)} of ${count(counters.queries)} tokens`),
    cell("Known", count(known), policy.grid_tokens ? `tokens, ${count(checkpoints)} states` : "tokens"),
  ];
  if (policy.grid_tokens) {
    const { checkpoints_made: made, checkpoints_used: used, checkpoints_thinned: thinned, checkpoints_stranded: stranded } = counters;
    cells.push(cell("States used", `${count(used)} of ${count(made)}`, `${count(thinned)} thinned, ${count(stranded)} stranded`));
  }
  const missed = Object.entries(counters.misses).filter(([, times]) => times);
  if (missed.length) {
    const reasons = missed.map(([reason, times]) => `${reason} ${count(times)}`).join(", ");
    const told = cell("Prompts that could not reuse all, and why", reasons, "");
    told.classList.add("wide", "words");
    cells.push(told);
  }
  cells[0].classList.add("wide");
  if (!policy.enabled) cells.unshift(cell("Prefix caching", "off", ""));
  return cells;
}

function cell(term, value, more, ...extra) {
  return el("div", {}, el("dt", {}, term), el("dd", {}, value, ...extra, more ? el("small", {}, more) : null));
}

function part(kind, used, space) {
  const element = el("span", { class: kind });
  element.style.width = `${(100 * used) / Math.max(1, space.budget)}%`;
  return element;
}
