// Making elements. All text goes in as text.

export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

export function polyline(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

const SHAPES = [
  (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
  (r) => `M${-r} ${-r}H${r}V${r}H${-r}Z`,
  (r) => `M0 ${-1.3 * r}L${1.2 * r} ${0.9 * r}H${-1.2 * r}Z`,
  (r) => `M0 ${-1.35 * r}L${1.35 * r} 0L0 ${1.35 * r}L${-1.35 * r} 0Z`,
  (r) => `M0 ${1.3 * r}L${1.2 * r} ${-0.9 * r}H${-1.2 * r}Z`,
  (r) => `M${-r} ${-r}L${r} ${r}M${r} ${-r}L${-r} ${r}`,
  (r) => `M${-1.2 * r} 0H${1.2 * r}M0 ${-1.2 * r}V${1.2 * r}`,
];

/** What tells a line from others without its colour. */
export function mark(number, x, y, r, on) {
  const shape = SHAPES[number % SHAPES.length](r);
  return svg("path", { class: on ? "mark on" : "mark", d: shape, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` });
}
