// The measurements of parts. Scores of the chosen head: bars, each with a tick at the score of uniform attention, and
// their meanings. Losses: by how much the loss rises, in nats per token, if a part gives its mean, with the standard
// error over the windows; measured at the steps whose weights were kept.

import { $, button, element, tableHead, tableRow, track } from "browser/elements.js";
import { buttons, markOf, meaningOf } from "browser/heads.js";
import { addView, change, shown, stepButton } from "browser/render.js";
import { choosing, data, formation, formedBetween, headName, headPart, RUN, SCORES, snapshots } from "browser/state.js";
import { engine } from "browser/typed-text.js";
import { decimal, largestFirst, signed } from "browser/words.js";

const KINDS = { text: "on text", repeated: "on repetition" }; // the windows on which losses are measured

addView(function drawCard() {
  $("card-title").textContent = `Scores of ${headName(shown.head)}`;
  $("card").replaceChildren(...Object.entries(SCORES).flatMap(([score, { is_pattern, label, meaning }]) => [
    element("dt", {}, is_pattern ? markOf(score) : "", ` ${label}`),
    ...shown.sides.map((side) => rowOf(side, score)),
    element("dd", { className: "soft" }, [meaning, ...remarksOn(score)].join("; ")),
  ]));
});

function rowOf({ name, snapshot, head }, score) {
  const [value, error] = [snapshot.scores, snapshot.errors].map((figures) => figures[score].flat()[head]);
  return element("dd", { className: `row ${name}` },
    shown.sides[1] ? element("span", {}, name) : "",
    track([value], RUN.uniform[score]),
    element("span", {}, decimal(value) + (error > 0 ? ` ± ${decimal(error)}` : "")));
}

// Not every window has line breaks or brackets: a score counts only the windows that can show its pattern.
function remarksOn(score) {
  const { counts, windows } = shown.snapshot;
  const all = windows[SCORES[score].probe][0];
  const step = formation(score, shown.head);
  const few = counts[score] < all && `${counts[score] || "none"} of ${all} windows can show it`;
  return [few, step < Infinity && `formed ${formedBetween(step)}`].filter(Boolean);
}

// A change of the loss, [change, error], in words; "no clear effect" if chance may explain it, as in parts.py.
const isClear = ([change, error]) => error !== null && Math.abs(change) > data.errors * error;
const inWords = ([change, error]) =>
  (isClear([change, error]) ? `${signed(change, 3)} ± ${decimal(error, 3)}` : "no clear effect");

// Describes the part that is pointed at or was chosen last: what it is, its size, and the loss without it.
function tellPart(part) {
  const { step, ablation } = [...snapshots, shown.snapshot].findLast((snapshot) => snapshot.ablation) ?? {};
  const losses = Object.entries(KINDS).filter(([kind]) => ablation?.[kind][part])
    .map(([kind, where]) => `${where} ${inWords(ablation[kind][part])}`);
  const size = engine?.parameters[part];
  $("part").className = choosing(part).part ? "first" : "note";
  $("part").replaceChildren(element("b", {}, part), [
    `: ${meaningOf(part) ?? ""}`,
    size && `${size.toLocaleString("en")} parameters.`,
    losses.length && `Change of the loss without it, in nats per token, at step ${step}: ${losses.join(", ")}.`,
  ].filter(Boolean).join(" "));
}
const tellChosen = () => tellPart(shown.part ?? headPart(shown.head));

addView(tellChosen);
for (const [part, partButton] of buttons)
  for (const [event, tell] of [["pointerenter", () => shown && tellPart(part)], ["pointerleave", tellChosen]])
    partButton.addEventListener(event, tell);

// A table of all parts, the part whose loss rises most first. Of two steps, it shows the first.
addView(function drawTable() {
  const { ablation } = shown.snapshot;
  const jumps = snapshots.filter((snapshot) => snapshot.ablation).map(({ step }) => stepButton(step));
  $("ablation").hidden = !jumps.length;
  $("ablations").hidden = !ablation;
  const [{ windows }] = snapshots;
  const where = `Measured on ${windows.text[0]} windows of text and ${windows.repeated[0]} that repeat, at `;
  $("measured-at").replaceChildren(where, ...jumps, ablation ? "" : `, not at step ${shown.snapshot.step}`);
  if (!ablation) return;
  const parts = Object.keys(ablation.text);
  const ranked = largestFirst(parts.map((part) => ablation.text[part][0] ?? -Infinity)).map((place) => parts[place]);
  const cell = (change) => element("td", { className: isClear(change) ? "" : "soft" }, inWords(change));
  const row = (part) => tableRow(partName(part),
    ...Object.keys(KINDS).map((kind) => cell(ablation[kind][part])),
    ...(engine ? [element("td", {}, engine.parameters[part].toLocaleString("en"))] : []));
  const head = tableHead(["without", ...Object.values(KINDS), ...(engine ? ["parameters"] : [])]);
  $("ablations").replaceChildren(head, element("tbody", {}, ...ranked.map(row)));
});

// A part's name; a button that chooses the part if the picture of the model has it.
export function partName(part) {
  if (!buttons.has(part)) return part;
  const ariaPressed = part === (shown.part ?? headPart(shown.head));
  return Object.assign(button(part, () => change(choosing(part))), { ariaPressed, title: meaningOf(part) });
}
