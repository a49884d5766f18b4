// The report of a run: figures, charts, samples, and the page of attention maps in a frame.

import { $, choices, clamp, closest, element, press, systemTheme } from "browser/elements.js";

const data = JSON.parse($("data").textContent);
const HEIGHT = 210;
const BOX = { left: 46, right: 12, top: 8, bottom: 24 };
const LAST = Math.max(1, ...[...data.charts, ...data.heads].flatMap(({ curves }) => curves.map(({ points }) => points.at(-1)[0])));
const state = { scale: "linear", step: null, theme: systemTheme };

function shape(parent, name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

// ---- numbers

function written(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${(value / 1e3).toPrecision(3)}k`;
  if (size >= 100) return value.toFixed(0);
  if (size >= 0.001 || size === 0) return String(Number(value.toPrecision(4)));
  return value.toExponential(1);
}

// Round numbers, about `count` of them, from `low` to `high`.
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.99);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}

function stepTicks(last, count) {
  if (state.scale === "linear") return ticks(0, last, count);
  const powers = [0];
  for (let step = 1; step <= last; step *= 10) powers.push(step);
  return powers;
}

// ---- charts, each redrawn as a whole, which takes a millisecond

export const charts = [];
const place = (step) => (state.scale === "log" ? Math.log1p(step) / Math.log1p(LAST) : step / LAST); // from 0 to 1

function addChart(parent, spec) {
  const colours = spec.curves.map((_, i) => {
    if (!spec.layers) return `var(--${["first", "second"][i]})`;
    const share = spec.curves.length > 1 ? (100 * i) / (spec.curves.length - 1) : 60;
    return `color-mix(in oklab, var(--deep) ${share}%, var(--shallow))`;
  });
  const key = element("div", { className: "key" });
  const heading = element("div", { className: "bar", style: { marginBottom: "2px" } }, element("h3", {}, spec.title), element("span", { className: "soft" }, spec.unit));
  const box = element("div", { className: "chart" }, heading, key);
  const svg = shape(box, "svg", { role: "img", tabindex: 0 });
  parent.append(box);
  const steps = [...new Set(spec.curves.flatMap(({ points }) => points.map(([step]) => step)))].sort((a, b) => a - b);
  charts.push({ ...spec, svg, key, colours });
  svg.addEventListener("pointermove", ({ offsetX }) => {
    const x = (offsetX - BOX.left) / (svg.clientWidth - BOX.left - BOX.right);
    point(closest(steps, (step) => Math.abs(place(step) - x)));
  });
  svg.addEventListener("pointerleave", () => point(null));
  svg.addEventListener("blur", () => point(null));
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    const now = steps.indexOf(closest(steps, (step) => Math.abs(step - state.step)));
    point(state.step === null ? steps.at(-1) : steps[clamp(now + move, steps.length - 1)]);
    event.preventDefault();
  });
}

// The point at a step. A curve with few points may have its nearest some way off.
const at = (points, step) => (step === null ? points.at(-1) : closest(points, ([other]) => Math.abs(other - step)));

function draw(chart) {
  const { svg, curves, colours, title, unit, top } = chart;
  const width = svg.clientWidth;
  const values = curves.flatMap(({ points }) => points.map(([, value]) => value)).sort((a, b) => a - b);
  let [low, high] = top ? [0, top] : [values[0], values.at(-1)];
  if (!top && low > 0 && (low < 0.5 * high || low === high)) low = 0;
  if (low === high) high = low + 1;
  const x = (step) => BOX.left + place(step) * (width - BOX.left - BOX.right);
  const y = (value) => BOX.top + (1 - (value - low) / (high - low)) * (HEIGHT - BOX.top - BOX.bottom);
  svg.replaceChildren();
  for (const value of ticks(low, high, 4)) {
    shape(svg, "line", { class: "grid", x1: BOX.left, x2: width - BOX.right, y1: y(value), y2: y(value) });
    shape(svg, "text", { x: BOX.left - 7, y: y(value) + 4, "text-anchor": "end" }, written(value));
  }
  for (const step of stepTicks(LAST, Math.max(2, Math.floor(width / 70))))
    shape(svg, "text", { x: x(step), y: HEIGHT - 6, "text-anchor": x(step) > width - 24 ? "end" : "middle" }, written(step));
  curves.forEach(({ points }, i) => {
    const line = points.map(([step, value], j) => `${j ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    shape(svg, "path", { d: line, style: `stroke: ${colours[i]}` });
    for (const [step, value] of points.length <= 40 ? points : points.slice(-1)) shape(svg, "circle", { cx: x(step), cy: y(value), r: 2.6, style: `fill: ${colours[i]}` });
  });
  const spoken = ([step, value]) => `${written(value)} at step ${step}`;
  const ends = curves.map(({ name, points }) => `${name} ${spoken(points[0])}, ${spoken(points.at(-1))}`);
  svg.setAttribute("aria-label", `${title}, ${unit}: ${ends.join("; ")}`);
  Object.assign(chart, { x, y, cursor: shape(svg, "g", {}) });
  mark(chart);
}

// The values at the step that is pointed at, or else the last ones.
function mark({ curves, colours, cursor, key, x, y, top }) {
  cursor.replaceChildren();
  const { step: pointed } = state;
  if (pointed !== null) shape(cursor, "line", { class: "cursor", x1: x(pointed), x2: x(pointed), y1: BOX.top, y2: HEIGHT - BOX.bottom });
  const entries = curves.map(({ name, points }, i) => {
    const [step, value] = at(points, pointed);
    if (pointed !== null) shape(cursor, "circle", { cx: x(step), cy: y(value), r: 4, style: `fill: ${colours[i]}` });
    return element("span", {}, element("i", { style: { background: colours[i] } }), `${name} `, element("b", { textContent: top ? value.toFixed(2) : written(value) }));
  });
  if (pointed !== null) entries.push(element("span", { className: "soft", textContent: `step ${pointed}` }));
  key.replaceChildren(...entries);
}

function point(step) {
  state.step = step;
  charts.forEach(mark);
}

// ---- the rest

function showSample() {
  const { step, prompt, text } = data.samples[$("slider").value];
  $("step").textContent = `step ${step}`;
  $("slider").setAttribute("aria-valuetext", `step ${step}`);
  $("sample").replaceChildren(element("b", { textContent: prompt }), text);
}

function setTheme(theme) {
  state.theme = document.documentElement.dataset.theme = theme;
  document.querySelector("iframe")?.contentWindow.dispatchEvent(new CustomEvent("theme", { detail: theme }));
}

function setScale(scale) {
  state.scale = scale;
  press($("scale"), scale);
  charts.forEach(draw);
}

function showAttention() {
  const frame = element("iframe", { title: "attention maps, step by step" });
  frame.addEventListener("load", () => {
    frame.contentDocument.getElementById("theme").hidden = true; // the report's own button switches both
    setTheme(state.theme);
  });
  frame.srcdoc = JSON.parse($("attention").textContent);
  $("frame").append(frame);
}

$("title").textContent = data.title;
$("facts").append(...data.facts.map(([name, value, remark]) =>
  element("div", {}, element("dt", { textContent: name }), element("dd", { className: "value", textContent: value }), element("dd", { className: "remark", textContent: remark }))));
for (const id of ["charts", "heads"]) {
  $(id).closest("section").hidden = !data[id].length;
  for (const spec of data[id]) addChart($(id), spec);
}
$("sample").closest("section").hidden = !data.samples.length;
if (data.samples.length) {
  $("slider").max = $("slider").value = data.samples.length - 1;
  $("slider").disabled = data.samples.length < 2;
  $("slider").addEventListener("input", showSample);
  showSample();
}
$("config").textContent = data.config;
$("config").closest("details").hidden = !data.config;
choices($("scale"), [["linear", "linear steps"], ["log", "log steps"]], setScale);
$("theme").addEventListener("click", () => setTheme(state.theme === "dark" ? "light" : "dark"));
setTheme(state.theme);
setScale(state.scale);
$("frame").hidden = !$("attention");
if ($("attention")) showAttention();
addEventListener("resize", () => charts.forEach(draw));
