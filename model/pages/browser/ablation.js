// What the model is without a part: the part is replaced by its mean, and the change of the loss is measured at each
// step, in nats per token. A part that is not missed did nothing that others cannot do. Thumbnails' numbers, a table.

import { $, element, tableHead } from "browser/elements.js";
import { thumbs } from "browser/heads.js";
import { probeName, save, titleOf } from "browser/measurements.js";
import { addView, shown } from "browser/render.js";
import { headPart } from "browser/state.js";
import { signed } from "browser/words.js";

const COLUMNS = { text: "on text", repeated: "on repetition", copying: "copying" };

// The change of the loss without one head; null if it was not measured or is not a number.
export const withoutHead = ({ ablation }, probe, head) => ablation?.[probe]?.heads.flat()[head] ?? null;

// The parts of a capture by their names: { text, repeated: the change of the loss on each probe, copying: of a head }.
function partsOf({ ablation, copying }) {
  const parts = {};
  const add = (column, name, value) => ((parts[name] ??= {})[column] = value);
  const addHeads = (column, values) => values.flat().forEach((value, head) => add(column, headPart(head), value));
  for (const [probe, { heads, feed_forward: layers, tables }] of Object.entries(ablation ?? {})) {
    addHeads(probe, heads);
    layers.forEach((value, layer) => add(probe, `feed-forward ${layer}`, value));
    for (const [name, value] of Object.entries(tables)) add(probe, name, value);
  }
  addHeads("copying", copying ?? []);
  return parts;
}

// A row for each part and probe.
export const ablationRows = (capture) =>
  Object.entries(capture.ablation ? partsOf(capture) : {}).flatMap(([part, changes]) =>
    ["text", "repeated"].map((probe) => ({ probe, part, loss_change: changes[probe] })));

addView(function drawNumbers() {
  $("number-note").hidden = !shown.capture.ablation;
  for (const [head, thumb] of thumbs.entries()) {
    const change = withoutHead(shown.capture, probeName(), head);
    thumb.lastChild.textContent = change === null ? "" : signed(change);
    if (change !== null) thumb.ariaLabel += `, loss without it ${signed(change)} nats per token`;
  }
});

// The table, for one or two captures: the chosen head first, then the feed-forwards and the tables.
addView(function drawTable() {
  const { sides } = shown;
  $("ablation").hidden = !sides.some(({ capture }) => capture.ablation || capture.copying);
  if ($("ablation").hidden) return;
  const chosen = headPart(shown.head);
  const found = sides.map((side) => ({ parts: partsOf(side.capture), where: shown.other ? `, ${titleOf(side)}` : "" }));
  const others = found.flatMap(({ parts }) => Object.keys(parts)).filter((name) => !name.startsWith("head"));
  const columns = Object.keys(COLUMNS).flatMap((column) => found.map((one) => ({ column, ...one })));
  const cell = (name, { column, parts }) => {
    if (column !== "copying") return signed(parts[name]?.[column], 3);
    return name === chosen ? signed(parts[name]?.copying) : "";
  };
  const row = (name) => element("tr", {}, element("th", { scope: "row" }, name),
    ...columns.map((column) => element("td", {}, cell(name, column))));
  const head = tableHead(["without", ...columns.map(({ column, where }) => COLUMNS[column] + where)]);
  const names = new Set([chosen, ...others]);
  $("ablations").replaceChildren(head, element("tbody", {}, ...[...names].map(row)));
});

$("ablation-csv").addEventListener("click", () => save("ablation", ({ capture }) => ablationRows(capture)));
