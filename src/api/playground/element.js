"use strict";
// Everything that comes over the wire or out of a file is put into the page as text, by `textContent` and `append` alone.
const field = (id) => document.getElementById(id);
const trace = field("trace");
const graphs = field("graphs");
// The page names no address, not even that of a namespace: it asks its own markup for it.
const DRAWING = field("drawing").content.firstElementChild.namespaceURI;

function element(name, kind, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
}

// A part of a drawing.
function shape(name, attributes, ...children) {
  const made = document.createElementNS(DRAWING, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function step(kind, title) {
  const made = element("section", "step " + kind);
  made.append(element("h2", "", title));
  trace.append(made);
  return made;
}

const round = (number) => Number(number.toPrecision(3)).toString();
