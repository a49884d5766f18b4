// Scores over steps: a line a head, marks where heads form, and cursors at the steps that are shown.

import { $, choices, closest, css, element, press } from "browser/elements.js";
import { fitCanvas, rgb } from "browser/maps.js";
import { addView, change, shown } from "browser/render.js";
import { ALL_HEADS, formation, headName, LAYERS, mapped, nearest, placeOf, PROBES, RUNS, SCORES, shortName, state, written } from "browser/state.js";

const HIGH = 230;
export const curve = { left: 34, right: 10, top: 8, bottom: 24 };

function drawCurves() {
  press($("scores"), shown.score);
  placeCurves();
  // The lines stay as they are while the step changes, and there may be a hundred of them.
  const { run, head, score, theme, probe, other } = shown;
  const drawn = JSON.stringify([run, head, score, theme, probe, other?.run, $("curve").clientWidth, devicePixelRatio]);
  if ($("curve").dataset.drawn !== drawn) {
    $("curve").dataset.drawn = drawn;
    drawLines();
    describeCurves();
  }
  for (const [id, capture] of [["cursor-a", shown.capture], ["cursor-b", shown.otherCapture]]) {
    $(id).hidden = !capture;
    if (capture) $(id).style.left = `${curve.x(capture.step)}px`;
  }
}

function placeCurves() {
  const width = $("curve").clientWidth - curve.left - curve.right;
  const last = Math.log1p(Math.max(1, ...RUNS.map((run) => run.captures.at(-1).step)));
  curve.x = (step) => curve.left + (Math.log1p(step) / last) * width;
  curve.y = (value) => curve.top + (1 - value) * (HIGH - curve.top - curve.bottom);
}

function drawLines() {
  const { score, head: chosen, other } = shown;
  const run = RUNS[shown.run];
  const context = fitCanvas($("curve"), $("curve").clientWidth, HIGH);
  $("curve").style.width = "100%";
  const [soft, line] = [css("soft"), css("line")];
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  for (const value of [0, 0.5, 1]) {
    drawGuide(context, value, line, []);
    context.textAlign = "right";
    context.fillStyle = soft;
    context.fillText(value, curve.left - 6, curve.y(value));
  }
  const { uniform, forms } = SCORES[score];
  if (forms) drawGuide(context, (1 + uniform) / 2, soft, [2, 4]);
  drawGuide(context, uniform, soft, [6, 4]);
  drawSteps(context, run);

  const heads = ALL_HEADS.filter((head) => head !== chosen);
  for (const head of heads) drawLine(context, run, head, { width: 1, alpha: 0.55 });
  if (other && other.run !== shown.run) drawLine(context, RUNS[other.run], chosen, { width: 2, dash: [5, 4] });
  drawLine(context, run, chosen, { width: 3 });
  for (const head of [...heads, chosen]) drawFormation(context, run, head);
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

function drawLine(context, run, head, { width, alpha = 1, dash }) {
  const [layer, column] = placeOf(head);
  const points = run.captures.map(({ step, scores }) => [curve.x(step), scores[shown.score][layer][column]]);
  const ofLayer = rgb(shown.palette.colours[Math.round(90 + (165 * (layer + 1)) / LAYERS)]);
  context.globalAlpha = alpha;
  stroke(context, points, head === shown.head ? css(SCORES[shown.score].colour) : ofLayer, width, dash);
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

// The same in words: which heads formed and when, each with a button that goes there.
function describeCurves() {
  const { score } = shown;
  const { label, probe: measured, forms } = SCORES[score];
  const formed = ALL_HEADS.map((head) => ({ head, step: formation(shown.run, score, head) }));
  const heads = formed.filter(({ step }) => step < Infinity).sort((one, two) => one.step - two.step || one.head - two.head);
  const sentences = heads.map(({ head, step }) => `${headName(head)} formed at step ${step}`);
  $("curve").setAttribute("aria-label", [`${label} of every head over steps`, ...sentences].join("; "));

  const jump = (text, patch) => {
    const button = element("button", { textContent: text });
    button.addEventListener("click", () => change(patch()));
    return button;
  };
  const parts = [];
  if (forms) parts.push(heads.length ? `${heads.length} formed: ` : `No ${label} head has formed. `);
  for (const { head, step } of heads.slice(0, 6))
    parts.push(jump(`${shortName(head)} at ${step}`, () => ({ head, at: nearest(state.run, step) })), " ");
  if (heads.length > 6) parts.push(`and ${heads.length - 6} more `);
  parts.push(forms ? "Dashes: uniform attention, dots: half-way from it to 1. " : "Dashes: uniform attention. ");
  const probe = PROBES.findIndex(({ name }) => name === measured);
  if (probe !== shown.probe) parts.push(`Measured on the ${measured} probe: `, jump("show it", () => ({ probe })));
  $("formed").replaceChildren(...parts);
}

// The head whose line is nearest to the pointer, at the nearest step that has maps.
function lineAt({ offsetX, offsetY }) {
  const steps = mapped[state.run];
  const at = closest([...steps.keys()], (at) => Math.abs(curve.x(steps[at].step) - offsetX));
  const values = steps[at].scores[state.score].flat();
  const off = (head) => Math.abs(curve.y(values[head]) - offsetY);
  const head = closest([state.head, ...ALL_HEADS], off);
  return { at, head, near: off(head) < 8, text: `${headName(head)}: ${written(values[head], 2)} at step ${steps[at].step}` };
}

$("curves").hidden = RUNS.every((run) => run.captures.length < 2);
if (!$("curves").hidden) {
  choices($("scores"), Object.entries(SCORES).map(([score, { label, meaning }]) => [score, label, meaning]), (score) => change({ score }));
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
