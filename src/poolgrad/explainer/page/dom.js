// Builds HTML and SVG elements.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/** An HTML element with attributes, properties (functions, booleans) and children. */
export function html(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

/** Sets attributes; null and false remove one, so that a repaint leaves nothing behind. */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element[name] = value;
    else if (value === null || value === false || value === undefined) element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  }
  return element;
}

function filled(element, attributes, children) {
  set(element, attributes);
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== ""));
  return element;
}

export const byId = (id) => document.getElementById(id);
