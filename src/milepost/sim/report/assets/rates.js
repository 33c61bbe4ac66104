// The picture of hit rates against budgets: policies as lines, what no policy can reach hatched.

import { bytes, linear, logarithmic, percent, spread, ticks } from "./scales.js";
import { mark, polyline, svg } from "./svg.js";

const HEIGHT = 360;
const MARGIN = { top: 14, bottom: 40, left: 44 };
const NAME_GAP = 15;
const NARROW = 480;

/** `lines`: policies with `name`, `number` (of its colour and mark), `rates` (by budget), `best`, `named`. `chosen`: a
 * budget's index. */
export function rateChart({ budgets, ceiling, lines, chosen, width, choose }) {
  const right = width < NARROW ? 108 : 170;
  const frame = { left: MARGIN.left, right: width - right, top: MARGIN.top, bottom: HEIGHT - MARGIN.bottom };
  const top = Math.max(ceiling ?? 0, ...lines.flatMap((line) => line.rates.filter(isNumber)), 0.01);
  const least = Math.min(...lines.flatMap((line) => line.rates.filter(isNumber)));
  const levels = ticks(Math.min(1, top * 1.04), 5, budgets.length > 1 && least > top / 3 ? least * 0.95 : 0);
  const y = linear(levels[0], levels.at(-1), frame.bottom, frame.top);
  const inset = budgets.length > 1 ? 14 : 0;
  const x = logarithmic(budgets[0].bytes, budgets.at(-1).bytes, frame.left + inset, frame.right - inset);
  const picture = { frame, x: budgets.map((budget) => x(budget.bytes)), y, top: levels.at(-1) };
  return svg(
    "svg",
    { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": "Hit rate of each policy by budget; the table below has the numbers" },
    hatch(),
    slices(picture, chosen, choose),
    ...levels.map((level) => row(picture, level)),
    ...columns(picture, budgets, chosen),
    svg("g", { "pointer-events": "none" }, ...bounds(picture, budgets, ceiling), ...lines.map((line) => policy(picture, line, chosen))),
    svg("g", { "pointer-events": "none" }, ...names(picture, budgets, ceiling, lines, width)),
  );
}

function hatch() {
  const lines = svg("path", { d: "M-2 2L2 -2M0 8L8 0M6 10L10 6" });
  return svg("defs", {}, svg("pattern", { id: "hatch", width: 8, height: 8, patternUnits: "userSpaceOnUse" }, lines));
}

/** A column for each budget, which chooses it; the budgets' buttons do the same by keyboard. */
function slices({ frame, x }, chosen, choose) {
  const edges = [frame.left, ...x.slice(1).map((place, i) => (place + x[i]) / 2), frame.right];
  const columns = x.map((_, i) =>
    svg("rect", {
      class: "slice",
      x: edges[i],
      width: edges[i + 1] - edges[i],
      y: frame.top,
      height: frame.bottom - frame.top,
      opacity: i === chosen ? 0.75 : 0,
      style: "cursor: pointer",
      onclick: () => choose(i),
    }),
  );
  return svg("g", {}, ...columns);
}

function row({ frame, y }, level) {
  const at = y(level);
  const label = svg("text", { x: frame.left - 6, y: at + 4, "text-anchor": "end" }, `${Math.round(level * 1000) / 10}\u00a0%`);
  return svg("g", {}, svg("line", { class: "grid", x1: frame.left, x2: frame.right, y1: at, y2: at }), label);
}

function columns({ frame, x }, budgets, chosen) {
  let last = -Infinity;
  const labels = budgets.map((budget, i) => {
    if (i !== chosen && (x[i] - last < 46 || Math.abs(x[i] - x[chosen]) < 46)) return null;
    last = x[i];
    const style = i === chosen ? "font-weight: 650; fill: var(--ink)" : null;
    return svg("text", { x: x[i], y: frame.bottom + 17, "text-anchor": "middle", style }, bytes(budget.bytes));
  });
  const about = svg("text", { x: (frame.left + frame.right) / 2, y: frame.bottom + 34, "text-anchor": "middle" }, "memory for the cache");
  return [...labels, about].filter((label) => label !== null);
}

function bounds({ frame, x, y, top }, budgets, ceiling) {
  const upper = points(budgets.map((budget) => budget.upper_bound ?? ceiling), x, y);
  const feasible = points(budgets.map((budget) => budget.feasible), x, y);
  const drawn = [];
  if (upper.length) {
    const ends = [[frame.left, upper[0][1]], ...upper, [frame.right, upper.at(-1)[1]]];
    drawn.push(svg("path", { class: "beyond", d: `${polyline(ends)}L${frame.right} ${y(top)}L${frame.left} ${y(top)}Z` }));
    drawn.push(svg("path", { class: "edge", d: polyline(ends) }), beyond(upper, y(top)));
  }
  if (isNumber(ceiling)) drawn.push(svg("path", { class: "ceiling", d: `M${frame.left} ${y(ceiling)}H${frame.right}` }));
  if (feasible.length) drawn.push(svg("path", { class: "feasible", d: polyline(feasible) }));
  return drawn;
}

function policy({ x, y }, line, chosen) {
  const at = line.rates.map((rate, i) => (isNumber(rate) ? [x[i], y(rate), i] : null)).filter((point) => point !== null);
  const marks = at.map(([px, py, i]) => mark(line.number, px, py, line.best ? 4.5 : 3.5, i === chosen));
  const style = `--color: ${line.color}`;
  return svg("g", { class: line.best ? "best" : null, style }, svg("path", { class: "policy", d: polyline(at) }), ...(line.named ? marks : []));
}

/** Says what is hatched, where there is most of it. */
function beyond(upper, top) {
  const [x, edge] = upper.reduce((best, point) => (point[1] > best[1] ? point : best));
  const height = edge - top;
  if (height < 40) return svg("g");
  const start = x < (upper[0][0] + upper.at(-1)[0]) / 2;
  const place = { x: start ? upper[0][0] : upper.at(-1)[0], y: top + Math.min(height * 0.45, 34), "text-anchor": start ? "start" : "end" };
  return svg("text", { class: "name", ...place }, "no policy can be here");
}

/** At the right end of each line, moved apart where they would meet. */
function names({ frame, y }, budgets, ceiling, lines, width) {
  const last = budgets.at(-1);
  const wanted = lines
    .filter((line) => line.named && isNumber(line.rates.at(-1)))
    .map((line) => ({ text: line.name, rate: line.rates.at(-1), color: line.color, weight: line.best ? 700 : 600 }));
  const upper = last.upper_bound ?? null;
  const meets = isNumber(upper) && isNumber(ceiling) && Math.abs(y(upper) - y(ceiling)) < 6;
  if (isNumber(ceiling)) wanted.push({ text: width < NARROW ? "endless" : "endless memory", rate: ceiling });
  if (isNumber(upper) && !meets) wanted.push({ text: "upper bound", rate: upper });
  if (isNumber(last.feasible)) wanted.push({ text: width < NARROW ? "foresight" : "with foresight", rate: last.feasible });
  const places = spread(wanted.map((name) => y(name.rate)), NAME_GAP, frame.top + 2, frame.bottom - 2);
  const room = Math.floor((width - frame.right - 14) / 7.3);
  return wanted.map((name, i) => {
    const leader = svg("path", { class: "leader", d: `M${frame.right - 8} ${y(name.rate)}H${frame.right}L${frame.right + 11} ${places[i]}` });
    const style = name.color ? `--color: ${name.color}; font-weight: ${name.weight}` : null;
    const attributes = { class: name.color ? "name policy-name" : "name", x: frame.right + 14, y: places[i] + 4, style };
    return svg("g", {}, leader, svg("text", attributes, shortened(name.text, room), svg("title", {}, name.text)));
  });
}

function points(rates, x, y) {
  return rates.map((rate, i) => (isNumber(rate) ? [x[i], y(rate)] : null)).filter((point) => point !== null);
}

function shortened(text, room) {
  return text.length > room ? `${text.slice(0, room - 1)}…` : text;
}

function isNumber(value) {
  return typeof value === "number";
}
