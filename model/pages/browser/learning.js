// How it learned: figures, and a chart over the steps, which has the axis of the slider below it. It shows what was
// measured of the run, such as the loss, or a score of all heads. Marks show when heads formed, cursors which steps are
// shown.

import { BOX, drawChart, stepAxis, written } from "browser/chart.js";
import { $, closest, css, element } from "browser/elements.js";
import { rgb } from "browser/maps.js";
import { addPlainView, addView, change, shown } from "browser/render.js";
import {
  addOption, ALL_HEADS, data, formation, formedBetween, headName, headNumber, holdsWeights, LAYERS, mapped, nearest,
  placeOf, RUN, SCORES, state, stepOf,
} from "browser/state.js";
import { decimal } from "browser/words.js";

const DOTTED = 40; // points of a curve, of which each gets a dot
const { story = "", facts = [], charts = [], samples = [], config = "" } = data.learning ?? {};
const STOPS = mapped.map(({ step }, at) => ({ step, isMarked: holdsWeights(at) }));
const LAST_STEP = Math.max(1, ...charts.flatMap(({ curves }) => curves).map(({ points }) => points.at(-1)[0]));
const NEAR = LAST_STEP / 50; // steps, within which a figure stands for a step at which it was not measured
const SHARE = stepAxis(STOPS.map(({ step }) => step), LAST_STEP);
// When the first head of each kind formed, see describe.py. While the run goes on, what began at its newest step may
// have gone by the next one, and is not named yet.
const goesOn = data.status?.state === "running";
const newest = RUN.snapshots.at(-1)?.step;
const STAGES = RUN.stages.filter(({ step }) => !(goesOn && step === newest)).map(({ score, head, step }) => {
  const { label, letter, colour } = SCORES[score];
  const inWords = `${label}: head ${head} formed ${formedBetween(step)}`;
  return { score, head, step, mark: `${letter} ${head}`, inWords, colour: `var(--${colour})` };
});
const COLOURS = ["var(--first)", "var(--ink)"];
const svg = $("curve");

export let curve = null; // { x, y }: from a step and from a value to pixels
let drawn = null; // what decides how the lines look

addOption("curve", [...charts.map((_, i) => String(i)), ...(RUN.snapshots.length > 1 ? ["score"] : [])]);
const ofRun = () => charts[state.curve];

function draw() {
  const { head, score, theme } = shown ?? state;
  // The lines stay as they are while the step changes, and there may be a hundred of them.
  const wanted = JSON.stringify([state.curve, head, score, theme, svg.clientWidth, svg.clientHeight, devicePixelRatio]);
  if (drawn !== wanted) {
    drawn = wanted;
    const { low, high, curves, guides } = ofRun() ? runCurves(ofRun()) : scoreCurves();
    const stages = ofRun() ? STAGES : STAGES.filter((stage) => stage.score === score);
    curve = drawChart(svg, { share: SHARE, stops: STOPS, low, high, curves, guides, stages });
    svg.ariaLabel = `${titleOf()}; ${STAGES.map(({ inWords }) => inWords).join("; ")}`;
    $("curves").value = ofRun() ? state.curve : score;
  }
  ["cursor-a", "cursor-b"].forEach((id, i) => {
    const side = shown?.sides[i];
    $(id).hidden = !side;
    if (side) $(id).style.left = `${curve.x(side.snapshot.step)}px`;
  });
  tell(shown?.snapshot.step ?? LAST_STEP);
  showSample(shown?.snapshot.step ?? LAST_STEP);
}

function runCurves({ curves }) {
  const values = curves.flatMap(({ points }) => points.map(([, value]) => value));
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low > 0 && (low < 0.5 * high || low === high)) low = 0;
  if (low === high) high = low + 1;
  const dotted = (points) => (points.length <= DOTTED ? points : points.slice(-1));
  const lines = curves.map(({ points }, i) => ({ points, colour: COLOURS[i], dots: dotted(points) }));
  return { low, high, curves: lines };
}

const valueOf = ({ scores }, head) => scores[shown.score].flat()[head];
const layerColour = (head) => rgb(shown.palette.weights[Math.round(90 + (165 * (placeOf(head)[0] + 1)) / LAYERS)]);

function scoreCurves() {
  const { head: chosen, score } = shown;
  const colour = css(SCORES[score].colour);
  const curveOf = (head, look) => {
    const points = RUN.snapshots.map((snapshot) => [snapshot.step, valueOf(snapshot, head)]);
    const dots = points.filter(([step]) => step === formation(score, head)).map((point) => [...point, colour]);
    return { points, dots, ...look };
  };
  const look = { width: 1, opacity: 0.55, radius: 3.5 };
  const others = ALL_HEADS.filter((head) => head !== chosen);
  const curves = others.map((head) => curveOf(head, { ...look, colour: layerColour(head) }));
  const guides = [{ value: RUN.uniform[score], dashes: "6 4" }];
  if (SCORES[score].is_pattern) guides.push({ value: RUN.threshold[score], dashes: "2 4" });
  return { low: 0, high: 1, curves: [...curves, curveOf(chosen, { width: 3, radius: 5, colour })], guides };
}

const titleOf = () => (ofRun() ? `${ofRun().title}, ${ofRun().unit}` : `${SCORES[state.score].label} of every head`);

// The values at a step, beside the chart's name.
function tell(step) {
  const at = (points) => closest(points, ([other]) => Math.abs(other - step));
  const entry = (name, value, colour) => element("span", {},
    element("i", { style: { background: colour } }), `${name} `, element("b", {}, value));
  const ofHead = () =>
    entry(headName(shown.head), decimal(valueOf(shown.snapshot, shown.head)), `var(--${SCORES[shown.score].colour})`);
  const entries = ofRun()
    ? ofRun().curves.map(({ name, points }, i) => {
      const [measured, value] = at(points);
      const when = Math.abs(measured - step) > NEAR ? ` (of step ${measured.toLocaleString("en")})` : "";
      return entry(name, written(value) + when, COLOURS[i]);
    })
    : [ofHead()];
  const unit = ofRun() ? ofRun().unit : "dashes: uniform attention; dots: what a head must pass to form";
  const where = `at step ${step.toLocaleString("en")}`;
  const soft = (text) => element("span", { className: "soft" }, text);
  $("curve-key").replaceChildren(soft(`${where}, ${unit}`), ...entries);
}

// Each stage as a button that goes there.
function tellFormed() {
  const formed = STAGES.map(({ score, head, step, inWords, colour }) => element("button", {
    textContent: inWords, style: { borderColor: colour },
    onclick: () => change({ score, head: headNumber(head), at: nearest(step) }),
  }));
  const none = `${goesOn ? "no" : "No"} head has kept to a pattern${goesOn ? " yet" : ""}.`;
  $("formed").replaceChildren(goesOn ? "So far: " : "", ...(formed.length ? formed : [none]));
}

// What the model wrote at this step, or last before it.
function showSample(step) {
  const sample = samples.findLast((one) => one.step <= step) ?? samples[0];
  $("samples").hidden = !sample;
  if (!sample) return;
  $("sample-step").textContent = `at step ${sample.step.toLocaleString("en")}`;
  $("sample").replaceChildren(element("b", {}, sample.prompt), sample.text);
}

// The head whose line is nearest to the pointer, at the nearest step that has maps.
function lineAt({ offsetX, offsetY }) {
  const at = closest([...mapped.keys()], (one) => Math.abs(curve.x(stepOf(one)) - offsetX));
  if (ofRun()) return { at };
  const off = (head) => Math.abs(curve.y(valueOf(mapped[at], head) ?? Infinity) - offsetY);
  const head = closest([shown.head, ...ALL_HEADS], off);
  return off(head) < 8 ? { at, head } : { at };
}

svg.addEventListener("click", (event) => mapped.length && change(lineAt(event)));
svg.addEventListener("pointermove", ({ offsetX }) => {
  if (!ofRun()) return;
  const points = ofRun().curves.flatMap((one) => one.points);
  tell(closest(points, ([step]) => Math.abs(curve.x(step) - offsetX))[0]);
});
svg.addEventListener("pointerleave", () => tell(shown?.snapshot.step ?? LAST_STEP));

const group = (label, options) => element("optgroup", { label }, ...options);
if (charts.length) $("curves").append(group("the run", charts.map(({ title }, i) => new Option(title, i))));
const scores = Object.entries(SCORES).map(([score, { label }]) => new Option(label, score));
if (RUN.snapshots.length > 1) $("curves").append(group("score of heads", scores));
$("curves").addEventListener("change", ({ target: { value } }) =>
  change(value in SCORES ? { score: value, curve: "score" } : { curve: value }));
tellFormed();
$("learning").hidden = !$("curves").options.length;
$("story").textContent = story;
$("facts").append(...facts.map(([name, value, remark]) => element("div", {},
  element("dt", {}, name), element("dd", {}, element("b", {}, value), ` ${remark}`))));
$("facts").hidden = !facts.length;
$("config").textContent = config;
$("config").closest("details").hidden = !config;
document.documentElement.style.setProperty("--axis-left", `${BOX.left}px`);
document.documentElement.style.setProperty("--axis-right", `${BOX.right}px`);
if (!$("learning").hidden) for (const add of [addView, addPlainView]) add(draw);
