// Asking the server that this page comes from, with the key that was typed here.

const KEY = "milepost.key";

/** The key lives as long as the tab. */
export function key() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function keepKey(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

/** What the server refused: its status, its words, and its hint. */
export class Refused extends Error {
  constructor(status, message) {
    const [text, hint] = message.split(" (hint: ");
    super(text);
    this.status = status;
    this.hint = hint?.replace(/\)$/, "") ?? "";
  }
}

/** What GET `route` answers. `Refused` for what it refuses; another error where no server answers. */
export async function getJson(route) {
  const answer = await fetch(route, { headers: headers(), credentials: "omit" });
  const told = await answer.json().catch(() => null);
  if (!answer.ok) throw refusal(answer.status, told);
  return told;
}

/** What /health says, also while the model loads. */
export async function health() {
  const answer = await fetch("/health", { credentials: "omit" });
  return answer.json();
}

/** The text of a streamed chat completion as it comes. Aborting `signal` ends the request on the server, too. */
export async function* streamChat(body, signal) {
  const answer = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { ...headers(), "Content-Type": "application/json" },
    credentials: "omit",
    body: JSON.stringify(body),
    signal,
  });
  if (!answer.ok) throw refusal(answer.status, await answer.json().catch(() => null));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

function headers() {
  return key() ? { Authorization: `Bearer ${bytesAsLatin(key())}` } : {};
}

/** Header values are bytes to a browser: UTF-8, one character for each. */
function bytesAsLatin(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

function refusal(status, told) {
  return new Refused(status, told?.error?.message ?? `the server answers ${status}`);
}
