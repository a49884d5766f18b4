// What the loss becomes without a part: the part is replaced by its mean, and the change of the loss is measured in nats
// per token. A part without which nothing changes did nothing that another part could not do.

import { element } from "browser/elements.js";
import { signed } from "browser/words.js";

const MEASURED_ON = { text: "on text", repeated: "on repetition" };

// The change of the loss without one head; null if it was not measured or is not a number.
export const withoutHead = (capture, probe, [layer, head]) => capture.ablation?.[probe]?.heads?.[layer]?.[head] ?? null;
const copyingOf = (capture, [layer, head]) => capture.copying?.[layer]?.[head] ?? null;

// Every part of a kind: { name, text, repeated } with the change of the loss on each probe.
function headParts(capture) {
  const heads = capture.ablation?.text?.heads ?? [];
  return heads.flatMap((row, layer) => row.map((_, head) => part(capture, `head ${layer}.${head}`, ({ heads }) => heads?.[layer]?.[head])));
}

function otherParts(capture) {
  const { feed_forward: layers = [], tables = {} } = capture.ablation?.text ?? {};
  return [
    ...layers.map((_, layer) => part(capture, `feed-forward ${layer}`, ({ feed_forward }) => feed_forward?.[layer])),
    ...Object.keys(tables).map((name) => part(capture, name, ({ tables }) => tables?.[name])),
  ];
}

function part({ ablation: { text = {}, repeated = {} } }, name, take) {
  return { name, text: take(text) ?? null, repeated: take(repeated) ?? null };
}

// A row for each part and probe.
export const ablationRows = (capture) =>
  [...headParts(capture), ...otherParts(capture)].flatMap(({ name, ...changes }) =>
    Object.keys(MEASURED_ON).map((probe) => ({ probe, part: name, loss_change: changes[probe] })));

// ---- drawing

// Fills a table for one or two captures: the chosen head first, then the feed-forwards and the tables.
export function drawAblation(table, captures, names, place) {
  const [layer, head] = place;
  const many = captures.length > 1;
  const chosen = (capture) => ({ text: withoutHead(capture, "text", place), repeated: withoutHead(capture, "repeated", place), copying: copyingOf(capture, place) });
  const found = captures.map((capture) => new Map([[`head ${layer}.${head}`, chosen(capture)], ...otherParts(capture).map((part) => [part.name, part])]));
  const parts = [...new Set(found.flatMap((of) => [...of.keys()]))];
  const columns = ["text", "repeated", "copying"].flatMap((column) => found.map((of, i) => ({ column, of, name: names[i] })));
  const label = ({ column, name }) => `${MEASURED_ON[column] ?? "copying"}${many ? `, ${name}` : ""}`;
  const row = (name) => element("tr", {}, element("th", { scope: "row", textContent: name }), ...columns.map(({ column, of }) =>
    element("td", { textContent: column === "copying" && !name.startsWith("head") ? "" : signed(of.get(name)?.[column], column === "copying" ? 2 : 3) })));
  table.replaceChildren(
    element("thead", {}, element("tr", {}, element("th", { scope: "col", textContent: "without" }), ...columns.map((column) => element("th", { scope: "col", textContent: label(column) })))),
    element("tbody", {}, ...parts.map(row)),
  );
}
