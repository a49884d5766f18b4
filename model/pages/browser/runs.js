// Two whole runs side by side: the best head of each score, losses over the steps, and the options that differ. Their
// maps need not be comparable. Nothing here reads the page.

import { shape, ticks } from "browser/charts.js";
import { element } from "browser/elements.js";
import { decimal, withMinus } from "browser/words.js";

const HIGH = 190;
const SMALL = 120;
const DOTTED = 20; // points of a curve, of which each gets a dot
const BOX = { left: 40, right: 12, top: 8, bottom: 22 };

// ---- numbers

// The head of a capture that shows a score best: { head: "layer.head", value }; null if it was not measured. Sharp
// attention has a low entropy, so there the lowest is best, as for any score that heads do not form.
export function bestHead(capture, score, forms) {
  const heads = capture.scores[score].flatMap((row, layer) => row.map((value, head) => ({ head: `${layer}.${head}`, value })));
  const known = heads.filter(({ value }) => value !== null);
  const better = (one, two) => (forms ? two.value > one.value : two.value < one.value);
  return known.length ? known.reduce((one, two) => (better(one, two) ? two : one)) : null;
}

// For each score its best head in each run at the last capture: { head, value, formed: a step or null, uniform }, or null.
// scores: name -> { label, forms }.
export function bestHeads(runs, scores) {
  return Object.entries(scores).map(([score, { label, forms }]) => ({
    score, label, forms,
    best: runs.map(({ captures, formation, uniform }) => {
      const best = uniform[score] > 0 ? bestHead(captures.at(-1), score, forms) : null; // else the text has no such tokens
      return best && { ...best, formed: formation[score][best.head] ?? null, uniform: uniform[score] };
    }),
  }));
}

// The best value of each capture: a curve for each run.
export const bestCurves = (runs, score, forms) =>
  runs.map(({ captures, uniform }, run) => {
    const best = (uniform[score] > 0 ? captures : []).map((capture) => [capture.step, bestHead(capture, score, forms)]);
    return { run, name: "", points: best.filter(([, head]) => head).map(([step, { value }]) => [step, value]) };
  }).filter(({ points }) => points.length);

export const BEST_HEADER = ["run", "step", "score", "head", "value", "uniform", "formed"];
export const bestRows = (runs, scores) =>
  bestHeads(runs, scores).flatMap(({ score, best }) =>
    best.map((one, run) => [runs[run].name, runs[run].captures.at(-1).step, score, one?.head, one?.value, one?.uniform, one?.formed]));

export const LOSS_HEADER = ["run", "curve", "step", "value"];
export const lossRows = (runs, curves) =>
  curves.flatMap(({ run, name, points }) => points.map(([step, value]) => [runs[run].name, name, step, value]));

// ---- tables

const cell = (textContent, more = {}) => element("td", { textContent, ...more });
const heading = (textContent, more = {}) => element("th", { scope: "col", textContent, ...more });
const titles = (runs, columns) => runs.map(({ name }, run) => heading(name, { colSpan: columns, className: `run-${run}` }));

// choose(run, "layer.head") shows that head.
export function drawBest(table, runs, scores, choose) {
  const columns = ["head", "score", "uniform", "formed"];
  const cellsOf = (best, run) => {
    if (!best) return columns.map(() => cell("–"));
    const button = element("button", { textContent: best.head });
    button.setAttribute("aria-label", `show head ${best.head} of ${runs[run].name}`);
    button.addEventListener("click", () => choose(run, best.head));
    return [element("td", {}, button), cell(decimal(best.value)), cell(decimal(best.uniform), { className: "soft" }), cell(best.formed ?? "–")];
  };
  table.replaceChildren(
    element("thead", {}, element("tr", {}, heading(""), ...titles(runs, columns.length)),
      element("tr", {}, heading(""), ...runs.flatMap(() => columns.map((name) => heading(name))))),
    element("tbody", {}, ...bestHeads(runs, scores).map(({ label, forms, best }) =>
      element("tr", {}, element("th", { scope: "row", textContent: forms ? label : `${label} (lowest)` }), ...best.flatMap(cellsOf)))));
}

// differences: [option, its value in A, in B].
export function drawOptions(table, runs, differences) {
  table.replaceChildren(
    element("thead", {}, element("tr", {}, heading("option"), ...titles(runs, 1))),
    element("tbody", {}, ...differences.map(([option, ...values]) =>
      element("tr", {}, element("th", { scope: "row", textContent: option }), ...values.map((value) => cell(value))))));
}

// ---- charts

// Powers of ten between two steps, and 2 and 5 times them where there are few.
export function stepTicks(first, last) {
  const factors = last > 50 * (first + 1) ? [1] : [1, 2, 5];
  const steps = Array.from({ length: 10 }, (_, power) => factors.map((factor) => factor * 10 ** power)).flat();
  return steps.filter((step) => step > first - 0.5 && step < last + 0.5);
}

const short = (value) => withMinus(String(Number(value.toPrecision(3))));

// Curves over the logarithm of the step, as the scores of the heads are drawn. chart: { title, low, high (else those of
// the values), small, curves: [{ run, name, points }] }; a training curve is thin, because it is noisy.
export function drawChart(parent, runs, { title, low, high, small, curves }) {
  const key = element("div", { className: "key" }, ...(small ? [element("span", { textContent: title })] : []), ...keyOf(runs, curves));
  parent.replaceChildren(key);
  const svg = shape(parent, "svg", { role: "img" });
  const [width, tall] = [svg.clientWidth, small ? SMALL : HIGH];
  const values = curves.flatMap(({ points }) => points.map(([, value]) => value));
  const steps = curves.flatMap(({ points }) => [points[0][0], points.at(-1)[0]]);
  const [first, last] = [Math.log1p(Math.min(...steps)), Math.log1p(Math.max(1, ...steps))];
  low ??= Math.min(...values);
  high ??= Math.max(...values);
  if (low === high) high = low + 1;
  const x = (step) => BOX.left + ((Math.log1p(step) - first) / (last - first || 1)) * (width - BOX.left - BOX.right);
  const y = (value) => BOX.top + ((high - value) / (high - low)) * (tall - BOX.top - BOX.bottom);
  svg.style.height = `${tall}px`;
  for (const value of ticks(low, high, small ? 2 : 4)) {
    shape(svg, "line", { x1: BOX.left, x2: width - BOX.right, y1: y(value), y2: y(value) });
    shape(svg, "text", { x: BOX.left - 6, y: y(value) + 4, "text-anchor": "end" }, short(value));
  }
  for (const step of stepTicks(Math.expm1(first), Math.expm1(last)))
    shape(svg, "text", { x: x(step), y: tall - 6, "text-anchor": x(step) > width - 30 ? "end" : "middle" }, step.toLocaleString("en"));
  for (const { run, name, points } of curves) {
    const d = points.map(([step, value], i) => `${i ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    shape(svg, "path", { d, class: `run-${run}${name === "training" ? " thin" : ""}` });
    if (points.length <= DOTTED) for (const [step, value] of points) shape(svg, "circle", { cx: x(step), cy: y(value), r: 2.4, class: `run-${run}` });
  }
  svg.setAttribute("aria-label", `${title} over the steps: ${curves.map((one) => inWords(runs, one)).join("; ")}`);
}

const nameOf = (runs, { run, name }) => [runs[run].name, name].filter(Boolean).join(", ");

// Where a curve begins and ends.
function inWords(runs, curve) {
  const ends = [curve.points[0], curve.points.at(-1)].map(([step, value]) => `${short(value)} at step ${step}`);
  return `${nameOf(runs, curve)} ${ends.join(", ")}`;
}

// What the colours mean, with the last value of each curve.
const keyOf = (runs, curves) => curves.map((curve) => element("span", { className: `run-${curve.run}` },
  `${curve.name === "training" ? "–" : "━"} ${nameOf(runs, curve)} `, element("b", { textContent: short(curve.points.at(-1)[1]) })));
