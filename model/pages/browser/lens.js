// The lens (nostalgebraist 2020): what the model would predict if it stopped after each sub-layer. A table of
// sub-layers by positions with the likeliest next token in each cell.

import { ARROWS, clamp, element, onKeys } from "browser/elements.js";
import { isDark, rgb } from "browser/maps.js";
import { share } from "browser/surprise.js";
import { decimal, quote, visible } from "browser/words.js";

export const COLOURINGS = [
  ["probability", "true token", "Colour: the probability of the true next token, on a square-root scale"],
  ["divergence", "distance", "Colour: the distance (KL divergence) to the final prediction, in bits"],
];

// measured: what a capture measured of one probe, see surprise.js.
export function lensCell({ lens, tokens, sublayers, labels }, row, token) {
  const id = lens.token[row][token];
  const cell = {
    text: id === null ? null : tokens[id] ?? `token ${id}`,
    probability: lens.probability[row][token], divergence: lens.divergence[row][token],
  };
  const next = labels[token + 1];
  const truth = next === undefined ? "" : `, the true next token ${quote(next)} gets ${share(cell.probability)}`;
  const bits = `${decimal(cell.divergence, 1)} bits from the final prediction`;
  const distance = row === sublayers.length - 1 ? "the final prediction" : bits;
  const guess = `likeliest next ${cell.text === null ? "–" : quote(cell.text)}`;
  return { ...cell, sentence: `After ${sublayers[row]}, reading ${token} ${quote(labels[token])}: ${guess}${truth}; ${distance}.` };
}

// From 0 to 1: how deep a cell's colour is. Distances are shares of the largest in the table.
export const strength = (colouring, cell, largest) =>
  colouring === "probability" ? Math.sqrt(cell.probability ?? 0) : largest > 0 ? (cell.divergence ?? 0) / largest : 0;

export const largestDivergence = ({ lens }) => Math.max(0, ...lens.divergence.flat());

export function lensRows(measured) {
  const { sublayers, labels } = measured;
  return sublayers.flatMap((sublayer, row) => labels.map((token, position) => {
    const { text: likeliest, probability, divergence } = lensCell(measured, row, position);
    return { sublayer, position, token, next_token: labels[position + 1], likeliest, probability, divergence };
  }));
}

// ---- drawing

// Adds a table to a parent and returns the function that fills it with
// { measured, colouring, colours, token, name }. `choose` is called with the token of a cell, where it is given.
export function createLens(parent, choose) {
  const readout = element("p", { className: "soft readout" });
  readout.setAttribute("aria-live", "polite");
  const head = element("tr", {}, element("th", { textContent: "reads", scope: "row" }));
  const foot = element("tr", {}, element("th", { textContent: "true next", scope: "row" }));
  const body = element("tbody");
  const table = element("table", { className: "lens" }, element("thead", {}, head), body, element("tfoot", {}, foot));
  const box = element("div", { className: "wide" }, table);
  parent.append(readout, box);
  let view = null;
  let cells = []; // by sub-layer and position
  const focused = { row: 0, token: 0 }; // the one cell that the tab key reaches

  // Rows of the sub-layers, and columns of the tokens.
  function build() {
    const { sublayers, labels } = view.measured;
    const write = (label) => (label === undefined ? "" : visible(label, 8) || "∅");
    const newCell = (row, token) => element("td", { tabIndex: -1, dataset: { row, token } });
    cells = sublayers.map((_, row) => labels.map((_, token) => newCell(row, token)));
    body.replaceChildren(...sublayers.map((textContent, row) =>
      element("tr", {}, element("th", { scope: "row", textContent }), ...cells[row])));
    const heading = (label, i) => element("th", { scope: "col", textContent: write(label), title: `${i} ${visible(label, 60)}` });
    head.replaceChildren(head.firstChild, ...labels.map(heading));
    foot.replaceChildren(foot.firstChild, ...labels.map((_, i) => element("th", { textContent: write(labels[i + 1]) })));
    Object.assign(focused, { row: cells.length - 1, token: clamp(focused.token, labels.length - 1) });
    cells[focused.row][focused.token].tabIndex = 0;
  }

  function fill() {
    const { measured, colouring, colours, name } = view;
    const keys = `arrow keys move${choose ? ", enter chooses the token" : ""}`;
    table.setAttribute("aria-label", `${name}: the likeliest next token after each sub-layer; ${keys}`);
    const largest = largestDivergence(measured);
    for (const [row, line] of cells.entries())
      for (const [token, cell] of line.entries()) {
        const found = lensCell(measured, row, token);
        const colour = colours[Math.round(255 * Math.min(1, strength(colouring, found, largest)))];
        cell.classList.toggle("chosen", token === view.token);
        cell.textContent = found.text === null ? "–" : visible(found.text, 8) || "∅";
        Object.assign(cell.style, { background: rgb(colour), color: isDark(colour) ? "#ffffff" : "#14181e" });
      }
    readout.textContent = `Point at a cell to read it${choose ? "; click to choose its token" : ""}.`;
  }

  const cellAt = (target) => target.closest?.("td");
  const read = ({ target }) => {
    const { row, token } = cellAt(target)?.dataset ?? {};
    if (row) readout.textContent = lensCell(view.measured, Number(row), Number(token)).sentence;
  };
  const pick = ({ target }) => choose && cellAt(target) && choose(Number(cellAt(target).dataset.token));
  table.addEventListener("pointerover", read);
  table.addEventListener("focusin", read);
  table.addEventListener("click", pick);
  onKeys(table, ARROWS, ([down, right]) => {
    cells[focused.row][focused.token].tabIndex = -1;
    focused.row = clamp(focused.row + down, cells.length - 1);
    focused.token = clamp(focused.token + right, view.measured.labels.length - 1);
    const cell = cells[focused.row][focused.token];
    cell.tabIndex = 0;
    cell.focus();
  }, pick);

  return (next) => {
    const shape = ({ measured: { labels, sublayers } }) => JSON.stringify([labels, sublayers]);
    const same = view && shape(view) === shape(next);
    const moved = view?.token !== next.token;
    view = next;
    if (!same) build();
    fill();
    if (moved && next.token !== null) {
      const cell = cells[0][next.token];
      box.scrollLeft = cell.offsetLeft - box.clientWidth / 2;
    }
  };
}
