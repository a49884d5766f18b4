// A table with a cell for each row and token. To point at a cell or to go there with the arrow keys reads it; a click
// or enter chooses it.

import { ARROWS, clamp, element, onKeys } from "browser/elements.js";

// read(row, token) and choose(row, token) are called with the place of a cell. Returns the function that makes the rows
// of the table anew from their names and returns the cells by row and token. The tab key reaches the row `first`.
export function createCells(table, { read, choose }) {
  let cells = [];
  let [row, token] = [0, 0]; // of the one cell that the tab key reaches

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
    const rows = names.map((name, row) => element("tr", {}, element("th", { scope: "row" }, name), ...cells[row]));
    table.tBodies[0].replaceChildren(...rows);
    reach(first, token);
    return cells;
  };
}
