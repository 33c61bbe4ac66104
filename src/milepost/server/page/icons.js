// The drawings on buttons, 16 pixels square, in lines.

import { svg } from "./dom.js";

const PATHS = {
  before: "M10 3.5 5.5 8l4.5 4.5",
  after: "M6 3.5 10.5 8 6 12.5",
  edit: "M10.8 2.7 13.3 5.2 5.6 12.9 2.6 13.4 3.1 10.4zM9.3 4.2l2.5 2.5",
  again: "M13 8a5 5 0 1 1-1.6-3.7M13.2 2v3h-3",
  copy: "M6 5.5h7.5v8H6zM3.5 10.5h-1v-8H10v1",
};

export function icon(name) {
  return svg("svg", { class: "icon", width: 16, height: 16, "aria-hidden": "true" }, svg("path", { d: PATHS[name] }));
}

