// The large map of one head; of two steps that are compared, at the first.

import { $, ARROWS, clamp, css, element, onKeys } from "browser/elements.js";
import { byteAt, drawLabel, drawMap, fitCanvas, layout, ofHead, PAD, weightOf } from "browser/maps.js";
import { addFollower, addView, change, chosenToken, point, pointer, shown } from "browser/render.js";
import { data, headName } from "browser/state.js";
import { capital, squareInWords } from "browser/words.js";

const over = $("over");

addView(function drawStage() {
  const { sides: [side], labels, palette } = shown;
  const title = capital(headName(shown.head));
  $("stage-title").textContent = shown.other === null ? title : `${title}, ${side.title}`;
  fillRamp($("ramp"), "weights", ["0%", "25%", "100%"]);
  // The map fits into the window, below the header and with the rest of this panel, whose height is known by now.
  const opened = $("square").offsetHeight; // not counted: it is below the map, and a person scrolls to it
  const rest = $("stage").offsetHeight - $("panes").offsetHeight - opened;
  const height = Math.max(300, (parseFloat(css("window")) || innerHeight) - $("main").offsetTop - rest - 28);
  const canvas = $("map");
  const geometry = (shown.geometry = layout(canvas.getContext("2d"), $("panes").clientWidth, height, labels));
  const map = ofHead(side.weights, side.head, labels.length);
  drawMap(fitCanvas(canvas, geometry.wide, geometry.high), geometry, (...square) =>
    palette.weights[byteAt(map, ...square)]);
  const name = `attention map, ${headName(shown.head)}, ${side.when}`;
  over.ariaLabel = `${name}; arrows move the crosshair, enter chooses the token`;
  drawHover();
});

function locate({ offsetX, offsetY }) {
  const { room, cell, length } = shown.geometry;
  const [query, key] = [Math.floor((offsetY - PAD) / cell), Math.floor((offsetX - room) / cell)];
  return key >= 0 && key < length && query >= 0 && query < length ? { query, key } : null;
}

const choose = () => pointer.cell && change({ token: pointer.cell.query, square: pointer.cell });
over.addEventListener("pointermove", (event) => hover(locate(event)));
for (const end of ["pointerleave", "blur"]) over.addEventListener(end, () => hover(null));
over.addEventListener("click", (event) => (hover(locate(event)), choose()));
onKeys(over, ARROWS, ([down, right]) => {
  const last = shown.labels.length - 1;
  const { query, key } = pointer.cell ?? { query: last, key: last };
  hover({ query: clamp(query + down, last), key: clamp(key + right, last) });
  $("live").textContent = $("readout").textContent;
}, choose);

function hover(cell) {
  const { cell: before } = pointer;
  if (cell?.query !== before?.query || cell?.key !== before?.key) point({ cell });
}

// Frames the row of the chosen token, and draws a crosshair on the square that is pointed at.
function drawHover() {
  const { cell: pointed } = pointer;
  const mark = { back: css("accent"), ink: css("panel") };
  const token = chosenToken();
  const { geometry } = shown;
  const { room, cell, side, texts } = geometry;
  const context = fitCanvas(over, geometry.wide, geometry.high);
  const band = (axis, index) =>
    axis === "query" ? [room, PAD + index * cell, side, cell] : [room + index * cell, PAD, cell, side];
  context.strokeStyle = context.fillStyle = mark.back;
  if (token !== null) {
    context.lineWidth = 1.5;
    context.strokeRect(...band("query", token));
    drawLabel(context, geometry, "query", token, texts[token], mark);
  }
  for (const [axis, index] of Object.entries(pointed ?? {})) {
    context.globalAlpha = 0.16;
    context.fillRect(...band(axis, index));
    context.globalAlpha = 1;
    drawLabel(context, geometry, axis, index, texts[index], mark);
  }
  context.lineWidth = 2;
  if (pointed)
    context.strokeRect(room + pointed.key * cell - 1, PAD + pointed.query * cell - 1, cell + 2, cell + 2);
  const invitation = `Point at a square to read it; click to ${shown.typing ? "open it" : "choose its row"}.`;
  const reading = ({ query, key }) => squareInWords(shown.labels, query, key,
    shown.sides.map((side) => [shown.sides[1] ? side.name : "", weightOf(side, side.head, query, key)]));
  $("readout").textContent = pointed ? reading(pointed) : invitation;
}

// Fills an element with a ramp of the page's colours and the meanings of its left end, middle and right end.
export function fillRamp(parent, name, meanings) {
  const stops = data.colours[shown.theme][name];
  const bar = element("i", { style: { background: `linear-gradient(90deg, ${stops})` } });
  parent.replaceChildren(bar, ...meanings.map((text) => element("span", {}, text)));
}

addFollower(drawHover);
