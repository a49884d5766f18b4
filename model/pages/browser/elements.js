// Finds and makes elements. Text from the data is always set as text, never parsed as markup.

import { codePoint, cut, HIDDEN } from "browser/words.js";

export const $ = (id) => document.getElementById(id);
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
export const clamp = (i, last) => Math.max(0, Math.min(last, i));
export const systemTheme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";

// What each arrow key adds to a row and a column, and what the two horizontal ones add to a place in a line.
export const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
export const SIDEWAYS = { ArrowLeft: -1, ArrowRight: 1 };

// On each of the keys calls `move` with its value in `keys`, and stops the event; on enter calls `choose`.
export function onKeys(node, keys, move, choose = () => {}) {
  node.addEventListener("keydown", (event) => {
    if (event.key === "Enter") choose(event);
    if (!(event.key in keys)) return;
    move(keys[event.key]);
    event.preventDefault();
    event.stopPropagation();
  });
}

// The item with the smallest distance; of several, the first.
export const closest = (items, distance) =>
  items.reduce((best, item) => (distance(item) < distance(best) ? item : best));

export function element(name, { style, dataset, ...fields } = {}, ...children) {
  const node = Object.assign(document.createElement(name), fields);
  Object.assign(node.style, style);
  Object.assign(node.dataset, dataset);
  node.append(...children);
  return node;
}

export const button = (textContent, onclick) => element("button", { textContent, onclick });

const CONTROLS = "button:enabled, select, input, textarea, [tabindex='0']:not(dfn)";
const controlsOf = (parent) => [...parent.querySelectorAll(CONTROLS)].filter(({ offsetParent }) => offsetParent);

// Call this before elements change, and the function that it returns afterwards. If the element with the focus has
// gone, the one that came to its place gets the focus, or else the first one in the same part of the page.
export function keepFocus() {
  const { activeElement: node } = document;
  const parent = node.parentElement.closest("[id], html");
  const place = controlsOf(parent).indexOf(node);
  return () => {
    if (place < 0 || node.offsetParent || document.activeElement.offsetParent) return;
    const here = controlsOf(parent);
    const next = here[clamp(place, here.length - 1)] ?? controlsOf(parent.closest("section, #kept-in-sight, body"))[0];
    next?.focus({ preventScroll: true });
  };
}

// A bar for each share of 1, and a tick at another share if it is given.
export function track(shares, tick) {
  const bars = shares.map((share) => element("i", { style: { width: `${100 * share}%` } }));
  const ticks = tick === undefined ? [] : [element("u", { style: { left: `calc(${100 * tick}% - 1px)` } })];
  return element("span", { className: "track" }, ...bars, ...ticks);
}

export function tableHead(titles) {
  const cells = titles.map((title) => element("th", { scope: "col" }, title));
  return element("thead", {}, element("tr", {}, ...cells));
}

export const tableRow = (name, ...cells) => element("tr", {}, element("th", { scope: "row" }, name), ...cells);

// One span for each token, with its position in data-index. Line breaks stay, after a visible sign.
export function tokenSpans(labels) {
  return labels.map((label, index) => {
    const text = cut(label, 60).replace(HIDDEN, (c) => (c === "\n" ? "↵\n" : codePoint(c)));
    return element("span", { textContent: text || "∅", dataset: { index } });
  });
}

// Fills a table with a cell for each row and token. Pointing at a cell, or moving to it with the arrow keys, calls
// read(row, token); a click or enter calls choose(row, token). Returns a function (names, length, first) that replaces
// the rows of the table by rows with these names, and returns the cells by row and token. The tab key reaches a cell of
// the row `first`.
export function createCells(table, { read, choose }) {
  let cells = [];
  let [row, token] = [0, 0]; // the cell that the tab key reaches

  function reach(newRow, newToken) {
    const before = cells[row]?.[token];
    if (before) before.tabIndex = -1;
    [row, token] = [clamp(newRow, cells.length - 1), clamp(newToken, cells[0].length - 1)];
    cells[row][token].tabIndex = 0;
  }

  const withPlace = (use) => ({ target }) => {
    const place = target.closest("td")?.dataset;
    if (place) use(Number(place.row), Number(place.token));
  };
  table.addEventListener("pointerover", withPlace(read));
  table.addEventListener("focusin", withPlace((...place) => (reach(...place), read(...place))));
  table.addEventListener("click", withPlace(choose));
  onKeys(table, ARROWS, ([down, right]) => {
    reach(row + down, token + right);
    cells[row][token].focus();
  }, () => choose(row, token));

  return (names, length, first) => {
    const newCell = (row, token) => element("td", { tabIndex: -1, dataset: { row, token } });
    cells = names.map((_, row) => Array.from({ length }, (_, token) => newCell(row, token)));
    table.tBodies[0].replaceChildren(...names.map((name, row) => tableRow(name, ...cells[row])));
    reach(first, token);
    return cells;
  };
}
