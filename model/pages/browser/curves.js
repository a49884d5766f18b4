// Over the steps: a score of each head, or what the loss becomes without it. Vertical marks show the stages of training,
// and cursors the steps that are shown.

import { $, choices, closest, css, element, press } from "browser/elements.js";
import { csv, download } from "browser/export.js";
import { fitCanvas, rgb } from "browser/maps.js";
import { addView, change, shown } from "browser/render.js";
import { ALL_HEADS, formation, headName, lastOf, LAYERS, mapped, nearest, placeOf, PROBES, RUNS, SCORES, shortName, state } from "browser/state.js";
import { placeLabels, stagesOf } from "browser/stages.js";
import { decimal, signed, withMinus } from "browser/words.js";

const HIGH = 250;
const FONT = "11px system-ui, sans-serif";
const LABEL = 14; // height of a stage's label
export const curve = { left: 44, right: 10, top: 8, bottom: 24 };

const WITHOUT = { text: "loss without it, on text", repeated: "loss without it, on repetition" };

// What is drawn: its label, its value for a head of a capture (null: not measured), and the range of its axis.
function measure({ curve, score } = shown) {
  const at = (table, head) => table?.[placeOf(head)[0]]?.[placeOf(head)[1]] ?? null;
  if (curve === "score") {
    const { label, uniform, threshold, forms } = SCORES[score];
    const of = ({ scores }, head) => at(scores[score], head);
    return { label, of, uniform, threshold, forms, low: 0, high: 1, write: decimal };
  }
  const of = ({ ablation }, head) => at(ablation?.[curve]?.heads, head);
  const values = RUNS.flatMap(({ captures }) => captures.flatMap((capture) => capture.ablation?.[curve]?.heads.flat() ?? []));
  const write = (value) => `${signed(value)} nats per token`;
  return { label: WITHOUT[curve], of, low: Math.min(0, ...values), high: Math.max(0.1, ...values), write };
}

function drawCurves() {
  press($("scores"), shown.curve === "score" ? shown.score : shown.curve);
  // The lines stay as they are while the step changes, and there may be a hundred of them.
  const { score, curve: chosen, theme, probe, sides } = shown;
  const drawn = JSON.stringify([sides.map(({ run, head }) => [run, head]), score, chosen, theme, probe, $("curve").clientWidth, devicePixelRatio]);
  if ($("curve").dataset.drawn !== drawn) {
    $("curve").dataset.drawn = drawn;
    placeCurves();
    drawLines();
    describeCurves();
  }
  for (const [id, capture] of [["cursor-a", shown.capture], ["cursor-b", shown.otherCapture]]) {
    $(id).hidden = !capture;
    if (capture) $(id).style.left = `${curve.x(capture.step)}px`;
  }
  const { label, of, write } = measure();
  $("curve").ariaValueMax = lastOf(shown.run);
  $("curve").ariaValueNow = shown.at;
  $("curve").ariaValueText = `step ${shown.capture.step}, ${headName(shown.head)}: ${label} ${write(of(shown.capture, shown.head))}`;
}

function placeCurves() {
  const width = $("curve").clientWidth - curve.left - curve.right;
  const last = Math.log1p(Math.max(1, ...RUNS.map((run) => run.captures.at(-1).step)));
  curve.x = (step) => curve.left + (Math.log1p(step) / last) * width;
  const { low, high } = measure();
  curve.stages = stageLabels();
  curve.top = 8 + LABEL * (1 + Math.max(-1, ...curve.stages.map(({ row }) => row)));
  curve.y = (value) => curve.top + ((high - value) / (high - low)) * (HIGH - curve.top - curve.bottom);
}

// The stages of the run, each with the place of its label above the lines.
function stageLabels() {
  const context = $("curve").getContext("2d");
  context.font = FONT;
  const marks = stagesOf(RUNS[shown.run].formation).map((stage) => ({ ...stage, x: curve.x(stage.step), width: context.measureText(stage.label).width }));
  const places = placeLabels(marks, $("curve").clientWidth - curve.right);
  return marks.map((mark, i) => ({ ...mark, ...places[i] }));
}

function drawLines() {
  const { head: chosen } = shown;
  const run = RUNS[shown.run];
  const context = fitCanvas($("curve"), $("curve").clientWidth, HIGH);
  $("curve").style.width = "100%";
  const [soft, line] = [css("soft"), css("line")];
  context.font = FONT;
  context.textBaseline = "middle";
  const { low, high, uniform, threshold, forms } = measure();
  for (const value of new Set([low, 0, (low + high) / 2, high])) {
    if (value !== 0 && Math.abs(curve.y(value) - curve.y(0)) < 12) continue;
    drawGuide(context, value, line, []);
    context.textAlign = "right";
    context.fillStyle = soft;
    context.fillText(withMinus(String(Number(value.toPrecision(2)))), curve.left - 6, curve.y(value));
  }
  if (forms) drawGuide(context, threshold, soft, [2, 4]);
  if (uniform !== undefined) drawGuide(context, uniform, soft, [6, 4]);
  drawSteps(context, run);
  drawStages(context);

  const heads = ALL_HEADS.filter((head) => head !== chosen);
  for (const head of heads) drawLine(context, run, head, { width: 1, alpha: 0.55 });
  for (const side of otherRuns()) drawLine(context, RUNS[side.run], side.head, { width: 2, dash: [5, 4], colour: css("second") });
  const colour = css(shown.curve === "score" ? SCORES[shown.score].colour : "accent");
  drawLine(context, run, chosen, { width: 3, colour });
  if (shown.curve === "score") for (const head of [...heads, chosen]) drawFormation(context, run, head);
}

function stroke(context, points, colour, width, dash = []) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.setLineDash(dash);
  context.beginPath();
  for (const [step, value] of points) if (value !== null) context.lineTo(step, curve.y(value));
  context.stroke();
  context.setLineDash([]);
}

function drawGuide(context, value, colour, dash) {
  stroke(context, [[curve.left, value], [$("curve").clientWidth - curve.right, value]], colour, 1, dash);
}

function drawLine(context, run, head, { width, alpha = 1, dash, colour }) {
  const [layer] = placeOf(head);
  const { of } = measure();
  const points = run.captures.map((capture) => [curve.x(capture.step), of(capture, head)]);
  const ofLayer = rgb(shown.palette.colours[Math.round(90 + (165 * (layer + 1)) / LAYERS)]);
  context.globalAlpha = alpha;
  stroke(context, points, colour ?? ofLayer, width, dash);
  context.globalAlpha = 1;
}

function drawFormation(context, run, head) {
  const step = formation(shown.run, shown.score, head);
  if (step === Infinity) return;
  const { scores } = run.captures.find((capture) => capture.step === step);
  context.beginPath();
  context.arc(curve.x(step), curve.y(scores[shown.score].flat()[head]), head === shown.head ? 5 : 3.5, 0, 7);
  context.fillStyle = css(SCORES[shown.score].colour);
  context.fill();
  context.strokeStyle = css("panel");
  context.stroke();
}

// A vertical mark where the first head of each kind formed, with its label above the lines.
function drawStages(context) {
  context.textAlign = "left";
  context.lineWidth = 1;
  context.setLineDash([3, 3]);
  for (const { score, x, row } of curve.stages) {
    context.strokeStyle = css(SCORES[score].colour);
    context.beginPath();
    context.moveTo(x, 8 + LABEL * row);
    context.lineTo(x, HIGH - curve.bottom);
    context.stroke();
  }
  context.setLineDash([]);
  for (const { score, left, row, label, width } of curve.stages) {
    context.fillStyle = css("panel");
    context.fillRect(left - 1, 8 + LABEL * row, width + 2, LABEL); // no other mark's line crosses the label
    context.fillStyle = css(SCORES[score].colour);
    context.fillText(label, left, 8 + LABEL * (row + 0.5));
  }
}

function drawSteps(context, run) {
  context.fillStyle = css("soft");
  context.textAlign = "center";
  let free = -Infinity;
  for (const { step } of run.captures) {
    const half = context.measureText(step).width / 2;
    const place = Math.min(curve.x(step), $("curve").clientWidth - half - 1);
    if (place - half < free) continue;
    context.fillText(step, place, HIGH - 9);
    free = place + half + 10;
  }
}

// The same in words: which heads formed and when, or which head is missed most, each with a button that goes there.
function describeCurves() {
  const { label, of } = measure();
  const stages = curve.stages.map(({ label, step }) => `${label} at step ${step}`);
  $("curve").setAttribute("aria-label", [`${label}, of every head over the steps`, ...stages].join("; "));
  const parts = shown.curve === "score" ? describeScore() : describeLoss(of);
  const measured = PROBES.findIndex(({ name }) => name === (shown.curve === "score" ? SCORES[shown.score].probe : shown.curve));
  if (measured !== shown.probe) parts.push(`Measured on the ${PROBES[measured].name} probe: `, jump("show it", () => ({ probe: measured })));
  $("formed").replaceChildren(...parts);
}

function jump(text, patch) {
  const button = element("button", { textContent: text });
  button.addEventListener("click", () => change(patch()));
  return button;
}

function describeScore() {
  if (!SCORES[shown.score].forms) return ["Dashes: uniform attention. "];
  const parts = formedIn(shown.run, (head, at) => ({ head, at }));
  for (const { name, run, head } of otherRuns()) {
    parts.unshift("A: ");
    parts.push(`${name}, dashed here with its head ${shortName(head)}: `);
    parts.push(...formedIn(run, (head, at) => ({ other: { ...state.other, head, at } })));
  }
  return [...parts, "Dashes: uniform attention, dots: what a head must pass to form. "];
}

// What is compared with the first side, if it is of another run.
const otherRuns = () => shown.sides.filter(({ run }) => run !== shown.run);

// The heads of a run that formed, first ones first, each with a button. `patch` takes a head and the place of a step.
function formedIn(run, patch) {
  const formed = ALL_HEADS.map((head) => ({ head, step: formation(run, shown.score, head) }));
  const heads = formed.filter(({ step }) => step < Infinity).sort((one, two) => one.step - two.step || one.head - two.head);
  const parts = [heads.length ? `${heads.length} formed: ` : `no ${SCORES[shown.score].label} head has formed. `];
  for (const { head, step } of heads.slice(0, 6)) parts.push(jump(`${shortName(head)} at ${step}`, () => patch(head, nearest(run, step))), " ");
  if (heads.length > 6) parts.push(`and ${heads.length - 6} more. `);
  return parts;
}

function describeLoss(of) {
  const last = RUNS[shown.run].captures.at(-1);
  const missed = ALL_HEADS.map((head) => ({ head, value: of(last, head) })).filter(({ value }) => value !== null);
  const parts = ["How many nats per token the loss rises when a head is replaced by its mean. "];
  if (!missed.length) return ["It was not measured in this run. "];
  parts.push(`Missed most at step ${last.step}: `);
  for (const { head, value } of missed.sort((one, two) => two.value - one.value).slice(0, 5))
    parts.push(jump(`${shortName(head)} ${signed(value)}`, () => ({ head, at: nearest(state.run, last.step) })), " ");
  return parts;
}

// The head whose line is nearest to the pointer, at the nearest step that has maps.
function lineAt({ offsetX, offsetY }) {
  const steps = mapped[state.run];
  const { of, label, write } = measure(state);
  const at = closest([...steps.keys()], (at) => Math.abs(curve.x(steps[at].step) - offsetX));
  const off = (head) => (of(steps[at], head) === null ? Infinity : Math.abs(curve.y(of(steps[at], head)) - offsetY));
  const head = closest([state.head, ...ALL_HEADS], off);
  return { at, head, near: off(head) < 8, text: `${headName(head)}: ${label} ${write(of(steps[at], head))} at step ${steps[at].step}` };
}

function saveCurves() {
  const { label, of } = measure();
  const rows = RUNS.flatMap((run) => run.captures.flatMap((capture) => ALL_HEADS.map((head) => [run.name, capture.step, shortName(head), of(capture, head)])));
  download(`${label.replace(/\W+/g, "-")}.csv`, csv([["run", "step", "head", label], ...rows]), "text/csv");
}

$("curves").hidden = RUNS.every((run) => run.captures.length < 2);
if (!$("curves").hidden) {
  const scores = Object.entries(SCORES).map(([score, { label, meaning }]) => [score, label, meaning]);
  choices($("scores"), scores, (score) => change({ score, curve: "score" }));
  if (RUNS.some((run) => run.captures.some(({ ablation }) => ablation)))
    choices($("scores"), Object.entries(WITHOUT).map(([probe, label]) => [probe, label, "the change of the loss when the head is replaced by its mean"]), (chosen) => change({ curve: chosen }));
  $("curve-csv").addEventListener("click", saveCurves);
  $("curve").addEventListener("click", (event) => {
    const { at, head, near } = lineAt(event);
    change({ at, ...(near && { head }) });
  });
  $("curve").addEventListener("pointermove", (event) => {
    const { near, text } = lineAt(event);
    $("curve").title = near ? text : "";
  });
  addView(drawCurves);
}
