// Thumbnails of all heads.

import { $, element } from "browser/elements.js";
import { ofHead, shrink } from "browser/maps.js";
import { addView, change, shown } from "browser/render.js";
import {
  ALL_HEADS, formation, formedBetween, HEADS, headName, LAYERS, MARKED, RUN, SCORES, shortName,
} from "browser/state.js";
import { decimal, largestFirst } from "browser/words.js";

const GAP = 2; // pixels between thumbnails
const HEADING = 18; // of a row's or a column's number
const BAR = 4; // below a thumbnail's map; thinner below the smallest
const CAPTION = 17;
const CAPTIONED = 58; // the narrowest with a caption
const LARGEST = 190;
const SMALLEST = matchMedia("(pointer: coarse)").matches ? 44 : 20;

export const thumbs = ALL_HEADS.map((head) => {
  const caption = element("span", { className: "caption" }, element("span"), element("span"));
  const [marks, without] = ["marks", "without"].map((className) => element("span", { className }));
  const parts = [element("canvas"), element("i"), caption, marks, without];
  return element("button", { className: "thumb", onclick: () => change({ head }) }, ...parts);
});

// On what losses without a part are measured, and which of these is like the text that is shown.
export const KINDS = { text: "on text", repeated: "on repetition" };
export const kindShown = () => (shown.textName === "repeated" ? "repeated" : "text");
const scoreOfBars = () => (shown.order === "layer" ? shown.score : shown.order);

addView(function drawHeads() {
  const [side] = shown.sides;
  $("sort").value = shown.order;
  const scores = side.snapshot.scores[scoreOfBars()].flat();
  const told = side.descriptions.flat().map(({ patterns }) => patterns);
  const { label } = SCORES[scoreOfBars()];
  drawLegend(told.flat());
  arrange(shown.order === "layer" ? ALL_HEADS : largestFirst(scores));
  const length = shown.labels.length;
  const width = Math.max(1, thumbs[0].clientWidth * devicePixelRatio); // none where the page is not shown yet
  const factor = Math.ceil(length / width);
  const image = new ImageData(Math.ceil(length / factor), Math.ceil(length / factor));
  for (const [head, button] of thumbs.entries()) {
    const [canvas, bar, caption, marks] = button.children;
    const score = decimal(scores[head]);
    if (canvas.width !== image.width) canvas.width = canvas.height = image.width;
    shrink(ofHead(side.weights, head, length), length, factor, shown.palette.weights, image);
    canvas.getContext("2d").putImageData(image, 0, 0);
    bar.style.width = `${100 * scores[head]}%`;
    caption.firstChild.textContent = shortName(head);
    caption.lastChild.textContent = score;
    const formed = MARKED.filter((one) => formation(one, head) <= side.snapshot.step);
    marks.replaceChildren(...told[head].map(markOf));
    button.ariaPressed = head === side.head;
    const since = formed.map((one) => `${SCORES[one].label} formed ${formedBetween(formation(one, head))}`);
    button.ariaLabel = [headName(head), `${label} ${score}`, ...since].join(", ");
  }
});

function arrange(order) {
  const grid = $("grid");
  const sorted = shown.order !== "layer";
  // On a wide screen the style sheet gives the panel a height into which all heads should fit.
  const isBounded = getComputedStyle($("heads")).getPropertyValue("--bounded") === "1";
  const wide = $("scroll").clientWidth - 4;
  const high = isBounded ? $("scroll").clientHeight - 4 : Infinity;
  const below = BAR + (sorted ? CAPTION : 0);
  const side = Math.min((wide - HEADING) / HEADS - GAP, (high - HEADING) / LAYERS - GAP - below);
  const pixels = `${Math.floor(Math.max(sorted ? CAPTIONED : SMALLEST, Math.min(LARGEST, side)))}px`;
  grid.style.gridTemplateColumns = sorted ? `repeat(auto-fill, ${pixels})` : `${HEADING}px repeat(${HEADS}, ${pixels})`;
  const key = `${sorted} ${order}`;
  if (grid.dataset.order === key) return;
  grid.dataset.order = key;
  grid.className = sorted ? "grid sorted" : "grid";
  if (sorted) return grid.replaceChildren(...order.map((head) => thumbs[head]));
  const heading = (textContent) => element("span", { className: "heading", textContent });
  const rows = [...Array(LAYERS).keys()].map((layer) => thumbs.slice(layer * HEADS, (layer + 1) * HEADS));
  const cells = ["L\\H", ...Array(HEADS).keys()].map(heading);
  grid.replaceChildren(...cells, ...rows.flatMap((row, layer) => [heading(layer), ...row]));
}

export const markOf = (score) => element("b", {
  className: "mark", textContent: SCORES[score].letter, style: { background: `var(--${SCORES[score].colour})` },
});

// What thumbnails and the chart show, as pictures: the letters, the bar, and the number (see scores.js).
function drawLegend(told) {
  const known = MARKED.filter((score) => told.includes(score) || RUN.stages.some((stage) => stage.score === score));
  const entry = (sign, text) => element("span", {}, sign, ` ${text}`);
  const number = element("b", { className: "sample-number" }, "+0.1");
  $("legend").replaceChildren(
    ...known.map((score) => entry(markOf(score), SCORES[score].label)),
    entry(element("i", { className: "sample-bar" }), `its score of ${SCORES[scoreOfBars()].label}`),
    shown.snapshot.ablation ? entry(number, `more loss ${KINDS[kindShown()]} without it`) : "");
}
