// The report of a run, from top to bottom: its story, figures, charts, samples, what surprised it, the heads that
// matter, the lens, and the page of attention maps in a frame.

import { BOX, chartColumns, drawChart, shape, stagesOf, written } from "browser/chart.js";
import {
  $, choices, clamp, closest, element, onKeys, press, SIDEWAYS, systemTheme, tokenSpans,
} from "browser/elements.js";
import { createLens } from "browser/lens.js";
import { palette } from "browser/maps.js";
import { expectationItems, measuredOf, shadeBySurprise } from "browser/surprise.js";
import { decimal, signed } from "browser/words.js";

const data = JSON.parse($("data").textContent);
const GROUPS = ["charts", "heads", "machine"];
const STAGES = stagesOf(data.stages);
const CURVES = GROUPS.flatMap((group) => data[group]).flatMap(({ curves }) => curves);
const LAST = Math.max(1, ...CURVES.map(({ points }) => points.at(-1)[0]));
const state = { step: null }; // and the scale and theme that setScale and setTheme set
const measured = data.details && measuredOf(data.details, "text", data.labels);
const drawLens = measured && createLens($("lens"));

// ---- charts

const DOTTED = 40; // points of a curve, of which each gets a dot
const charts = [];

function addChart(parent, spec, stages) {
  const colours = spec.curves.map((_, i) => {
    if (!spec.layers) return `var(--${["first", "second"][i]})`;
    const share = spec.curves.length > 1 ? (100 * i) / (spec.curves.length - 1) : 60;
    return `color-mix(in oklab, var(--deep) ${share}%, var(--shallow))`;
  });
  const key = element("div", { className: "key" });
  const unit = element("span", { className: "soft" }, spec.unit);
  const heading = element("div", { className: "bar" }, element("h3", {}, spec.title), unit);
  const box = element("div", { className: "chart" }, heading, key);
  const svg = shape(box, "svg", { role: "img", tabindex: 0 });
  parent.append(box);
  const steps = [...new Set(spec.curves.flatMap(({ points }) => points.map(([step]) => step)))].sort((a, b) => a - b);
  const chart = { ...spec, svg, key, colours, stages };
  charts.push(chart);
  const stepAt = (x) => closest(steps, (step) => Math.abs(chart.x(step) - x));
  svg.addEventListener("pointermove", ({ offsetX }) => point(stepAt(offsetX)));
  for (const end of ["pointerleave", "blur"]) svg.addEventListener(end, () => point(null));
  onKeys(svg, SIDEWAYS, (by) => {
    const now = steps.indexOf(closest(steps, (step) => Math.abs(step - state.step)));
    point(state.step === null ? steps.at(-1) : steps[clamp(now + by, steps.length - 1)]);
  });
}

// The point at a step. A curve with few points may have its nearest some way off.
const at = (points, step) => (step === null ? points.at(-1) : closest(points, ([other]) => Math.abs(other - step)));

function draw(chart) {
  const { svg, curves, colours, title, unit, top, stages } = chart;
  const values = curves.flatMap(({ points }) => points.map(([, value]) => value)).sort((a, b) => a - b);
  let [low, high] = top ? [0, top] : [values[0], values.at(-1)];
  if (!top && low > 0 && (low < 0.5 * high || low === high)) low = 0;
  if (low === high) high = low + 1;
  const dotted = (points) => (points.length <= DOTTED ? points : points.slice(-1));
  const lines = curves.map(({ points }, i) => ({ points, colour: colours[i], dots: dotted(points) }));
  Object.assign(chart, drawChart(svg, { scale: state.scale, last: LAST, low, high, curves: lines, stages }));
  const spoken = ([step, value]) => `${written(value)} at step ${step}`;
  const ends = curves.map(({ name, points }) => `${name} ${spoken(points[0])}, ${spoken(points.at(-1))}`);
  svg.ariaLabel = `${title}, ${unit}: ${[...ends, ...stages.map(({ inWords }) => inWords)].join("; ")}`;
  chart.cursor = shape(svg, "g", {});
  mark(chart);
}

// The values at the step that is pointed at, or else the last ones.
function mark({ svg, curves, colours, cursor, key, x, y, top }) {
  cursor.replaceChildren();
  const { step: pointed } = state;
  const ends = { y1: BOX.top, y2: svg.clientHeight - BOX.bottom };
  if (pointed !== null) shape(cursor, "line", { class: "cursor", x1: x(pointed), x2: x(pointed), ...ends });
  const entries = curves.map(({ name, points }, i) => {
    const [step, value] = at(points, pointed);
    if (pointed !== null) shape(cursor, "circle", { cx: x(step), cy: y(value), r: 4, style: `fill: ${colours[i]}` });
    const figure = element("b", {}, top ? decimal(value) : written(value));
    return element("span", {}, element("i", { style: { background: colours[i] } }), `${name} `, figure);
  });
  if (pointed !== null) entries.push(element("span", { className: "soft" }, `step ${pointed}`));
  key.replaceChildren(...entries);
}

function point(step) {
  state.step = step;
  charts.forEach(mark);
}

// ---- the rest

function showSamples() {
  const [{ samples }, slider] = [data, $("slider")];
  const show = () => {
    const { step, prompt, text } = samples[slider.value];
    $("step").textContent = `at step ${step.toLocaleString("en")}`;
    slider.ariaValueText = `step ${step}`;
    $("sample").replaceChildren(element("b", {}, prompt), text);
  };
  slider.max = slider.value = samples.length - 1;
  slider.parentElement.hidden = samples.length < 2;
  slider.addEventListener("input", show);
  show();
}

// The text with a colour for each token's surprise, and below it what the model expected in place of one of them.
function showSurprise() {
  const { labels, bits } = measured;
  const spans = tokenSpans(labels);
  $("surprised").append(...spans);
  shadeBySurprise(spans, measured);
  let chosen = 1 + bits.indexOf(Math.max(...bits)); // the token that surprised most
  const choose = (token) => {
    chosen = token;
    spans.forEach((span, i) => (span.className = i === token ? "chosen" : ""));
    $("expected").replaceChildren(...expectationItems(measured, token));
  };
  for (const [token, span] of spans.entries())
    for (const kind of ["pointerover", "click"]) span.addEventListener(kind, () => choose(token));
  onKeys($("surprised"), SIDEWAYS, (by) => choose(clamp(chosen + by, labels.length - 1)));
  choose(Math.min(chosen, labels.length - 1));
}

function showHeads() {
  const change = (value, where) => value && `${signed(value[0])} ± ${decimal(value[1])} ${where}`;
  $("matter").append(...data.matter.map(({ head, text, repeated, sentence }) => {
    const numbers = [change(text, "on text"), change(repeated, "on repetition")].filter(Boolean).join(", ");
    return element("li", {},
      element("b", {}, `head ${head}`),
      element("span", {}, sentence),
      element("span", { className: "numbers" }, numbers));
  }));
}

function setTheme(theme) {
  state.theme = document.documentElement.dataset.theme = theme;
  document.querySelector("#frame iframe")?.contentWindow.dispatchEvent(new CustomEvent("theme", { detail: theme }));
  const { colours } = palette(data.colours[theme], "sqrt");
  drawLens?.({ measured, colouring: "probability", colours, token: null, name: `step ${data.step}` });
}

function setScale(scale) {
  state.scale = scale;
  press($("scale"), scale);
  layCharts();
}

// The page of maps is as high as what it shows, so that there is one scroll bar and not two.
function showAttention() {
  const page = JSON.parse($("attention").textContent);
  const frame = element("iframe", { title: "attention maps, step by step", srcdoc: page });
  frame.addEventListener("load", () => {
    const { documentElement: root, body } = frame.contentDocument;
    frame.contentDocument.getElementById("theme").hidden = true; // the report's own button switches both
    root.style.overflowY = "hidden";
    // In place of the frame's own 100vh.
    const tellWindow = () => root.style.setProperty("--window", `${innerHeight}px`);
    addEventListener("resize", tellWindow);
    tellWindow();
    new ResizeObserver(() => (frame.style.height = `${body.offsetHeight}px`)).observe(body);
    setTheme(state.theme);
  });
  $("frame").append(frame);
  $("alone").href = URL.createObjectURL(new Blob([page], { type: "text/html" }));
}

function layCharts() {
  for (const group of GROUPS) {
    const columns = chartColumns(data[group].length, $(group).clientWidth);
    $(group).style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  }
  charts.forEach(draw);
}

for (const id of ["title", "story", "idle", "config"]) $(id).textContent = data[id];
if (data.model) Object.assign($("model"), { href: data.model, hidden: false });
$("facts").append(...data.facts.map(([name, value, remark]) => element("div", {},
  element("dt", {}, name),
  element("dd", { className: "value" }, value),
  element("dd", { className: "remark" }, remark))));
for (const group of GROUPS) {
  const stages = (spec) => (group === "charts" ? STAGES : STAGES.filter(({ score }) => score === spec.score));
  for (const spec of data[group]) addChart($(group), spec, stages(spec));
}
const formed = STAGES.map(({ inWords }) => inWords).join("; ");
$("formed").textContent = formed ? `${formed}.` : "No head has formed a clear pattern.";
$("about-loss").hidden = !formed;
$("stages").hidden = !data.heads.length;
$("faint").textContent = data.faint.length ? `No head shows these patterns clearly: ${data.faint.join(", ")}.` : "";
$("experiments").hidden = !data.experiments;
$("experiments").append(`${data.experiments}.`);

// An element of each section that a report may lack, whether this one has it, and what fills it.
for (const [id, there, show] of [
  ...GROUPS.map((group) => [group, data[group].length]),
  ["sample", data.samples.length, showSamples],
  ["surprised", data.details, showSurprise],
  ["lens", data.details],
  ["matter", data.matter?.length, showHeads],
  ["frame", $("attention"), showAttention],
  ["config", data.config],
]) {
  $(id).closest("section, details").hidden = !there;
  if (there) show?.();
}
choices($("scale"), [["linear", "linear steps"], ["log", "log steps"]], setScale);
$("theme").addEventListener("click", () => setTheme(state.theme === "dark" ? "light" : "dark"));
setTheme(systemTheme);
setScale("linear");
addEventListener("resize", layCharts);
