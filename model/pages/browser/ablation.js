// What the model is without a part: the part is replaced by its mean, and the change of the loss is measured at each
// step, in nats per token. A part that is not missed did nothing that others cannot do. Thumbnails' numbers, a table.

import { $, element, tableHead } from "browser/elements.js";
import { downloadCsv } from "browser/export.js";
import { thumbs } from "browser/heads.js";
import { probeName, titleOf } from "browser/measurements.js";
import { addView, shown } from "browser/render.js";
import { data, headPart, RUNS } from "browser/state.js";
import { signed } from "browser/words.js";

const COLUMNS = { text: "on text", repeated: "on repetition", copying: "copying" };

// The change of the loss without one head; null if it is not a number.
export const withoutHead = ({ ablation }, probe, head) => ablation[probe][headPart(head)];

addView(function drawNumbers() {
  for (const [head, thumb] of thumbs.entries()) {
    const change = signed(withoutHead(shown.capture, probeName(), head));
    thumb.lastChild.textContent = change;
    thumb.ariaLabel += `, loss without it ${change} nats per token`;
  }
});

// The table, for one or two captures: the chosen head first, then the tables and the feed-forwards.
addView(function drawTable() {
  const { sides } = shown;
  const chosen = headPart(shown.head);
  const parts = sides.flatMap(({ capture }) => Object.keys(capture.ablation.text));
  const rows = [chosen, ...parts.filter((part) => !part.startsWith("head "))];
  const columns = Object.keys(COLUMNS).flatMap((column) => sides.map((side) => ({ column, side })));
  const cell = (part, { column, side: { capture } }) => {
    if (column !== "copying") return signed(capture.ablation[column][part], 3);
    return part === chosen ? signed(capture.copying.flat()[shown.head]) : "";
  };
  const row = (part) => element("tr", {}, element("th", { scope: "row" }, part),
    ...columns.map((column) => element("td", {}, cell(part, column))));
  const titles = columns.map(({ column, side }) => COLUMNS[column] + (shown.other ? `, ${titleOf(side)}` : ""));
  const body = element("tbody", {}, ...[...new Set(rows)].map(row));
  $("ablations").replaceChildren(tableHead(["without", ...titles]), body);
});

// Of every part at every capture.
$("ablation-csv").addEventListener("click", () => {
  const rows = RUNS.flatMap(({ name: run, captures }) => captures.flatMap(({ step, ablation }) =>
    Object.entries(ablation).flatMap(([probe, changes]) =>
      Object.entries(changes).map(([part, loss_change]) => ({ run, step, probe, part, loss_change })))));
  downloadCsv("ablation.csv", data.columns.ablation, rows);
});
