// The picture of the prefix tree: one bar for each run of tokens, one mark for each state along it.

import { byId, el, svg } from "./dom.js";
import { bytes, count, plural } from "./format.js";
import { BAR, layout, SHAPES, without } from "./tree.js";

const LEGEND = [
  ["boundary", "state at a message's edge"],
  ["end", "at a prompt's or answer's end"],
  ["junction", "where prompts parted"],
  ["breakpoint", "client's breakpoint"],
  ["grid", "at the interval"],
  ["none", "none: thinned, or never made"],
];

export class TreeView {
  constructor() {
    this.box = byId("tree");
    this.selected = null;
    this.told = null;
    this.box.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#draw()).observe(this.box);
  }

  /** Shows what GET /cache told. */
  show(told) {
    if (told.policy.grid_tokens !== this.told?.policy.grid_tokens) showLegend(Boolean(told.policy.grid_tokens));
    this.told = told;
    this.#draw();
  }

  #draw() {
    if (!this.told) return;
    const { tree, policy } = this.told;
    byId("tree-about").textContent = tree?.num_nodes ? about(tree) : "";
    if (!tree?.nodes.length) {
      const words = tree ? "Nothing is known yet." : "The tree is shown to the operator's key alone.";
      this.box.replaceChildren(el("p", { class: "empty" }, words));
      return;
    }
    const width = Math.max(240, this.box.clientWidth);
    const picture = layout(tree, policy, width);
    const focused = this.box.contains(document.activeElement);
    const keys = picture.bars.map(({ node }) => keyOf(node));
    if (!keys.includes(this.selected)) this.selected = null;
    const reachable = this.selected ?? keys[0];
    const root = svg("svg", { width, height: picture.height, role: "tree", "aria-labelledby": "tree-title" });
    for (const { at, x } of picture.ticks) root.append(...tick(at, x, picture.height));
    for (const { scope, y } of picture.scopes) root.append(svg("text", { x: 8, y }, `scope ${scope}`));
    for (const d of picture.links) root.append(svg("path", { class: "link", d }));
    for (const bar of picture.bars) root.append(this.#node(bar, keyOf(bar.node) === reachable));
    root.append(...picture.bars.flatMap(marksOf)); // above all bars: a state may stand where the next bar begins
    this.box.replaceChildren(root);
    if (focused) root.querySelector(".node[tabindex='0']")?.focus({ preventScroll: true });
    this.#tell(picture.bars.find(({ node }) => keyOf(node) === this.selected)?.node);
  }

  #node({ node, x, y, width }, reachable) {
    const key = keyOf(node);
    const classes = ["node", node.leaves > 1 && "shared", node.users && "used", node.pinned && "pinned"];
    const group = svg("g", {
      class: classes.filter(Boolean).join(" "),
      role: "treeitem",
      tabindex: reachable ? "0" : "-1",
      "aria-selected": String(key === this.selected),
      "aria-label": describe(node, this.told.policy).join(", "),
      "data-key": key,
      onclick: () => this.#select(key),
    });
    group.append(svg("rect", { class: "reach", x: x - 3, y: y - 6, width: width + 6, height: BAR + 12, rx: 4 }));
    group.append(svg("rect", { class: "bar", x, y, width, height: BAR, rx: 2 }));
    if (node.hits && !node.children.length) group.append(svg("text", { x: x + width + 8, y: y + BAR - 1 }, `×${count(node.hits)}`));
    return group;
  }

  #select(key) {
    this.selected = key;
    this.#draw();
    this.box.querySelector(".node[tabindex='0']")?.focus({ preventScroll: true });
  }

  #key(event) {
    const nodes = [...this.box.querySelectorAll(".node")];
    const at = nodes.findIndex((node) => node === document.activeElement);
    if (at < 0) return;
    const to = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: nodes.length - 1 }[event.key];
    if (to === undefined && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    const chosen = nodes[Math.min(Math.max(to ?? at, 0), nodes.length - 1)];
    this.#select(chosen.dataset.key);
    this.box.querySelector(".node[tabindex='0']")?.scrollIntoView({ block: "nearest" });
  }

  #tell(node) {
    const words = node ? describe(node, this.told.policy).join(" · ") : "Choose a part of the tree to read about it.";
    const place = byId("tree-node");
    if (place.textContent !== words) place.textContent = words; // else it would be read out again and again
  }
}

/** The same part of the tree in the next picture; numbers of nodes change. */
function keyOf(node) {
  return `${node.scope}/${node.start}/${node.end}/${node.parent}`;
}

function about(tree) {
  const whose = tree.shows === "own" ? " of this key" : tree.num_scopes > 1 ? ` in ${count(tree.num_scopes)} scopes` : "";
  const hidden = tree.left_out ? `, ${count(tree.left_out)} more not shown` : "";
  return `${plural(tree.nodes.length, "part")}${whose}${hidden}`;
}

function describe(node, policy) {
  const missing = without(node, policy).length;
  return [
    `tokens ${count(node.start)} to ${count(node.end)}`,
    node.leaves > 1 ? `shared by ${plural(node.leaves, "continuation")}` : "nothing shares it",
    `found whole ${plural(node.hits, "time")}`,
    node.users ? `in use by ${plural(node.users, "request")}` : null,
    node.pinned ? `pinned by ${plural(node.pinned, "prefix").replace("prefixs", "prefixes")}` : null,
    policy.grid_tokens ? plural(node.num_checkpoints, "state") : null,
    missing ? `${plural(missing, "place")} without one` : null,
    bytes(node.num_bytes),
  ].filter(Boolean);
}

function tick(at, x, height) {
  const end = x < 20 ? "start" : "middle";
  return [
    svg("line", { class: "tick", x1: x, x2: x, y1: 20, y2: height }),
    svg("text", { x: x < 20 ? 6 : x, y: 14, "text-anchor": end }, count(at)),
  ];
}

function marksOf({ marks }) {
  return Object.keys(SHAPES).filter((kind) => marks[kind]).map((kind) => mark(kind, marks[kind]));
}

function mark(kind, d) {
  return svg("path", { class: `mark ${kind}`, d });
}

function showLegend(withStates) {
  const marks = withStates ? LEGEND : [];
  byId("legend").replaceChildren(...bars(), ...marks.map(([kind, words]) => entry(mark(kind, SHAPES[kind](8, 8)), words)));
}

function bars() {
  const bar = (name) => svg("rect", { class: `bar ${name}`, x: 1, y: 4, width: 14, height: 8, rx: 2 });
  return [
    entry(bar("shared"), "shared tokens"),
    entry(bar(""), "of one alone"),
    entry(bar("pinned"), "pinned"),
    el("li", {}, "×3 found whole so often"),
  ];
}

function entry(shape, words) {
  return el("li", {}, svg("svg", { width: 16, height: 16, "aria-hidden": "true" }, shape), words);
}
