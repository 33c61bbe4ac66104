// Puts the page together: the server's health, the key, settings, the two views.

import { getJson, health, keepKey, key } from "./api.js";
import { CachePanel } from "./cache.js";
import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { percent } from "./format.js";

const SETTINGS = "milepost.settings";
const HEALTH_MS = 15000;
const LOADING_MS = 700;

const chat = new Chat({ settings, onRefused, onAnswer: () => panel.look() });
const panel = new CachePanel({ isBusy: () => chat.busy, onRefused });
const prompt = byId("prompt");
let known = false;

// Health and the model

async function watch() {
  const told = await health().catch(() => ({ status: "unreachable" }));
  const loading = told.status === "loading";
  const words = loading ? `loading, ${percent(told.loaded_bytes, told.total_bytes)}` : (told.message ?? told.status);
  const place = byId("health");
  place.dataset.state = told.status === "ok" ? "ok" : loading ? "loading" : "failed";
  if (place.textContent !== words) place.textContent = words;
  if (told.status === "ok" && !known) await meet();
  setTimeout(watch, told.status === "ok" ? HEALTH_MS : LOADING_MS);
}

async function meet() {
  try {
    const [model] = (await getJson("/v1/models")).data;
    byId("model").textContent = byId("model").title = model.id;
    document.title = `${model.id} · Milepost`;
    chat.maxTokens = model.max_model_len;
    known = true;
    chat.showContext();
    panel.look();
  } catch (error) {
    onRefused(error);
  }
}

// The key

function onRefused(error) {
  const dialog = byId("key-dialog");
  if (error.status !== 401 || dialog.open || byId("settings").open) return;
  if (key()) byId("key-problem").textContent = "The server does not know this key. Type another one.";
  byId("key").value = "";
  dialog.showModal();
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey(byId("key").value.trim());
  byId("key-dialog").close();
  meet();
});

// Settings

function kept() {
  try {
    return JSON.parse(sessionStorage.getItem(SETTINGS)) ?? {};
  } catch {
    return {};
  }
}

function settings() {
  const { system = "", temperature = "", maxTokens = "" } = kept();
  const told = { system };
  if (temperature !== "") told.temperature = Number(temperature);
  if (maxTokens !== "") told.max_tokens = Number(maxTokens);
  return told;
}

byId("open-settings").addEventListener("click", () => {
  const { system = "", temperature = "", maxTokens = "" } = kept();
  byId("system").value = system;
  byId("temperature").value = temperature;
  byId("max-tokens").value = maxTokens;
  byId("settings-key").value = key();
  byId("settings").showModal();
});

byId("settings-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const [system, temperature, maxTokens] = ["system", "temperature", "max-tokens"].map((id) => byId(id).value);
  sessionStorage.setItem(SETTINGS, JSON.stringify({ system, temperature, maxTokens }));
  keepKey(byId("settings-key").value.trim());
  byId("settings").close();
  meet();
});

for (const button of document.querySelectorAll("[data-close]")) {
  button.addEventListener("click", () => byId(button.dataset.close).close());
}

// Writing

function fit() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

function send() {
  if (chat.busy || !prompt.value.trim()) return;
  chat.say(prompt.value);
  prompt.value = "";
  fit();
}

prompt.addEventListener("input", fit);
prompt.addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    send();
  } else if (event.key === "ArrowUp" && !prompt.value) {
    event.preventDefault();
    chat.editLast();
  }
});
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", () => {
  chat.stop();
  prompt.focus();
});
byId("new-chat").addEventListener("click", () => {
  chat.clear();
  prompt.focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chat.busy && !document.querySelector("dialog[open]")) chat.stop();
});

// Views: side by side where there is room, else one at a time

function view(name) {
  document.body.dataset.view = name;
  for (const other of ["chat", "cache"]) byId(`show-${other}`).setAttribute("aria-pressed", String(other === name));
  if (name === "cache") panel.look();
}

byId("show-chat").addEventListener("click", () => view("chat"));
byId("show-cache").addEventListener("click", () => view("cache"));

watch();
