// Making elements. All text goes in as text: nothing that a model or a person writes is ever read as HTML.

import { parse } from "./markdown.js";

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element with attributes (null and false: none), listeners ("onclick": f) and children, which may be strings. */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** A button that shows a drawing and says a word. */
export function button(drawing, label, onclick, attributes = {}) {
  return el("button", { type: "button", class: "quiet", "aria-label": label, title: label, onclick, ...attributes }, drawing);
}

/** The elements of a text in Markdown. */
export function markdown(text) {
  return parse(text).map(shown);
}

function shown(block) {
  switch (block.type) {
    case "h":
      return el(`h${Math.min(6, block.level + 2)}`, {}, ...inline(block.spans));
    case "code":
      return code(block);
    case "quote":
      return el("blockquote", {}, ...block.blocks.map(shown));
    case "list":
      return list(block);
    case "table":
      return table(block);
    case "hr":
      return el("hr");
    default:
      return el("p", {}, ...inline(block.spans));
  }
}

function code({ language, text }) {
  const copy = el("button", { type: "button", class: "quiet copy" }, "Copy");
  copy.addEventListener("click", () => copied(text, copy));
  const caption = el("figcaption", {}, language || "text", copy);
  return el("figure", { class: "code" }, caption, el("pre", { tabindex: "0" }, el("code", {}, text)));
}

function list({ start, items }) {
  const element = start === null ? el("ul") : el("ol", { start });
  for (const blocks of items) {
    const [first, ...rest] = blocks;
    const tight = first?.type === "p" ? inline(first.spans) : blocks.slice(0, 1).map(shown);
    element.append(el("li", {}, ...tight, ...rest.map(shown)));
  }
  return element;
}

function table({ head, rows }) {
  const row = (cells, name) => el("tr", {}, ...cells.map((spans) => el(name, {}, ...inline(spans))));
  const body = rows.map((cells) => row(cells, "td"));
  return el("div", { class: "scroll", tabindex: "0" }, el("table", {}, el("thead", {}, row(head, "th")), el("tbody", {}, ...body)));
}

function inline(spans) {
  return spans.map((span) => {
    if (span.type === "text") return span.text;
    if (span.type === "code") return el("code", {}, span.text);
    if (span.type !== "link") return el(span.type, {}, ...inline(span.spans));
    const outside = { href: span.href, target: "_blank", rel: "noopener noreferrer" };
    return span.href ? el("a", outside, ...inline(span.spans)) : el("span", {}, ...inline(span.spans));
  });
}

/** Copies, and says so on the button for a moment. Without a safe origin browsers allow it to selections alone. */
export async function copied(text, where) {
  const before = [...where.childNodes];
  try {
    await navigator.clipboard.writeText(text);
    where.replaceChildren("Copied");
  } catch {
    where.replaceChildren("Not allowed");
  }
  setTimeout(() => where.replaceChildren(...before), 1200);
}
