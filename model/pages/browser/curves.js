// Over the steps: a score of each head, or what the loss becomes without it. Vertical marks show the stages of
// training, and cursors the steps that are shown.

import { drawChart, stagesOf } from "browser/chart.js";
import { $, choices, closest, css, element, press } from "browser/elements.js";
import { rgb } from "browser/maps.js";
import { addView, change, shown } from "browser/render.js";
import { withoutHead } from "browser/scores.js";
import {
  ALL_HEADS, formation, headName, lastOf, LAYERS, mapped, nearest, placeOf, PROBES, RUNS, SCORES, shortName,
} from "browser/state.js";
import { decimal, largestFirst, signed } from "browser/words.js";

const WITHOUT = { text: "loss without it, on text", repeated: "loss without it, on repetition" };
const NAMED = 6; // heads that formed

export let curve = null; // { x, y }: from a step and from a value to pixels
let drawn = null; // what decides how the lines look

// What is drawn: its label, its value for a head of a snapshot (null: not a number), and the range of its axis.
function measure() {
  const { curve, score, run } = shown;
  if (curve === "score") {
    const of = ({ scores }, head) => scores[score].flat()[head];
    const [uniform, threshold] = ["uniform", "threshold"].map((name) => RUNS[run][name][score]);
    return { ...SCORES[score], uniform, threshold, of, low: 0, high: 1, write: decimal };
  }
  const of = (snapshot, head) => withoutHead(snapshot, curve, head);
  const values = RUNS[run].snapshots.flatMap((snapshot) => ALL_HEADS.map((head) => of(snapshot, head)));
  const write = (value) => `${signed(value)} nats per token`;
  const [low, high] = [Math.min(0, ...values), Math.max(0.1, ...values)];
  return { label: WITHOUT[curve], probe: curve, colour: "accent", of, low, high, write };
}

function drawCurves() {
  press($("scores"), shown.curve === "score" ? shown.score : shown.curve);
  // The lines stay as they are while the step changes, and there may be a hundred of them.
  const { run, head, score, curve: chosen, theme, probe, sides } = shown;
  const wanted = JSON.stringify([run, head, score, chosen, theme, probe, $("curve").clientWidth, devicePixelRatio]);
  if (drawn !== wanted) {
    drawn = wanted;
    drawCurve();
    describeCurves();
  }
  ["cursor-a", "cursor-b"].forEach((id, i) => {
    $(id).hidden = sides[i]?.run !== run;
    if (!$(id).hidden) $(id).style.left = `${curve.x(sides[i].snapshot.step)}px`;
  });
  const { label, of, write } = measure();
  const value = write(of(shown.snapshot, shown.head));
  Object.assign($("curve"), {
    ariaValueMax: lastOf(shown.run), ariaValueNow: shown.at,
    ariaValueText: `step ${shown.snapshot.step}, ${headName(shown.head)}: ${label} ${value}`,
  });
}

function drawCurve() {
  const { head: chosen, run } = shown;
  const { low, high, uniform, threshold, is_pattern, colour } = measure();
  const curves = ALL_HEADS.filter((head) => head !== chosen).map((head) =>
    curveOf(head, { width: 1, opacity: 0.55, radius: 3.5, colour: layerColour(head) }));
  curves.push(curveOf(chosen, { width: 3, radius: 5, colour: css(colour) }));
  const guides = [];
  if (is_pattern) guides.push({ value: threshold, dashes: "2 4" });
  if (uniform !== undefined) guides.push({ value: uniform, dashes: "6 4" });
  const stages = stagesOf(RUNS[run].stages);
  const last = Math.max(1, RUNS[run].snapshots.at(-1).step);
  curve = drawChart($("curve"), { scale: "log", last, low, high, curves, stages, guides });
}

const layerColour = (head) => rgb(shown.palette.colours[Math.round(90 + (165 * (placeOf(head)[0] + 1)) / LAYERS)]);

function curveOf(head, look) {
  const { of, colour } = measure();
  const points = RUNS[shown.run].snapshots.map((snapshot) => [snapshot.step, of(snapshot, head)]);
  const formed = shown.curve === "score" ? formation(shown.run, shown.score, head) : Infinity;
  const dots = points.filter(([step]) => step === formed).map((point) => [...point, css(colour)]);
  return { points, dots, ...look };
}

// The same in words: which heads formed and when, or which head is missed most, each with a button that goes there.
function describeCurves() {
  const { label, of, probe } = measure();
  const formed = stagesOf(RUNS[shown.run].stages).map(({ inWords }) => inWords);
  $("curve").ariaLabel = [`${label}, of every head over the steps`, ...formed].join("; ");
  const parts = shown.curve === "score" ? describeScore() : describeLoss(of);
  const measured = PROBES.findIndex(({ name }) => name === probe);
  if (measured !== shown.probe) parts.push(`Measured on the ${probe} probe: `, jump("show it", { probe: measured }));
  $("formed").replaceChildren(...parts);
}

const jump = (textContent, patch) => element("button", { textContent, onclick: () => change(patch) });

function describeScore() {
  const { run, score } = shown;
  if (!SCORES[score].is_pattern) return ["Dashes: uniform attention. "];
  const steps = ALL_HEADS.map((head) => formation(run, score, head));
  const heads = ALL_HEADS.filter((head) => steps[head] < Infinity).sort((one, two) => steps[one] - steps[two]);
  const jumpTo = (head) => jump(`${shortName(head)} at ${steps[head]}`, { head, at: nearest(run, steps[head]) });
  return [
    heads.length ? `${heads.length} formed: ` : `no ${SCORES[score].label} head has formed. `,
    ...heads.slice(0, NAMED).flatMap((head) => [jumpTo(head), " "]),
    heads.length > NAMED ? `and ${heads.length - NAMED} more. ` : "",
    "Dashes: uniform attention, dots: what a head must pass to form. ",
  ];
}

function describeLoss(of) {
  const last = RUNS[shown.run].snapshots.at(-1);
  const at = nearest(shown.run, last.step);
  const values = ALL_HEADS.map((head) => of(last, head));
  const most = largestFirst(values).slice(0, 5);
  return [
    `How many nats per token the loss rises when a head is replaced by its mean. Needed most at step ${last.step}: `,
    ...most.flatMap((head) => [jump(`${shortName(head)} ${signed(values[head])}`, { head, at }), " "]),
  ];
}

// The head whose line is nearest to the pointer, at the nearest step that has maps.
function lineAt({ offsetX, offsetY }) {
  const steps = mapped[shown.run];
  const { of, label, write } = measure();
  const at = closest([...steps.keys()], (at) => Math.abs(curve.x(steps[at].step) - offsetX));
  const value = (head) => of(steps[at], head);
  const off = (head) => (value(head) === null ? Infinity : Math.abs(curve.y(value(head)) - offsetY));
  const head = closest([shown.head, ...ALL_HEADS], off);
  const text = `${headName(head)}: ${label} ${write(value(head))} at step ${steps[at].step}`;
  return { at, head, near: off(head) < 8, text };
}

$("curves").hidden = RUNS.every((run) => run.snapshots.length < 2);
if (!$("curves").hidden) {
  const scores = Object.entries(SCORES).map(([score, { label }]) => [score, label]);
  choices($("scores"), scores, (score) => change({ score, curve: "score" }));
  choices($("scores"), Object.entries(WITHOUT), (chosen) => change({ curve: chosen }));
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
