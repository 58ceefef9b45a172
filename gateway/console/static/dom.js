// Elements of the page.
const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/**
 * Creates an element (`h` as in hyperscript). Strings become text nodes, so input is never parsed as HTML.
 * Tags of SVG begin with "svg:". Attributes that are null, undefined or false are left out; those that begin
 * with "on" are event listeners.
 */
export function h(tag, attributes = {}, ...children) {
  const element = createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    setAttribute(element, name, value);
  }
  return append(element, ...children);
}

function createElement(tag) {
  if (tag.startsWith("svg:")) return document.createElementNS(SVG_NAMESPACE, tag.slice(4));
  return document.createElement(tag);
}

function setAttribute(element, name, value) {
  if (name.startsWith("on")) {
    element.addEventListener(name.slice(2), value);
  } else if (name === "style") {
    Object.assign(element.style, value); // the content security policy forbids the attribute
  } else if (value === true) {
    element.setAttribute(name, "");
  } else if (value !== false && value != null) {
    element.setAttribute(name, value);
  }
}

/** Appends children, flattening lists and skipping null, undefined and false. */
export function append(parent, ...children) {
  const present = children.flat(Infinity).filter((child) => child != null && child !== false);
  parent.append(...present);
  return parent;
}

/** Replaces the children of an element, with the rules of `append`. */
export function setChildren(parent, ...children) {
  parent.replaceChildren();
  return append(parent, ...children);
}
