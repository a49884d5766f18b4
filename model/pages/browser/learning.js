// How the run learned: its figures, and a chart over the steps, with the axis of the slider below it. The chart shows
// a measurement of the run, such as the loss, or a score of the chosen head. A flag marks when a head formed, and leads
// to that step. Cursors mark the steps that are shown.

import { apart, BOX, drawChart, stepAxis, written } from "browser/chart.js";
import { $, closest, element } from "browser/elements.js";
import { word } from "browser/heads.js";
import { addPlainView, addView, change, shown } from "browser/render.js";
import {
  addOption, data, formedBetween, headName, headNumber, holdsWeights, nearest, RUN, SCORES, snapshots, state, stepOf,
} from "browser/state.js";
import { decimal } from "browser/words.js";

const { story = "", facts = [], charts = [], samples = [], config = "" } = data.learning ?? {};
const STOPS = snapshots.map(({ step }, at) => ({ step, isMarked: holdsWeights(at) }));
const LAST_STEP = Math.max(1, ...charts.flatMap(({ curves }) => curves).map(({ points }) => points.at(-1)[0]));
const NEAR = LAST_STEP / 50; // a figure measured up to so many steps away stands for a step without one
const SHARE = stepAxis(STOPS.map(({ step }) => step), LAST_STEP);
const COLOURS = ["var(--first)", "var(--ink)"];
const STAGES = RUN.stages; // when the first head of each pattern formed, see describe.py
const colourOf = (score) => `var(--${SCORES[score].colour})`;
const flags = STAGES.map(({ score, head, step }) => {
  const patch = { score, head: headNumber(head), part: null, at: nearest(step) };
  const inWords = `${SCORES[score].label}: head ${head} begins to form ${formedBetween(step)}`;
  const textContent = `${SCORES[score].letter} ${head}`;
  return element("button", {
    textContent, title: inWords, ariaLabel: inWords, style: { color: colourOf(score) }, onclick: () => change(patch),
  });
});
const svg = $("curve");

let chart = null; // what is shown: { title, unit, curves: [{ name, points }] }, for a score also guides
export let curve = null; // { x, y }: functions from a step and a value to pixels
let drawn = null; // all that the lines depend on, when they were drawn last

addOption("curve", [...charts.map((_, i) => String(i)), ...(snapshots.length > 1 ? ["score"] : [])]);

function draw() {
  const { head, score } = shown ?? state;
  const wanted = JSON.stringify([state.curve, head, score, svg.clientWidth, svg.clientHeight, devicePixelRatio]);
  if (drawn !== wanted) {
    drawn = wanted;
    chart = charts[state.curve] ?? scoreChart(score, head);
    const colours = chart.guides ? [colourOf(score)] : COLOURS;
    chart.curves.forEach((line, i) => (line.colour = colours[i]));
    const stages = STAGES.map((stage) => ({ step: stage.step, colour: colourOf(stage.score) }));
    curve = drawChart(svg, { share: SHARE, stops: STOPS, stages, ...chart });
    const places = apart(STAGES.map(({ step }) => curve.x(step)), svg.clientWidth);
    flags.forEach((flag, i) => (flag.style.left = `${(100 * places[i]) / svg.clientWidth}%`));
    svg.ariaLabel = [`${chart.title}, ${chart.unit}`, ...flags.map(({ title }) => title)].join("; ");
    $("curves").value = chart.guides ? score : state.curve;
  }
  ["cursor-a", "cursor-b"].forEach((id, i) => {
    const side = shown?.sides[i];
    $(id).hidden = !side;
    if (side) $(id).style.left = `${(100 * curve.x(side.snapshot.step)) / svg.clientWidth}%`;
  });
  for (const show of [showValues, showSample]) show(shown?.snapshot.step ?? LAST_STEP);
}

function scoreChart(score, head) {
  const points = snapshots.map(({ step, scores }) => [step, scores[score].flat()[head]]);
  const guides = [{ value: RUN.uniform[score], dashes: "6 4" }];
  if (SCORES[score].is_pattern) guides.push({ value: RUN.threshold[score], dashes: "2 4" });
  const unit = `dashes: uniform attention${guides[1] ? "; dots: what a head must exceed to form" : ""}`;
  return { title: SCORES[score].label, unit, curves: [{ name: headName(head), points }], guides };
}

// Shows the values at a step, below the chart's name.
function showValues(step) {
  const number = (value) => value.toLocaleString("en");
  const valueOf = (points) => {
    const found = points.findLast(([at]) => at <= step + NEAR);
    if (!found) return `none before step ${number(points[0][0])}`;
    const [measured, value] = found;
    const when = step - measured > NEAR ? ` (of step ${number(measured)})` : "";
    return (chart.guides ? decimal(value) : written(value)) + when;
  };
  const entries = chart.curves.map(({ name, points, colour }) => element("span", {},
    element("i", { style: { background: colour } }), `${name} `, element("b", {}, valueOf(points))));
  const where = element("span", { className: "soft" }, `at step ${number(step)}, ${chart.unit}`);
  $("curve-key").replaceChildren(where, ...entries);
}

// Shows the sample of this step, or the last one before it.
function showSample(step) {
  const sample = samples.findLast((written) => written.step <= step) ?? samples[0];
  $("samples").hidden = !sample;
  if (!sample) return;
  $("sample-step").textContent = `at step ${sample.step.toLocaleString("en")}`;
  $("sample").replaceChildren(element("b", {}, sample.prompt), sample.text);
}

svg.addEventListener("click", ({ offsetX }) =>
  snapshots.length && change({ at: closest([...snapshots.keys()], (at) => Math.abs(curve.x(stepOf(at)) - offsetX)) }));

$("curves").append(...charts.map(({ title }, i) => new Option(title, i)));
if (snapshots.length > 1)
  $("curves").append(...Object.entries(SCORES).map(([score, { label }]) => new Option(`head: ${label}`, score)));
$("curves").addEventListener("change", ({ target: { value } }) =>
  change(value in SCORES ? { score: value, curve: "score" } : { curve: value }));
$("flags").append(...flags);
$("learning").hidden = !$("curves").options.length;
$("story").textContent = story;
export function addFact([name, value, remark]) {
  const figure = element("dd", {}, element("b", {}, value), ` ${remark}`);
  $("facts").append(element("div", {}, element("dt", {}, word(name)), figure));
}
facts.forEach(addFact);
$("config").textContent = config;
$("config").closest("details").hidden = !config;
document.documentElement.style.setProperty("--axis-left", `${BOX.left}px`);
document.documentElement.style.setProperty("--axis-right", `${BOX.right}px`);
if (!$("learning").hidden) for (const add of [addView, addPlainView]) add(draw);
