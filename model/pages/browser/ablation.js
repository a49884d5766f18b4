// What the loss becomes without a part: the part is replaced by its mean, and the change of the loss is measured in nats
// per token. A part without which nothing changes did nothing that another part could not do.

import { element } from "browser/elements.js";
import { signed } from "browser/words.js";

const PROBES = ["text", "repeated"];
const COLUMNS = { text: "on text", repeated: "on repetition", copying: "copying" };

// The change of the loss without one head; null if it was not measured or is not a number.
export const withoutHead = (capture, probe, [layer, head]) => capture.ablation?.[probe]?.heads?.[layer]?.[head] ?? null;

// The parts of a capture by their names: { text, repeated: the change of the loss on each probe, copying: of a head }.
function partsOf({ ablation, copying }) {
  const parts = {};
  const add = (column, name, value) => ((parts[name] ??= {})[column] = value);
  const addHeads = (column, rows) =>
    rows.forEach((row, layer) => row.forEach((value, head) => add(column, `head ${layer}.${head}`, value)));
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
    PROBES.map((probe) => ({ probe, part, loss_change: changes[probe] })));

// ---- drawing

// Fills a table for one or two captures: the chosen head first, then the feed-forwards and the tables.
export function drawAblation(table, captures, titles, [layer, head]) {
  const chosen = `head ${layer}.${head}`;
  const found = captures.map(partsOf);
  const others = found.flatMap((parts) => Object.keys(parts)).filter((name) => !name.startsWith("head"));
  const columns = Object.entries(COLUMNS).flatMap(([column, label]) =>
    found.map((parts, i) => ({ column, parts, label: captures.length > 1 ? `${label}, ${titles[i]}` : label })));
  const cell = (name, { column, parts }) => {
    if (column !== "copying") return signed(parts[name]?.[column], 3);
    return name === chosen ? signed(parts[name]?.copying) : "";
  };
  const row = (name) => element("tr", {}, element("th", { scope: "row", textContent: name }),
    ...columns.map((column) => element("td", { textContent: cell(name, column) })));
  const titleOf = (textContent) => element("th", { scope: "col", textContent });
  table.replaceChildren(
    element("thead", {}, element("tr", {}, ...["without", ...columns.map(({ label }) => label)].map(titleOf))),
    element("tbody", {}, ...[...new Set([chosen, ...others])].map(row)),
  );
}
