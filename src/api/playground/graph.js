// What a search found, drawn: the query, the phrases of the ways to its passages, and these, from left to right.
const WIDTH = 720;
const MARGIN = 16;
// Room for the passages' titles, beside them.
const TITLES = 190;

const viaOf = ({ hit }) => (hit.path.graph && hit.path.graph.via) || [];

// A node and an edge have what the passages have, together, whose likeliest way goes over them; a phrase stands where it
// is farthest from the query.
function graphOf(query, found) {
  const nodes = new Map();
  const edges = new Map();
  const walked = found.every(({ hit }) => hit.path.graph);
  const last = 1 + Math.max(0, ...found.map((one) => viaOf(one).length));
  const pass = (kind, name, layer, amount, place) => {
    const key = kind + " " + name;
    const node = nodes.get(key) || { kind, name, layer, number: nodes.size, amount: 0, places: new Set() };
    node.layer = Math.max(node.layer, layer);
    node.amount += amount;
    node.places.add(place);
    nodes.set(key, node);
    return node;
  };
  const asked = pass("query", query, 0, 0, 0);
  found.forEach((one, place) => {
    const amount = Math.max(0, walked ? one.hit.path.graph.mass : one.hit.score);
    const phrases = viaOf(one).map(({ phrase }, index) => pass("phrase", phrase, index + 1, amount, place));
    const passage = pass("passage", place, last, amount, place);
    passage.one = one;
    asked.amount += amount;
    let from = asked;
    for (const to of [...phrases, passage]) {
      const key = from.number + " " + to.number;
      const edge = edges.get(key) || { from, to, amount: 0 };
      edge.amount += amount;
      edges.set(key, edge);
      from = to;
    }
  });
  const share = (amount) => (asked.amount ? amount / asked.amount : 0);
  for (const part of [...nodes.values(), ...edges.values()]) part.share = share(part.amount);
  return { nodes: [...nodes.values()], edges: [...edges.values()], last };
}

// Gives each node its place: a column for each layer, in it those above that lead to better passages.
function arrange(nodes, last) {
  const layers = Array.from({ length: last + 1 }, (_, layer) => nodes.filter((node) => node.layer === layer));
  const height = Math.max(70, ...layers.map((layer, index) => layer.length * (index === last ? 26 : 44)));
  const gap = (WIDTH - TITLES - MARGIN) / last;
  const mean = ({ places }) => [...places].reduce((sum, place) => sum + place, 0) / places.size;
  for (const layer of layers) {
    layer.sort((one, other) => mean(one) - mean(other));
    layer.forEach((node, index) => {
      node.x = MARGIN + gap * node.layer;
      node.y = height * (index + 0.5) / layer.length;
      node.r = 3 + 10 * Math.sqrt(node.share);
    });
  }
  return { height, gap };
}

// As much of a text as there is room for, in letters; those of Chinese, Japanese and Korean are twice as wide.
function cut(text, room) {
  let left = room;
  let held = "";
  for (const letter of text) {
    left -= letter > "\u2e7f" ? 2 : 1;
    if (left < 0) return held.trimEnd() + "\u2026";
    held += letter;
  }
  return held;
}

// What a node is, whole: its label may be cut.
function aboutOf({ kind, name, places, one }) {
  if (kind === "passage") return [one.title, round(one.hit.score), pathOf(one.hit.path)].filter(Boolean).join(" \u00b7 ");
  if (kind === "phrase") return name + " \u00b7 leads to " + places.size + (places.size === 1 ? " passage" : " passages");
  return name;
}

function labelOf({ kind, name, x, y, r, one }, gap) {
  const room = Math.floor(gap / 7);
  if (kind === "passage") return shape("text", { x: x + r + 5, y: y + 4 }, cut(one.title, 25));
  if (kind === "phrase") return shape("text", { x, y: y - r - 4, "text-anchor": "middle" }, cut(name, room));
  return shape("text", { x: 2, y: y - r - 4 }, cut(name, room - 5));
}

function nodeOf(node, gap) {
  const { kind, x, y, r, one } = node;
  const about = aboutOf(node);
  const attributes = { class: "node " + kind, role: one ? "button" : "img", "aria-label": about };
  const made = shape("g", attributes, shape("title", {}, about), shape("circle", { cx: x, cy: y, r }), labelOf(node, gap));
  if (!one) return made;
  one.node = made;
  made.setAttribute("tabindex", "0");
  made.addEventListener("click", () => reveal(one));
  made.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    reveal(one);
  });
  return made;
}

function edgeOf({ from, to, share }, gap) {
  const bend = Math.max(Math.abs(to.x - from.x) / 2, gap / 3);
  const d = ["M", from.x, from.y, "C", from.x + bend, from.y, to.x - bend, to.y, to.x, to.y].join(" ");
  return shape("path", { class: "edge", d, "stroke-width": 1 + 7 * share });
}

// Opens a passage in the list.
function reveal({ item, details }) {
  details.open = true;
  item.scrollIntoView({ block: "center" });
  details.firstChild.focus();
}

// Draws into `figure` what a search has found, in the place of what is there.
function draw(figure, title, query, found) {
  const { nodes, edges, last } = graphOf(query, found);
  const { height, gap } = arrange(nodes, last);
  // Labels stand above their nodes, the first row's too.
  const attributes = { viewBox: ["0 -14", WIDTH, height + 18].join(" "), role: "group", "aria-label": "Evidence graph" };
  const lines = shape("g", { "aria-hidden": "true" }, ...edges.map((edge) => edgeOf(edge, gap)));
  const svg = shape("svg", attributes, lines, ...nodes.map((node) => nodeOf(node, gap)));
  figure.replaceChildren(element("figcaption", "", title), svg);
}

// Room for another graph, with nothing but its query yet.
function sketch(title, query) {
  const figure = element("figure");
  const evidence = field("evidence");
  draw(figure, title, query, []);
  graphs.append(figure);
  evidence.hidden = false;
  evidence.scrollTop = evidence.scrollHeight;
  return figure;
}
