// Curves over the steps of training, as SVG.

import { withMinus } from "browser/words.js";

export const BOX = { left: 46, right: 12, top: 16, bottom: 21 }; // pixels around the curves: the flags are above them
const NUMBER_GAP = 34; // least pixels from one step's number to the next
const FLAG_GAP = 46; // least pixels from one flag to the next
const MOST_DOTS = 40; // a curve with more points has a dot at the last one only

// Appends an SVG element to its parent.
export function shape(parent, name, attributes, textContent = "") {
  const node = Object.assign(document.createElementNS("http://www.w3.org/2000/svg", name), { textContent });
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  parent.append(node);
  return node;
}

// Returns a function from a step to its place on an axis, from 0 to 1. The stops, ascending, are evenly spaced, and the
// axis is linear between two stops. With fewer than two stops it is linear from 0 to `last`.
export function stepAxis(stops, last) {
  if (stops.length < 2) return (step) => step / Math.max(1, last);
  return (step) => {
    const left = Math.max(0, Math.min(stops.length - 2, stops.findLastIndex((stop) => stop <= step)));
    const inside = (step - stops[left]) / (stops[left + 1] - stops[left]);
    return (left + Math.max(0, Math.min(1, inside))) / (stops.length - 1);
  };
}

// Draws a chart into an SVG element, at the size that the style sheet gives it. This takes a millisecond.
//
// share: see stepAxis. stops: [{ step, isMarked }], the steps numbered below the chart. curves: [{ points: [[step,
// value]], colour }]; a point whose value is null is left out. stages: [{ step, colour }], when heads formed. guides:
// [{ value, dashes }], lines for values from 0 to 1. Returns { x, y }, functions from a step and a value to pixels.
export function drawChart(svg, { share, stops, curves, stages, guides }) {
  const [low, high] = guides ? [0, 1] : range(curves.flatMap(({ points }) => points.map(([, value]) => value)));
  const [width, height, foot] = [svg.clientWidth, svg.clientHeight, svg.clientHeight - BOX.bottom];
  const x = (step) => BOX.left + share(step) * (width - BOX.left - BOX.right);
  const y = (value) => BOX.top + (1 - (value - low) / (high - low)) * (foot - BOX.top);
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`); // on paper the chart shrinks with the page
  const ends = { x1: BOX.left, x2: width - BOX.right };
  const level = (value, look) => shape(svg, "line", { ...ends, y1: y(value), y2: y(value), ...look });
  for (const value of ticks(low, high, height > 150 ? 4 : 3)) {
    level(value, { class: "grid" });
    shape(svg, "text", { x: BOX.left - 7, y: y(value) + 4, "text-anchor": "end" }, written(value));
  }
  for (const { value, dashes } of guides ?? []) level(value, { class: "guide", "stroke-dasharray": dashes });
  let free = Infinity; // the last x with room for a number; from right to left, so that the last step has its number
  for (const { step, isMarked } of [...stops].reverse()) {
    const fits = x(step) <= free;
    if (fits) free = x(step) - NUMBER_GAP;
    shape(svg, "line", { class: "stop", x1: x(step), x2: x(step), y1: foot, y2: foot + 4 });
    if (isMarked) shape(svg, "circle", { cx: x(step), cy: foot + 2, r: 4, style: "fill: var(--ink)" });
    if (fits) shape(svg, "text", { x: x(step), y: height - 2, "text-anchor": "middle" }, written(step));
  }
  for (const { step, colour: stroke } of stages)
    shape(svg, "line", { class: "stage", x1: x(step), x2: x(step), y1: 14, y2: foot, stroke });
  for (const { points, colour } of curves) {
    const drawn = points.filter(([, value]) => value !== null);
    const d = drawn.map(([step, value], i) => `${i ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    shape(svg, "path", { d, style: `stroke: ${colour}`, "stroke-width": 1.8 });
    for (const [step, value] of drawn.length <= MOST_DOTS ? drawn : drawn.slice(-1))
      shape(svg, "circle", { cx: x(step), cy: y(value), r: 2.6, style: `fill: ${colour}` });
  }
  return { x, y };
}

// The lowest and the highest value of the axis for these values.
function range(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const floor = low > 0 && (low < 0.5 * high || low === high) ? 0 : low;
  return [floor, high > floor ? high : floor + 1];
}

// Moves the middles of flags, in pixels and ascending, so that no two flags touch and none is cut off at the width.
export function apart(places, width) {
  const moved = [];
  for (const place of places) moved.push(Math.max(place, (moved.at(-1) ?? -Infinity) + FLAG_GAP));
  let free = width - FLAG_GAP / 2; // the last free place, from right to left
  for (let i = moved.length - 1; i >= 0; i--) {
    moved[i] = Math.min(moved[i], free);
    free = moved[i] - FLAG_GAP;
  }
  return moved;
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

// Writes a number beside an axis; large numbers as `short` in learning.py.
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
  const [first, last] = [Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9)];
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}
