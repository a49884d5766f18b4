// Thumbnails of all heads: a grid for each side.

import { $, element } from "browser/elements.js";
import { ofHead, shrink } from "browser/maps.js";
import { addView, change, changeOther, shown } from "browser/render.js";
import {
  ALL_HEADS, formation, HEADS, headName, LAYERS, MARKED, RUNS, SCORES, shortName, tellsSince,
} from "browser/state.js";
import { decimal, largestFirst } from "browser/words.js";

const GAP = 2; // pixels between thumbnails
const HEADING = 18; // of a row's or a column's number
const BAR = 4; // below a thumbnail's map; thinner below the smallest
const CAPTION = 17;
const CAPTIONED = 58; // the narrowest with a caption
const LARGEST = 190;
const TURNED = 1.5; // times larger must thumbnails become where layers stand beside each other, and not below
const SMALLEST = matchMedia("(pointer: coarse)").matches ? 44 : 20;

const newThumbs = (choose) => ALL_HEADS.map((head) => {
  const caption = element("span", { className: "caption" }, element("span"), element("span"));
  const [marks, without] = ["marks", "without"].map((className) => element("span", { className }));
  const parts = [element("canvas"), element("i"), caption, marks, without];
  return element("button", { className: "thumb", onclick: () => choose(head) }, ...parts);
});

export const thumbs = newThumbs((head) => change({ head }));
const otherThumbs = newThumbs((head) => changeOther({ head }));

addView(function drawHeads() {
  const twoRuns = shown.other && shown.other.run !== shown.run;
  $("grid-a").hidden = $("grid-b").parentElement.hidden = !twoRuns;
  $("sort").value = shown.order;
  $("bar-meaning").textContent = `bars: ${SCORES[scoreOfBars()].label}`;
  drawGrid($("grid"), thumbs, shown.sides[0], $("grid-a"));
  if (twoRuns) drawGrid($("other-grid"), otherThumbs, shown.sides[1], $("grid-b"));
});

const scoreOfBars = () => (shown.order === "layer" ? shown.score : shown.order);

function drawGrid(grid, buttons, side, title) {
  const scores = side.snapshot.scores[scoreOfBars()].flat();
  const { label } = SCORES[scoreOfBars()];
  arrange(grid, buttons, shown.order === "layer" ? ALL_HEADS : largestFirst(scores));
  title.textContent = `${side.name}: ${RUNS[side.run].name}`;
  const length = shown.labels.length;
  const width = Math.max(1, buttons[0].clientWidth * devicePixelRatio); // none where the page is not shown yet
  const factor = Math.ceil(length / width);
  const image = new ImageData(Math.ceil(length / factor), Math.ceil(length / factor));
  for (const [head, button] of buttons.entries()) {
    const [canvas, bar, caption, marks] = button.children;
    const score = decimal(scores[head]);
    if (canvas.width !== image.width) canvas.width = canvas.height = image.width;
    shrink(ofHead(side.weights, head, length), length, factor, shown.palette.weights, image);
    canvas.getContext("2d").putImageData(image, 0, 0);
    bar.style.width = `${100 * scores[head]}%`;
    caption.firstChild.textContent = shortName(head);
    caption.lastChild.textContent = score;
    const formed = MARKED.filter((one) => formation(side.run, one, head) <= side.snapshot.step);
    marks.replaceChildren(...formed.map(markOf));
    button.ariaPressed = head === side.head;
    const step = (one) => (tellsSince(side.run) ? ` at step ${formation(side.run, one, head)}` : "");
    const since = formed.map((one) => `${SCORES[one].label} formed${step(one)}`);
    button.ariaLabel = [headName(head), `${label} ${score}`, ...since].join(", ");
  }
}

function arrange(grid, buttons, order) {
  const sorted = shown.order !== "layer";
  // On a wide screen the style sheet gives the panel a height into which all heads should fit.
  const bounded = getComputedStyle($("heads")).getPropertyValue("--bounded") === "1";
  const wide = grid.parentElement.clientWidth - 4;
  const high = bounded ? $("scroll").clientHeight - 4 : Infinity;
  const upright = layeredSide(wide, high, HEADS, LAYERS);
  const lying = layeredSide(wide, high, LAYERS, HEADS);
  const turned = !sorted && bounded && lying > TURNED * upright;
  const [columns, rows, layered] = turned ? [LAYERS, HEADS, lying] : [HEADS, LAYERS, upright];
  grid.style.gridTemplateColumns = sorted
    ? `repeat(auto-fill, ${sortedSide(wide, high)}px)`
    : `${HEADING}px repeat(${columns}, ${layered}px)`;
  const key = `${sorted} ${turned} ${order}`;
  if (grid.dataset.order === key) return;
  grid.dataset.order = key;
  grid.className = sorted ? "grid sorted" : "grid";
  if (sorted) return grid.replaceChildren(...order.map((head) => buttons[head]));
  const heading = (textContent) => element("span", { className: "heading", textContent });
  const numbers = [...Array(columns).keys()];
  const cells = [turned ? "H\\L" : "L\\H", ...numbers].map(heading);
  for (let row = 0; row < rows; row++) {
    const inRow = numbers.map((column) => buttons[turned ? column * HEADS + row : row * HEADS + column]);
    cells.push(heading(row), ...inRow);
  }
  grid.replaceChildren(...cells);
}

const bounds = (side) => Math.floor(Math.max(SMALLEST, Math.min(LARGEST, side)));

const layeredSide = (wide, high, columns, rows) =>
  bounds(Math.min((wide - HEADING) / columns - GAP, (high - HEADING) / rows - GAP - BAR));

function sortedSide(wide, high) {
  const rows = (side) => Math.ceil(ALL_HEADS.length / Math.floor((wide + GAP) / (side + GAP)));
  const fits = (side) => rows(side) * (side + BAR + CAPTION + GAP) <= high;
  let side = Math.min(LARGEST, high === Infinity ? Math.max(72, wide / HEADS - GAP) : LARGEST);
  while (side > CAPTIONED && !fits(side)) side -= 2;
  return bounds(side);
}

export const markOf = (score) => element("b", {
  className: "mark", textContent: SCORES[score].letter, style: { background: `var(--${SCORES[score].colour})` },
});
