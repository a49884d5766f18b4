// The large map of one head, at one step or at two steps side by side.

import { $, ARROWS, clamp, css, element, onKeys } from "browser/elements.js";
import { byteAt, drawLabel, drawMap, fitCanvas, layout, ofHead, PAD, weightAt } from "browser/maps.js";
import { addFollower, addView, change, chosenToken, point, pointer, shown } from "browser/render.js";
import { data, headName, headPart } from "browser/state.js";
import { squareInWords } from "browser/words.js";

addView(function drawStage() {
  $("stage-title").textContent = headName(shown.head).replace("l", "L");
  fillRamp($("ramp"), "weights", ["0%", "25%", "100%"]);
  const { sides, labels, palette } = shown;
  while ($("panes").children.length > sides.length) $("panes").lastChild.remove();
  while ($("panes").children.length < sides.length) $("panes").append(newPane());
  const titles = [...$("panes").children].map((pane) => pane.firstChild);
  for (const [i, title] of titles.entries()) {
    title.textContent = `${sides[i].title}, ${headPart(sides[i].head)}`;
    title.hidden = !sides[1];
  }
  // The map fits into the window, below the header and with the rest of this panel, whose height is known by now.
  const opened = $("square").offsetHeight; // not counted: it is below the map, and a person scrolls to it
  const rest = $("stage").offsetHeight - $("panes").offsetHeight - opened + titles[0].offsetHeight;
  const height = Math.max(300, (parseFloat(css("window")) || innerHeight) - $("main").offsetTop - rest - 28);
  shown.panes = sides.map(({ name, when, head, weights }, i) => {
    const box = $("panes").children[i];
    const [canvas, over] = box.lastChild.children;
    const geometry = layout(canvas.getContext("2d"), box.clientWidth, height, labels);
    const map = ofHead(weights, head, labels.length);
    drawMap(fitCanvas(canvas, geometry.wide, geometry.high), geometry, (...square) =>
      palette.weights[byteAt(map, ...square)]);
    over.ariaLabel = `attention map, ${headName(head)}, ${when}; arrows move the crosshair, enter chooses the token`;
    return { name: sides[1] ? name : "", value: (...square) => weightAt(map, ...square), geometry, over };
  });
  drawHover();
});

function newPane() {
  const over = element("canvas", { className: "over", tabIndex: 0, role: "application" });
  const frame = element("div", { className: "layers" }, element("canvas"), over);
  const box = element("div", { className: "pane" }, element("h3"), frame);
  const locate = (event) => {
    const { geometry } = shown.panes.find((pane) => pane.over === over);
    const key = Math.floor((event.offsetX - geometry.room) / geometry.cell);
    const query = Math.floor((event.offsetY - PAD) / geometry.cell);
    const inside = key >= 0 && key < geometry.length && query >= 0 && query < geometry.length;
    return inside ? { query, key } : null;
  };
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
  return box;
}

function hover(cell) {
  const { cell: before } = pointer;
  if (cell?.query !== before?.query || cell?.key !== before?.key) point({ cell });
}

// Frames the row of the chosen token, and draws a crosshair on the square that is pointed at.
function drawHover() {
  const { cell: pointed } = pointer;
  const mark = { back: css("accent"), ink: css("panel") };
  const token = chosenToken();
  for (const { geometry, over } of shown.panes) {
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
    if (!pointed) continue;
    for (const [axis, index] of Object.entries(pointed)) {
      context.globalAlpha = 0.16;
      context.fillRect(...band(axis, index));
      context.globalAlpha = 1;
      drawLabel(context, geometry, axis, index, texts[index], mark);
    }
    context.lineWidth = 2;
    context.strokeRect(room + pointed.key * cell - 1, PAD + pointed.query * cell - 1, cell + 2, cell + 2);
  }
  const invitation = `Point at a square to read it; click to ${shown.typing ? "open it" : "choose its row"}.`;
  const reading = ({ query, key }) =>
    squareInWords(shown.labels, query, key, shown.panes.map(({ name, value }) => [name, value(query, key)]));
  $("readout").textContent = pointed ? reading(pointed) : invitation;
}

// Fills an element with a ramp of the page's colours and the meanings of its left end, middle and right end.
export function fillRamp(parent, name, meanings) {
  const stops = data.colours[shown.theme][name];
  const bar = element("i", { style: { background: `linear-gradient(90deg, ${stops})` } });
  parent.replaceChildren(bar, ...meanings.map((text) => element("span", {}, text)));
}

addFollower(drawHover);
