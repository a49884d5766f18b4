// Curves over the steps of training, as SVG: the charts of the report and of the page of maps.

import { withMinus } from "browser/words.js";

export const BOX = { left: 46, right: 12, top: 8, bottom: 24 };
const LABEL = { high: 14, wide: 5.9 }; // of a stage: its height, and the width of a letter
const NARROW = 70; // pixels from one step's number to the next, and
const EDGE = 24; // from the right edge, within which it would be cut

// Adds an SVG element.
export function shape(parent, name, attributes, textContent = "") {
  const node = Object.assign(document.createElementNS("http://www.w3.org/2000/svg", name), { textContent });
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  parent.append(node);
  return node;
}

// Draws a chart into an SVG element of the size that the style sheet gives it, which takes a millisecond.
//
// scale: "linear" or "log", of the steps from 0 to last. low, high: the range of the values.
// curves: [{ points: [[step, value]], dots: some points, radius of these, colour, width, opacity }], the last
// on top; a point without a value is left out. stages: [{ step, label, colour }] (see stagesOf).
// guides: [{ value, dashes }]. Returns { x, y }: from a step and from a value to pixels.
export function drawChart(svg, { scale, last, low, high, curves, stages, guides = [] }) {
  const [width, height] = [svg.clientWidth, svg.clientHeight];
  const share = scale === "log" ? (step) => Math.log1p(step) / Math.log1p(last) : (step) => step / last;
  const x = (step) => BOX.left + share(step) * (width - BOX.left - BOX.right);
  const marks = stages.map(({ step, label }) => ({ x: x(step), width: LABEL.wide * label.length }));
  const labels = placeLabels(marks, width);
  const top = BOX.top + LABEL.high * Math.max(0, ...labels.map(({ row }) => row + 1));
  const y = (value) => top + (1 - (value - low) / (high - low)) * (height - top - BOX.bottom);
  svg.replaceChildren();
  const ends = { x1: BOX.left, x2: width - BOX.right };
  const level = (value, look) => shape(svg, "line", { ...ends, y1: y(value), y2: y(value), ...look });
  for (const value of ticks(low, high, 4)) {
    level(value, { class: "grid" });
    shape(svg, "text", { x: BOX.left - 7, y: y(value) + 4, "text-anchor": "end" }, written(value));
  }
  for (const { value, dashes } of guides) level(value, { class: "guide", "stroke-dasharray": dashes });
  const powers = Array.from({ length: Math.floor(Math.log10(last)) + 1 }, (_, i) => 10 ** i);
  const steps = scale === "log" ? [0, ...powers] : ticks(0, last, Math.max(2, Math.floor(width / NARROW)));
  for (const step of steps) {
    const anchor = x(step) > width - EDGE ? "end" : "middle";
    shape(svg, "text", { x: x(step), y: height - 6, "text-anchor": anchor }, written(step));
  }
  stages.forEach(({ step, label, colour }, i) => {
    const upper = BOX.top + LABEL.high * labels[i].row;
    const line = { x1: x(step), x2: x(step), y1: upper, y2: height - BOX.bottom };
    shape(svg, "line", { class: "stage", ...line, style: `stroke: ${colour}` });
    shape(svg, "text", { x: labels[i].left, y: upper + 8, style: `fill: ${colour}` }, label);
  });
  for (const { points, dots, radius = 2.6, colour, width = 1.8, opacity = 1 } of curves) {
    const known = points.filter(([, value]) => value !== null);
    const d = known.map(([step, value], i) => `${i ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    shape(svg, "path", { d, style: `stroke: ${colour}`, "stroke-width": width, opacity });
    for (const [step, value, fill = colour] of dots)
      shape(svg, "circle", { cx: x(step), cy: y(value), r: radius, style: `fill: ${fill}` });
  }
  return { x, y };
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

// A number beside an axis: a large one as `short` in report.py writes it.
export function written(value) {
  const size = Math.abs(value);
  if (size >= 100) return withMinus(compact.format(value).replace("K", "k"));
  return withMinus(size >= 0.001 || size === 0 ? String(Number(value.toPrecision(4))) : value.toExponential(1));
}

// Round numbers, about `count` of them, from `low` to `high`.
export function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.7);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}

// The number of columns for `count` charts in `width` pixels, so that none is alone in the last row unless all are.
export function chartColumns(count, width, wide = 300, narrow = 190) {
  const even = Array.from({ length: count - 1 }, (_, i) => i + 2).filter((columns) => count % columns !== 1);
  const many = even.findLast((columns) => width / columns >= wide);
  const few = width >= 2 * wide ? even.find((columns) => width / columns >= narrow) : undefined;
  return many ?? few ?? 1;
}

// ---- stages of training: when the strongest head of each kind formed (see describe.py)

// The name of a score's colour in theme.css, which has eight.
export const markColour = (score) => `mark-${score % 8}`;

// found: as the page has them, [{ score, place, head, before, step }], with what is written of them.
export const stagesOf = (found) => found.map(({ score, place, head, before, step }) => {
  const label = `${score.replaceAll("_", "-")} head ${head} forms`;
  const when = before === null ? `by step ${step}` : `between steps ${before} and ${step}`;
  return { score, step, label, inWords: `${label} ${when}`, colour: `var(--${markColour(place)})` };
});

// Where each label stands: beside its mark, on the other side where it would leave the chart, in the first free row.
// marks: { x, width } in pixels. Returns { left, row } for each.
export function placeLabels(marks, right) {
  const rows = [];
  return marks.map(({ x, width }) => {
    const left = x + 4 + width <= right ? x + 4 : Math.max(0, x - 4 - width);
    const free = rows.findIndex((taken) => taken.every(([from, to]) => left > to + 6 || left + width < from - 6));
    const row = free < 0 ? rows.length : free;
    (rows[row] ??= []).push([left, left + width]);
    return { left, row };
  });
}
