// The Markdown that models write, as plain objects: blocks that hold spans. It never makes HTML; `dom.js` shows it.

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)(?:([-*+])|(\d{1,9})[.)])\s+/;
const TABLE_RULE = /^ *\|?(?: *:?-+:? *\|)+ *:?-* *:?\|? *$/;

const SPANS = [
  ["code", /^(`+)(?!`)([^]*?[^`])\1(?!`)/],
  ["link", /^!?\[([^\]\n]*)\]\(\s*<?([^\s()<>]*(?:\([^\s()]*\)[^\s()<>]*)*)>?(?:\s+"[^"\n]*")?\s*\)/],
  ["strong", /^(\*\*|__)(?=\S)([^]*?\S)\1(?!\*)/],
  ["em", /^(\*|_)(?=[^\s*_])([^]*?[^\s*_])\1(?![\w*_])/],
  ["del", /^(~~)(?=\S)([^]*?\S)\1/],
  ["url", /^https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]}*]/],
];
const MAX_DEPTH = 12;

/** Blocks: {type: "p" | "h" | "code" | "quote" | "list" | "table" | "hr", ...}. Text that ends too early, as that of a
 * stream does, is read as far as it has come. */
export function parse(text, depth = 0) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [block, next] = blockAt(lines, at, depth);
    blocks.push(block);
    at = next;
  }
  return blocks;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return codeAt(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [{ type: "h", level: heading[1].length, spans: spans(heading[2]) }, at + 1];
  if (RULE.test(line)) return [{ type: "hr" }, at + 1];
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quoteAt(lines, at, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return listAt(lines, at, depth);
  if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "")) return tableAt(lines, at);
  return paragraphAt(lines, at);
}

function codeAt(lines, at, [, mark, language]) {
  let end = at + 1;
  const closes = (line) => line.trim().startsWith(mark) && !line.trim().replaceAll(mark[0], "");
  while (end < lines.length && !closes(lines[end])) end += 1;
  return [{ type: "code", language, text: lines.slice(at + 1, end).join("\n") }, end + 1];
}

function quoteAt(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [{ type: "quote", blocks: parse(inner.join("\n"), depth + 1) }, end];
}

/** An item goes on with lines that are indented further than its mark, and with empty lines between such. */
function listAt(lines, at, depth) {
  const [, indent, bullet, number] = ITEM.exec(lines[at]);
  const items = [];
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || found[1].length > indent.length + 1 || found[1].length < indent.length) break;
    if (Boolean(found[2]) !== Boolean(bullet)) break;
    const inner = [lines[at].slice(found[0].length)];
    at += 1;
    while (at < lines.length && belongs(lines, at, found[1].length)) {
      inner.push(lines[at].replace(new RegExp(`^ {0,${found[0].length}}`), ""));
      at += 1;
    }
    items.push(parse(inner.join("\n"), depth + 1));
    while (at < lines.length && !lines[at].trim() && ITEM.test(lines[at + 1] ?? "")) at += 1;
  }
  return [{ type: "list", start: number === undefined ? null : Number(number), items }, at];
}

function belongs(lines, at, indent) {
  const line = lines[at];
  if (line.trim()) return line.length - line.trimStart().length > indent;
  const next = lines[at + 1] ?? "";
  return Boolean(next.trim()) && next.length - next.trimStart().length > indent;
}

function tableAt(lines, at) {
  const head = cells(lines[at]);
  let end = at + 2;
  while (end < lines.length && lines[end].trim() && lines[end].includes("|")) end += 1;
  const rows = lines.slice(at + 2, end).map((line) => head.map((_, place) => spans(cells(line)[place] ?? "")));
  return [{ type: "table", head: head.map((cell) => spans(cell)), rows }, end];
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

function paragraphAt(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !starts(lines, end)) end += 1;
  return [{ type: "p", spans: spans(lines.slice(at, end).join("\n")) }, end];
}

function starts(lines, at) {
  const line = lines[at];
  const table = line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "");
  return table || [FENCE, HEADING, RULE, QUOTE, ITEM].some((form) => form.test(line));
}

/** Spans: {type: "text" | "code", text}, {type: "strong" | "em" | "del", spans}, {type: "link", href, spans}. */
export function spans(text, depth = 0) {
  const found = [];
  let plain = "";
  let at = 0;
  while (at < text.length) {
    const escaped = /^\\([!-/:-@[-`{-~])/.exec(text.slice(at, at + 2));
    const span = escaped || depth >= MAX_DEPTH ? null : spanAt(text, at, depth);
    if (!span) {
      plain += escaped ? escaped[1] : text[at];
      at += escaped ? 2 : 1;
      continue;
    }
    if (plain) found.push({ type: "text", text: plain });
    plain = "";
    found.push(span.span);
    at += span.length;
  }
  if (plain) found.push({ type: "text", text: plain });
  return found;
}

function spanAt(text, at, depth) {
  if (!"`![*_~h".includes(text[at])) return null;
  const inWord = at > 0 && /\w/.test(text[at - 1]);
  if (inWord && "_h".includes(text[at])) return null;
  const rest = text.slice(at, at + 4000);
  for (const [type, form] of SPANS) {
    const match = form.exec(rest);
    if (match) return { span: made(type, match, depth), length: match[0].length };
  }
  return null;
}

function made(type, match, depth) {
  if (type === "code") return { type, text: match[2].replace(/^ (.*[^ ].*) $/s, "$1") };
  if (type === "url") return { type: "link", href: safe(match[0]), spans: [{ type: "text", text: match[0] }] };
  if (type === "link") return { type, href: safe(match[2]), spans: spans(match[1] || match[2], depth + 1) };
  return { type, spans: spans(match[2], depth + 1) };
}

/** Only addresses that cannot run anything; null for all others. Pictures become links too: nothing is loaded. */
export function safe(href) {
  return /^(https?:\/\/|mailto:)/i.test(href) ? href : null;
}
