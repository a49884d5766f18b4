// The logit lens (nostalgebraist 2020): what the model would predict if it stopped after each sub-layer. A table with a
// row for each sub-layer, a column for each position, and the likeliest next token in each cell.

import { createCells, element, tableRow } from "browser/elements.js";
import { inkOn, rgb } from "browser/maps.js";
import { decimal, percent, quote, visible } from "browser/words.js";

function lensCell({ lens, tokens, sublayers, labels }, row, token) {
  const [probability, divergence] = [lens.probability[row][token], lens.divergence[row][token]];
  const text = tokens[lens.token[row][token]] ?? null;
  const next = labels[token + 1];
  const truth = next === undefined ? "" : `; the true one, ${quote(next)}, gets ${percent(probability)}`;
  const bits = `${decimal(divergence, 1)} bits from the final prediction`;
  const distance = row === sublayers.length - 1 ? "the final prediction" : bits;
  const guess = `the likeliest next token is ${text === null ? "–" : quote(text)}`;
  const place = `After ${sublayers[row]}, at token ${token} ${quote(labels[token])}`;
  return { text, probability, sentence: `${place}: ${guess}${truth}; ${distance}.` };
}

// Adds an empty table to a parent, and returns the function that fills it from { measured, colours, token, name }. A
// click on a cell calls `choose` with its token.
export function createLens(parent, choose) {
  const readout = element("p", { className: "soft readout", ariaLive: "polite" });
  const [head, body, foot] = ["thead", "tbody", "tfoot"].map((name) => element(name));
  const table = element("table", { className: "lens" }, head, body, foot);
  const box = element("div", { className: "wide" }, table);
  parent.append(readout, box);
  const newCells = createCells(table, {
    read: (row, token) => (readout.textContent = lensCell(view.measured, row, token).sentence),
    choose: (_, token) => choose(token),
  });
  let view = null;
  let cells = []; // [sub-layer][position]

  function build() {
    const { sublayers, labels } = view.measured;
    const written = [...labels.map((label) => visible(label, 8) || "∅"), ""];
    const columns = labels.map((_, i) => element("th", { scope: "col" }, written[i]));
    const nexts = labels.map((_, i) => element("th", {}, written[i + 1]));
    head.replaceChildren(tableRow("reads", ...columns));
    foot.replaceChildren(tableRow("true next", ...nexts));
    cells = newCells(sublayers, labels.length, sublayers.length - 1);
    readout.textContent = "Point at a cell to read it; click to choose its token.";
  }

  return (next) => {
    const { measured, colours, token: chosen, name } = next;
    const same = view?.measured.lens === measured.lens;
    const moved = view?.token !== chosen;
    view = next;
    if (!same) build();
    table.ariaLabel = `${name}: the likeliest next token after each sub-layer; arrows move, enter chooses the token`;
    for (const [row, line] of cells.entries())
      for (const [token, cell] of line.entries()) {
        const { text, probability } = lensCell(measured, row, token);
        const colour = colours[Math.round(255 * Math.sqrt(probability ?? 0))];
        cell.classList.toggle("chosen", token === chosen);
        cell.textContent = text === null ? "–" : visible(text, 8) || "∅";
        Object.assign(cell.style, { background: rgb(colour), color: inkOn(colour) });
      }
    if (moved && chosen !== null) box.scrollLeft = cells[0][chosen].offsetLeft - box.clientWidth / 2;
  };
}
