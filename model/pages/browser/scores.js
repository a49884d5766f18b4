// What parts are measured by. Scores: those of the chosen head as bars, each with a tick at the value of uniform
// attention, and what they mean. Losses: what is added to the loss, in nats per token, when a part is replaced by its
// mean, with its standard error over the windows; measured at the steps whose weights were kept.

import { $, button, element, tableHead, track } from "browser/elements.js";
import { buttons, markOf, meaningOf } from "browser/heads.js";
import { addView, change, shown, stepButton } from "browser/render.js";
import { choosing, data, formation, formedBetween, headName, headPart, mapped, RUN, SCORES } from "browser/state.js";
import { engine } from "browser/typed-text.js";
import { decimal, largestFirst, signed } from "browser/words.js";

const KINDS = { text: "on text", repeated: "on repetition" }; // what losses are measured on

addView(function drawCard() {
  $("card-title").textContent = `Scores of ${headName(shown.head)}`;
  $("card").replaceChildren(...Object.entries(SCORES).flatMap(([score, { is_pattern, label, meaning }]) => [
    element("dt", {}, is_pattern ? markOf(score) : "", ` ${label}`),
    ...shown.sides.map((side) => rowOf(side, score)),
    element("dd", { className: "soft" }, [meaning, ...measuredOn(score), ...formedIn(score)].join("; ")),
  ]));
});

function rowOf({ name, snapshot, head }, score) {
  const [value, error] = [snapshot.scores, snapshot.errors].map((of) => of[score].flat()[head]);
  return element("dd", { className: `row ${name}` },
    shown.sides[1] ? element("span", {}, name) : "",
    track([value], RUN.uniform[score]),
    element("span", {}, decimal(value) + (error > 0 ? ` ± ${decimal(error)}` : "")));
}

// A pattern of lines or signs is not in every window, and only where it is can it be shown.
function measuredOn(score) {
  const { counts, windows } = shown.snapshot;
  const all = windows[SCORES[score].probe][0];
  return counts[score] < all ? [`on the ${counts[score]} of ${all} windows that can show it`] : [];
}

function formedIn(score) {
  const step = formation(score, shown.head);
  return step < Infinity ? [`formed ${formedBetween(step)}`] : [];
}

// A change of the loss in words: whether it is more than chance explains, as parts.py judges it.
const isClear = ([change, error]) => error !== null && Math.abs(change) > data.errors * error;
const inWords = (found) =>
  (isClear(found) ? `${signed(found[0], 3)} ± ${decimal(found[1], 3)}` : "no clear effect");

// Of the part that is pointed at or was chosen last: what it is, its size, and what is lost without it.
function tellPart(part) {
  const { step, ablation } = [...RUN.snapshots, shown.snapshot].findLast((one) => one.ablation) ?? {};
  const losses = Object.entries(KINDS).filter(([kind]) => ablation?.[kind][part])
    .map(([kind, where]) => `${where} ${inWords(ablation[kind][part])}`);
  const size = engine?.parameters[part];
  $("part").className = choosing(part).part ? "first" : "note";
  $("part").replaceChildren(element("b", {}, part), [
    `: ${meaningOf(part) ?? ""}`,
    size && `${size.toLocaleString("en")} parameters.`,
    losses.length && `Change of the loss without it, nats per token, at step ${step}: ${losses.join(", ")}.`,
  ].filter(Boolean).join(" "));
}
const tellChosen = () => tellPart(shown.part ?? headPart(shown.head));

addView(tellChosen);
for (const [part, pointed] of buttons)
  for (const [event, tell] of [["pointerenter", () => shown && tellPart(part)], ["pointerleave", tellChosen]])
    pointed.addEventListener(event, tell);

// All parts, those first without which the loss is most; of two steps, the first.
addView(function drawTable() {
  const { ablation } = shown.snapshot;
  $("ablation").hidden = !RUN.snapshots.some((snapshot) => snapshot.ablation);
  $("ablations").hidden = !ablation;
  const jumps = mapped.filter((snapshot) => snapshot.ablation).map(({ step }) => stepButton(step));
  const [{ windows }] = RUN.snapshots;
  const on = `Measured on ${windows.text[0]} windows of text and ${windows.repeated[0]} that repeat, at `;
  $("measured-at").replaceChildren(on, ...jumps, ablation ? "" : `, not at step ${shown.snapshot.step}`);
  if (!ablation) return;
  const parts = Object.keys(ablation.text);
  const ranked = largestFirst(parts.map((part) => ablation.text[part][0] ?? -Infinity)).map((place) => parts[place]);
  const cell = (found) => element("td", { className: isClear(found) ? "" : "soft" }, inWords(found));
  const row = (part) => element("tr", {},
    element("th", { scope: "row" }, partName(part)),
    ...Object.keys(KINDS).map((kind) => cell(ablation[kind][part])),
    ...(engine ? [element("td", {}, engine.parameters[part].toLocaleString("en"))] : []));
  const head = tableHead(["without", ...Object.values(KINDS), ...(engine ? ["parameters"] : [])]);
  $("ablations").replaceChildren(head, element("tbody", {}, ...ranked.map(row)));
});

// A part's name as a button that chooses it, where it is one of the picture.
export function partName(part) {
  if (!buttons.has(part)) return part;
  const ariaPressed = part === (shown.part ?? headPart(shown.head));
  return Object.assign(button(part, () => change(choosing(part))), { ariaPressed, title: meaningOf(part) });
}
