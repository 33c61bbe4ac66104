// One message on the page: its text, what is known about it, and what can be done with it.

import { button, copied, el, markdown } from "./dom.js";
import { count, percent, plural, promptParts, rate, seconds, whyNotMore } from "./format.js";
import { icon } from "./icons.js";

/** The element of a message. `actions`: {edit, regenerate, turn}, each called with the message's id. */
export function messageView(node, version, actions, live) {
  const name = node.role === "user" ? "Your message" : "Answer";
  const article = el("article", { class: "message", "data-role": node.role, "data-id": node.id, "aria-label": name });
  fill(article, node, version, actions, live);
  return article;
}

/** Shows what `node` is now. Of a message that is being written this is called again and again. */
export function fill(article, node, version, actions, live) {
  article.toggleAttribute("data-live", live);
  const open = article.querySelector(".reasoning")?.open ?? false;
  const text = el("div", { class: "text" }, ...(node.role === "user" ? [node.content] : markdown(node.content)));
  const parts = [
    node.reasoning ? reasoning(node, live, open) : null,
    node.content || (live && !node.reasoning) ? text : null,
    node.error ? el("p", { class: "problem", role: "alert" }, node.error) : null,
    node.facts && (node.facts.promptTokens || !live) ? facts(node.facts, live) : null,
    live ? null : bar(node, version, actions),
  ];
  article.replaceChildren(...parts.filter((part) => part !== null));
}

function reasoning(node, live, open) {
  const thinking = live && !node.content;
  const details = el("details", { class: "reasoning" }, el("summary", {}, thinking ? "Thinking…" : "Reasoning"));
  details.open = open || thinking;
  details.append(el("div", {}, node.reasoning));
  return details;
}

function facts(told, live) {
  if (!told.promptTokens) return null;
  const speed = told.rate ? `${rate(told.rate)} tok/s` : null;
  const end = { length: "cut off", stopped: "stopped" }[told.finish];
  const line = [plural(told.tokens, "token"), speed, `first after ${seconds(told.firstSeconds)}`, end];
  const parts = promptParts(told.promptTokens, told.cachedTokens, told.cache);
  const share = percent(parts.resumed, told.promptTokens);
  const reused = `reused ${count(parts.resumed)} of ${count(told.promptTokens)} prompt tokens (${share})`;
  return el(
    "div",
    { class: "facts" },
    el("p", { class: "speed" }, line.filter(Boolean).join(" · ")),
    reuseBar(parts),
    el("p", { class: "reused" }, reused, parts.again ? `, ${count(parts.again)} found and computed again` : ""),
    live ? null : why(told.cache),
  );
}

function reuseBar(parts) {
  const bar = el("div", { class: "reuse", "aria-hidden": "true" });
  for (const [name, tokens] of Object.entries(parts)) {
    if (!tokens) continue;
    const part = el("span", { class: name });
    part.style.flexGrow = tokens;
    bar.append(part);
  }
  return bar;
}

function why(cache) {
  if (!cache) return null;
  const quote = cache.text === null ? null : el("q", {}, cache.text);
  return el("p", { class: "why" }, whyNotMore(cache), quote ? " " : null, quote);
}

function bar(node, version, actions) {
  const row = el("div", { class: "actions" });
  if (version.of > 1) {
    const turn = (step) => () => actions.turn(node.id, step);
    row.append(
      button(icon("before"), "Version before", turn(-1), { disabled: version.index === 0, "data-turn": "-1" }),
      el("span", { "aria-label": `Version ${version.index + 1} of ${version.of}` }, `${version.index + 1}/${version.of}`),
      button(icon("after"), "Version after", turn(1), { disabled: version.index === version.of - 1, "data-turn": "1" }),
    );
  }
  if (node.role === "user") row.append(button(icon("edit"), "Edit", () => actions.edit(node.id), { "data-do": "edit" }));
  else row.append(button(icon("again"), "Regenerate", () => actions.regenerate(node.id), { "data-do": "regenerate" }));
  const copy = button(icon("copy"), "Copy", () => copied(node.content, copy));
  row.append(copy);
  return row;
}

/** In place of a message: its text to change. */
export function editorView(node, save, cancel) {
  const area = el("textarea", { "aria-label": "Edit the message", rows: Math.min(12, node.content.split("\n").length + 1) });
  area.value = node.content;
  const form = el(
    "form",
    { class: "editor" },
    area,
    el(
      "div",
      { class: "buttons" },
      el("button", { type: "button", class: "quiet", onclick: cancel }, "Cancel"),
      el("button", { type: "submit", class: "primary" }, "Send"),
    ),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (area.value.trim()) save(area.value);
  });
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      cancel();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  return form;
}
