// Where the parts of the prefix tree stand in its picture. From left to right are tokens; no DOM here.

export const ROW = 26;
export const BAR = 10;
const LEFT = 8;
const RIGHT = 44;
const TOP = 26;
const SCOPE = 22;

/** Places of a picture of `tree` (GET /cache), `width` wide: {height, bars, links, ticks, scopes}, in its pixels. */
export function layout(tree, policy, width) {
  const nodes = tree.nodes.map((node) => ({ ...node, children: [] }));
  const byNumber = new Map(nodes.map((node) => [node.node, node]));
  for (const node of nodes) byNumber.get(node.parent)?.children.push(node);
  for (const node of [...nodes].reverse()) weigh(node);
  const roots = nodes.filter((node) => !byNumber.has(node.parent));
  roots.sort((one, other) => one.scope - other.scope || other.weight - one.weight);

  const last = Math.max(1, ...nodes.map((node) => node.end));
  const scale = (position) => LEFT + (position / last) * (width - LEFT - RIGHT);
  const picture = { bars: [], links: [], scopes: [], ticks: ticks(last, width).map((at) => ({ at, x: scale(at) })) };
  const manyScopes = new Set(nodes.map((node) => node.scope)).size > 1;
  let y = TOP;
  let scope = null;
  for (const root of roots) {
    if (manyScopes && root.scope !== scope) {
      picture.scopes.push({ scope: root.scope, y: y + 12 });
      y += SCOPE;
    }
    scope = root.scope;
    y = place(root, y, null, picture, scale, policy) + ROW;
  }
  return { ...picture, height: y + 4 };
}

/** A node weighs what it and all that goes on from it hold; the heaviest continuation stays in its row. */
function weigh(node) {
  node.weight = node.num_bytes + node.children.reduce((sum, child) => sum + child.weight, 0);
  node.leaves = node.children.reduce((sum, child) => sum + child.leaves, 0) || 1;
  node.children.sort((one, other) => other.weight - one.weight);
}

/** Puts `node` and what follows it into rows from `y` on; returns the last one's. */
function place(node, y, from, picture, scale, policy) {
  const x = scale(node.start);
  const bar = { node, x, y, width: Math.max(2, scale(node.end) - x - 1), marks: marks(node, y + BAR / 2, scale, policy) };
  picture.bars.push(bar);
  if (from && from.y !== y) picture.links.push(elbow(from, bar));
  let row = y;
  node.children.forEach((child, number) => {
    row = place(child, number ? row + ROW : y, bar, picture, scale, policy);
  });
  return row;
}

function elbow(from, to) {
  const [top, bottom, x] = [from.y + BAR, to.y + BAR / 2, round(to.x - 4)];
  return `M${x} ${round(top)}V${round(bottom - 4)}q0 4 4 4`;
}

/** One path for each kind of checkpoint, and for the places of the grid that have none. */
function marks(node, y, scale, policy) {
  const paths = {};
  const add = (kind, position) => {
    paths[kind] = (paths[kind] ?? "") + SHAPES[kind](round(scale(position)), round(y));
  };
  for (const { position, kind } of node.checkpoints) add(kind in SHAPES ? kind : "grid", position);
  for (const position of without(node, policy)) add("none", position);
  return paths;
}

const circle = (r) => (x, y) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;

/** What marks a state, by why it is kept; "none": a place where one would be kept and none is. */
export const SHAPES = {
  grid: circle(1.7),
  none: circle(2.2),
  end: (x, y) => `M${x - 3.5} ${y - 3.5}h7v7h-7z`,
  boundary: circle(4),
  junction: (x, y) => `M${x} ${y - 5}l5 8.6h-10z`,
  breakpoint: (x, y) => `M${x} ${y - 5.5}l5.5 5.5l-5.5 5.5l-5.5 -5.5z`,
};

/** Places of a node where the policy keeps a state and none is: given up for want of memory, or not made. Of a node
 * with more states than are listed, those before the listed ones are not known. */
export function without(node, policy) {
  const step = policy.retention_interval === "dense" ? policy.grid_tokens : policy.retention_interval;
  if (!step) return [];
  const listed = new Set(node.checkpoints.map(({ position }) => position));
  const grid = node.checkpoints.filter(({ kind }) => kind === "grid").map(({ position }) => position);
  const whole = node.num_checkpoints === listed.size;
  const found = [];
  const first = whole ? node.start + 1 : Math.min(...grid, node.end + 1);
  for (let at = Math.ceil(first / step) * step; at <= node.end; at += step) if (!listed.has(at)) found.push(at);
  return found;
}

function ticks(last, width) {
  const wanted = Math.max(2, Math.floor(width / 90));
  const raw = last / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
  const found = [];
  for (let at = 0; at <= last; at += step) found.push(at);
  return found;
}

function round(number) {
  return Math.round(number * 10) / 10;
}
