// The report: what can be chosen, and what is drawn of it.

import { bytes, count, duration, percent } from "./scales.js";
import { memoryChart } from "./memory.js";
import { rateChart } from "./rates.js";
import { el, mark, svg } from "./svg.js";

const COLORS = ["var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c6)"];
const MAX_NAMED = 7;
const BUSY = 0.95; // where a server has more to do than it can, its queue is as long as the trace

const report = JSON.parse(document.getElementById("report").textContent);
const { budgets, runs, advice } = report;
const byId = (id) => document.getElementById(id);
const policies = [...new Set(runs.map((run) => run.policy))];
const indexOf = new Map(budgets.map((budget, i) => [budget.bytes, i]));
const lines = policies.map(lineOf);
const chosen = { budget: indexOf.get(advice?.budget_bytes) ?? budgets.length - 1, policy: advice?.policy ?? policies[0] };

function lineOf(name) {
  const rates = budgets.map(() => null);
  for (const run of runs) if (run.policy === name) rates[indexOf.get(run.budget_bytes)] = run.hit_rate;
  return { name, rates, best: name === advice?.policy, mean: rates.reduce((sum, rate) => sum + (rate ?? 0), 0) };
}

/** The recommended one in the accent's colour, the next best in others, the rest grey and without a name. */
function paint() {
  const order = [...lines].sort((a, b) => b.best - a.best || b.mean - a.mean);
  order.forEach((line, place) => {
    line.number = place;
    line.named = place < MAX_NAMED;
    line.color = line.best ? "var(--accent)" : (COLORS[place - (order[0].best ? 1 : 0)] ?? "var(--rest)");
  });
}

function runOf(policy, budget) {
  return runs.find((run) => run.policy === policy && run.budget_bytes === budgets[budget].bytes);
}

function choices() {
  const made = budgets.map((budget, i) => {
    const input = el("input", { type: "radio", name: "budget", checked: i === chosen.budget, onchange: () => choose(i) });
    return el("label", {}, input, bytes(budget.bytes));
  });
  byId("budgets").append(...made);
}

function choose(budget) {
  chosen.budget = budget;
  byId("budgets").querySelectorAll("input")[budget].checked = true;
  draw();
}

function ranking() {
  const at = chosen.budget;
  const scale = budgets[at].upper_bound ?? report.ceiling?.hit_rate ?? 1;
  const most = Math.max(scale, ...lines.map((line) => line.rates[at] ?? 0)) || 1;
  const ranked = lines.filter((line) => line.rates[at] !== null).sort((a, b) => b.rates[at] - a.rates[at]);
  const items = ranked.map((line, place) => {
    const pick = () => {
      chosen.policy = line.name;
      drawMemory();
    };
    const rate = line.rates[at];
    const input = el("input", { type: "radio", name: "policy", value: line.name, checked: line.name === chosen.policy, onchange: pick });
    const sign = svg("svg", { viewBox: "-7 -7 14 14", "aria-hidden": "true" }, mark(line.number, 0, 0, 4.5, true));
    const bar = el("span", { class: "bar", style: `--bound: ${(scale / most) * 100}%` }, el("span", { style: `width: ${(rate / most) * 100}%` }));
    return el(
      "label",
      { class: place === 0 ? "best-one" : null, style: `--color: ${line.color}` },
      input,
      sign,
      el("span", { class: "title", title: line.name }, line.name),
      el("span", { class: "value" }, percent(rate)),
      bar,
    );
  });
  const limit = typeof budgets[at].upper_bound === "number" ? `Grey: ${percent(scale)}, the bound that no policy can pass.` : "";
  const legend = el("legend", {}, `With ${bytes(budgets[at].bytes)}`);
  byId("ranking").replaceChildren(legend, ...items, el("p", { class: "against" }, limit));
}

function drawRates() {
  const figure = byId("rates");
  const chart = rateChart({ budgets, ceiling: report.ceiling?.hit_rate, lines, chosen: chosen.budget, width: Math.max(figure.clientWidth, 280), choose });
  figure.replaceChildren(chart);
}

function drawMemory() {
  const run = runOf(chosen.policy, chosen.budget);
  const figure = byId("memory");
  byId("memory-about").textContent = `Of ${chosen.policy} with ${bytes(budgets[chosen.budget].bytes)}; choose another above.`;
  const samples = run?.memory ?? [];
  const nothing = el("p", {}, "There are no samples of this one.");
  figure.replaceChildren(samples.length > 1 ? memoryChart({ samples, limit: run.budget_bytes, width: Math.max(figure.clientWidth, 280) }) : nothing);
  byId("numbers").replaceChildren(...(run ? numbers(run) : []).map(([name, ...values]) => tile(name, values)));
}

function quantiles(times) {
  return [["mean", "mean"], ["p50", "median"], ["p99", "99 %"]].map(([name, about]) => [duration(times[name] / 1000), about]);
}

/** `values`: [number, what it is], one or more. */
function tile(name, values) {
  const shown = values.map(([value, about]) => el("span", {}, value, about ? el("small", {}, ` ${about}`) : null));
  return el("div", {}, el("dt", {}, name), el("dd", {}, ...shown));
}

function numbers(run) {
  const input = report.trace.input_tokens;
  const told = [
    ["Tokens resumed", [count(run.hit_tokens), `of ${count(input)}`]],
    ["Computed, though seen before", [count(run.recomputed_tokens), percent(run.recomputed_tokens / input)]],
  ];
  if (typeof run.prefill_s === "number") told.push(["Prefill, all requests", [duration(run.prefill_s)]]);
  if (run.prefill_ms) told.push(["Prefill of a request", ...quantiles(run.prefill_ms)]);
  if (run.ttft_ms && run.busy < BUSY) told.push(["Time to first token", ...quantiles(run.ttft_ms)]);
  if (run.peak_bytes) told.push(["At most", [bytes(run.peak_bytes.kv), "KV"], [bytes(run.peak_bytes.state), "states"]]);
  for (const [reason, number] of Object.entries(run.evictions ?? {})) told.push([EVICTED[reason] ?? reason, [count(number)]]);
  return told;
}

const EVICTED = { evicted: "Tokens of KV evicted", thinned: "States evicted alone", stranded: "States lost with their KV" };

function draw() {
  drawRates();
  ranking();
  drawMemory();
}

function start() {
  paint();
  choices();
  draw();
  let width = document.body.clientWidth;
  addEventListener("resize", () => {
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    drawRates();
    drawMemory();
  });
}

if (runs.length) start();
