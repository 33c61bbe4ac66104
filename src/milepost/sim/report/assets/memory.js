// The picture of what fills the memory over the trace's time, by kind.

import { bytes, clock, linear, ticks } from "./scales.js";
import { polyline, svg } from "./svg.js";

const HEIGHT = 230;
const MARGIN = { top: 20, bottom: 38, left: 62, right: 14 };
const KINDS = [["kv", "keys and values"], ["state", "recurrent states"]];

/** `samples`: [ms, bytes of keys and values, bytes of states], by time. `limit`: the budget in bytes. */
export function memoryChart({ samples, limit, width }) {
  const frame = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: HEIGHT - MARGIN.bottom };
  const [first, last] = [samples[0][0], samples.at(-1)[0]];
  const most = Math.max(...samples.map(([, kv, state]) => kv + state));
  const fills = most > limit * 0.2;
  const unit = 1000 ** Math.floor(Math.log10(Math.max(fills ? limit : most, 1)) / 3);
  const levels = ticks((fills ? limit : most) / unit, 4).map((level) => level * unit);
  const x = linear(first, last, frame.left, frame.right);
  const y = linear(0, levels.at(-1), frame.bottom, frame.top);
  const lower = samples.map(([time]) => [x(time), y(0)]);
  const middle = samples.map(([time, kv]) => [x(time), y(kv)]);
  const upper = samples.map(([time, kv, state]) => [x(time), y(kv + state)]);
  const [name, seconds] = clock((last - first) / 1000);
  const times = ticks((last - first) / 1000 / seconds, Math.max(2, Math.round(width / 130))).filter((one) => first + one * seconds * 1000 <= last);
  return svg(
    "svg",
    { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": "Bytes in the cache over time, by kind" },
    ...levels.map((level) => row(frame, y(level), bytes(level))),
    area("kv", middle, lower),
    area("state", upper, middle),
    ...(fills ? limitLine(frame, y(limit), limit) : []),
    ...times.map((time) => svg("text", { x: x(first + time * seconds * 1000), y: frame.bottom + 16, "text-anchor": "middle" }, round(time))),
    svg("text", { x: (frame.left + frame.right) / 2, y: frame.bottom + 32, "text-anchor": "middle" }, `time in ${name}`),
    ...names(samples, x, y, frame),
  );
}

function area(kind, above, below) {
  return svg("path", { class: kind, d: `${polyline(above)}${polyline([...below].reverse()).replace("M", "L")}Z` });
}

function row(frame, at, label) {
  const line = svg("line", { class: "grid", x1: frame.left, x2: frame.right, y1: at, y2: at });
  return svg("g", {}, line, svg("text", { x: frame.left - 6, y: at + 4, "text-anchor": "end" }, label));
}

function limitLine(frame, at, limit) {
  const label = svg("text", { class: "name", x: frame.right, y: at - 5, "text-anchor": "end" }, `budget ${bytes(limit)}`);
  return [svg("path", { class: "limit", d: `M${frame.left} ${at}H${frame.right}` }), label];
}

/** In each band where it fits best, if it fits; else named above. */
function names(samples, x, y, frame) {
  const thin = [];
  const inside = KINDS.flatMap(([kind, name], which) => {
    const band = samples.map(([time, kv, state]) => ({ x: x(time), low: y(which ? kv : 0), high: y(kv + (which ? state : 0)) }));
    const reach = name.length * 3.6;
    const places = band.filter((one) => one.x > frame.left + reach && one.x < frame.right - reach).map((one) => room(band, one.x, reach));
    const place = places.reduce((best, one) => (one.height > best.height + 1 ? one : best), { height: 0 });
    if (place.height > 16) return [svg("text", { class: "inside", x: place.x, y: place.middle + 4, "text-anchor": "middle" }, name)];
    if (band.some((one) => one.low > one.high)) thin.push(name);
    return [];
  });
  const beside = thin.length ? [svg("text", { x: frame.left + 4, y: frame.top - 6 }, `thin: ${thin.join(", ")}`)] : [];
  return [...inside, ...beside];
}

/** Of a band, what is free of its edges around `x`. */
function room(band, x, reach) {
  const near = band.filter((one) => Math.abs(one.x - x) <= reach);
  const low = Math.min(...near.map((one) => one.low));
  const high = Math.max(...near.map((one) => one.high));
  return { x, height: low - high, middle: (low + high) / 2 };
}

function round(value) {
  return String(Math.round(value * 100) / 100);
}
