// Numbers to places and to words. Nothing here knows the page.

/** A function from a number to a place: [from, to] of numbers lies on [start, end] of places. */
export function linear(from, to, start, end) {
  const slope = to === from ? 0 : (end - start) / (to - from);
  return (value) => start + (value - from) * slope;
}

/** The same for numbers above 0, where equal factors are equal distances. */
export function logarithmic(from, to, start, end) {
  const place = linear(Math.log(from), Math.log(to), start, end);
  return (value) => (from === to ? (start + end) / 2 : place(Math.log(value)));
}

/** About `count` round numbers from the last one not above `low` to the first one not below `top`. */
export function ticks(top, count, low = 0) {
  if (!(top > low)) return [0, 1];
  const rough = (top - low) / count;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * unit).find((one) => one >= rough * 0.999);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(top / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}

/** Places at least `gap` apart and within [least, most], near those wanted and in their order. */
export function spread(wanted, gap, least, most) {
  const order = wanted.map((_, i) => i).sort((a, b) => wanted[a] - wanted[b]);
  const places = [];
  for (const i of order) places.push(Math.max(wanted[i], (places.at(-1) ?? least - gap) + gap));
  for (let i = places.length - 1, limit = most; i >= 0; i--, limit = places[i + 1] - gap) places[i] = Math.min(places[i], limit);
  const found = [];
  order.forEach((i, at) => (found[i] = places[at]));
  return found;
}

const SPACE = "\u00a0";

/** A share as percent: with one decimal where shares differ little or are small. */
export function percent(share) {
  const value = share * 100;
  const whole = (value >= 9.95 && value < 89.95) || value === 0 || value === 100;
  return `${value.toFixed(whole ? 0 : 1)}${SPACE}%`;
}

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function bytes(number) {
  return scaled(number, UNITS);
}

export function count(number) {
  return scaled(number, ["", "K", "M", "G"]);
}

function scaled(number, units) {
  let unit = 0;
  let value = number;
  while (Math.abs(value) >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const digits = unit === 0 || value >= 99.5 ? 0 : value >= 9.95 ? 1 : 2;
  return `${value.toFixed(digits).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "")}${units[unit] && SPACE}${units[unit]}`;
}

const TIMES = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

export function duration(seconds) {
  const [name, size] = TIMES.find(([, one]) => seconds >= one) ?? ["ms", 0.001];
  const value = seconds / size;
  return `${value.toFixed(value < 9.95 && name !== "ms" ? 1 : 0)}${SPACE}${name}`;
}

const WORDS = { d: "days", h: "hours", min: "minutes", s: "seconds" };

/** The unit in which a length of time is best counted, and its seconds. */
export function clock(seconds) {
  const [name, size] = TIMES.find(([, one]) => seconds >= one * 2) ?? ["s", 1];
  return [WORDS[name], size];
}
