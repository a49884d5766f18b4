// Small helpers to make and find elements. Text from outside is only ever set as text, never parsed as markup.

import { codePoint, cut, decimal, HIDDEN } from "browser/words.js";

export const $ = (id) => document.getElementById(id);
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
export const clamp = (i, last) => Math.max(0, Math.min(last, i));
export const systemTheme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";

// What the arrow keys add to a row and a column.
export const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

// The item for which `distance` is smallest; the first of them.
export const closest = (items, distance) => items.reduce((best, item) => (distance(item) < distance(best) ? item : best));

export function element(name, fields = {}, ...children) {
  const { style, ...others } = fields;
  const node = Object.assign(document.createElement(name), others);
  Object.assign(node.style, style);
  node.append(...children);
  return node;
}

// A change and what it leads to, such as "rises by 2.76" in bold and " to 4.67". Two numbers and not three, because rounded
// ones need not add up.
export function changeTo(before, after) {
  const size = decimal(Math.abs(after - before));
  const stays = Number(size) === 0;
  const verb = stays ? "stays" : `${after > before ? "rises" : "falls"} by ${size}`;
  return [element("b", { textContent: verb }), ` ${stays ? "at" : "to"} ${decimal(after)}`];
}

// A text as one span a token, each with its position in data-index. Line ends stay line ends, and get a visible sign.
export function tokenSpans(labels) {
  return labels.map((label, index) => {
    const text = cut(label, 60).replace(HIDDEN, (c) => (c === "\n" ? "↵\n" : codePoint(c)));
    const span = element("span", { textContent: text || "∅" });
    span.dataset.index = index;
    return span;
  });
}

// Buttons of which one is pressed. Each has its value in data-value, and a click calls `choose` with the value.
export function choices(parent, options, choose) {
  for (const [value, text] of options) {
    const button = element("button", { textContent: text });
    button.dataset.value = value;
    button.addEventListener("click", () => choose(value));
    parent.append(button);
  }
}

export function press(parent, value) {
  for (const button of parent.children) button.setAttribute("aria-pressed", button.dataset.value === String(value));
}
