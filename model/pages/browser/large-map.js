// The large map: one head at one step, or two of them and their difference.

import { $, ARROWS, clamp, css, download, downloadCsv, element, onKeys } from "browser/elements.js";
import { byteAt, drawLabel, drawMap, fitCanvas, layout, ofHead, PAD, palette, weightAt } from "browser/maps.js";
import { addChoices, addFollower, addView, change, chosenToken, point, pointer, shown } from "browser/render.js";
import { data, headName, headPart, placeOf, RUNS, shortName } from "browser/state.js";
import { squareInWords } from "browser/words.js";

// Pixels of a saved picture: of each on the paper, at most on a side (browsers refuse much more), and of its parts.
const PICTURE = { scale: 3, most: 12_000, least: 520, token: 14, margin: 16, head: 58, bar: 70 };
const PAPER = { line: "#b8bcc4", text: "#191d23", soft: "#444444" };

function panes() {
  const length = shown.labels.length;
  const many = shown.sides.length > 1;
  const list = shown.sides.map(({ name, when, head, weights }) => {
    const map = ofHead(weights, head, length);
    return {
      name: many ? name : "",
      title: many ? `${when}, ${headPart(head)}` : when,
      value: (query, key) => weightAt(map, query, key),
      colour: (colours, query, key) => colours.weights[byteAt(map, query, key)],
    };
  });
  if (!many) return list;
  const [a, b] = list;
  const value = (query, key) => a.value(query, key) - b.value(query, key);
  const difference = { name: "A−B", title: "blue: more in A, orange: more in B", value };
  return [...list, { ...difference, colour: (colours, query, key) => colours.difference(value(query, key)) }];
}

// Of the ends and the middle of the colour bar.
const meanings = () => ["0%", shown.scale === "sqrt" ? "25%" : "50%", "100%"];
const paneTitle = ({ name, title }) => (name ? `${name}: ${title}` : title);

addView(function drawStage() {
  $("stage-title").textContent = headName(shown.head).replace("l", "L");
  $("much").textContent = shown.theme === "dark" ? "Bright" : "Dark";
  $("weighting-note").hidden = shown.weighting === "weights";
  $("same").hidden = shown.snapshot.step > 1 || !RUNS[shown.run].unmoved?.[shown.probe];
  fillRamp($("ramp"), "weights", meanings());
  const list = panes();
  while ($("panes").children.length > list.length) $("panes").lastChild.remove();
  while ($("panes").children.length < list.length) $("panes").append(newPane());
  const titles = [...$("panes").children].map((pane) => pane.firstChild);
  for (const [i, title] of titles.entries()) {
    title.textContent = paneTitle(list[i]);
    title.hidden = !shown.other && RUNS.length < 2;
  }
  // Room for the map in the first screen, below the header and beside the rest of this panel, which stands by now.
  const rest = $("stage").offsetHeight - $("panes").offsetHeight + titles[0].offsetHeight;
  const height = Math.max(300, (parseFloat(css("window")) || innerHeight) - $("main").offsetTop - rest - 40);
  shown.panes = list.map((pane, i) => {
    const box = $("panes").children[i];
    const [map, over] = box.lastChild.children;
    const geometry = layout(map.getContext("2d"), box.clientWidth, height, shown.labels);
    const colourOf = (query, key) => pane.colour(shown.palette, query, key);
    drawMap(fitCanvas(map, geometry.wide, geometry.high), geometry, colourOf);
    const keys = "arrow keys move the crosshair, enter chooses the token";
    over.ariaLabel = `attention map, ${headName(shown.head)}, ${pane.title}; ${keys}`;
    return { ...pane, geometry, over };
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
  const choose = () => pointer.cell && change({ token: shown.received ? pointer.cell.key : pointer.cell.query });
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

// Frames the chosen token's row (or column), and draws a crosshair on the square that is pointed at.
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
      const axis = shown.received ? "key" : "query";
      context.lineWidth = 1.5;
      context.strokeRect(...band(axis, token));
      drawLabel(context, geometry, axis, token, texts[token], mark);
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
  $("readout").textContent = pointed ? reading(pointed) : "Point at a square to read it; click to choose its token.";
}

function reading({ query, key }) {
  const weights = shown.panes.slice(0, shown.sides.length).map(({ name, value }) => [name, value(query, key)]);
  return squareInWords(shown.labels, query, key, weights);
}

// Fills an element with a ramp of the page's colours, and with what its left end, its middle and its right end mean.
export function fillRamp(parent, name, meanings) {
  const stops = data.colours[shown.theme][name];
  const bar = element("i", { style: { background: `linear-gradient(90deg, ${stops})` } });
  parent.replaceChildren(bar, ...meanings.map((text) => element("span", {}, text)));
}

// ---- what is shown, to take away

const fileName = () => `attention-step-${shown.snapshot.step}-head-${shortName(shown.head)}`;

// The panes side by side with their titles and colour bars: always in light colours.
function picture() {
  const title = `${data.title}: ${headName(shown.head)}`;
  const { labels } = shown;
  const canvas = element("canvas");
  const room = Math.max(PICTURE.least, PICTURE.token * labels.length);
  const geometry = layout(canvas.getContext("2d"), room, room, labels);
  const pane = geometry.wide + PICTURE.bar;
  const wide = Math.max(shown.panes.length * pane, 9 * title.length) + 2 * PICTURE.margin;
  const high = PICTURE.head + geometry.high + PICTURE.margin;
  const scale = Math.min(PICTURE.scale, PICTURE.most / Math.max(wide, high));
  Object.assign(canvas, { width: wide * scale, height: high * scale });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const write = (text, x, y, font, colour = PAPER.text) => {
    Object.assign(context, { font: `${font} system-ui, sans-serif`, fillStyle: colour });
    context.fillText(text, x, y);
  };
  context.fillStyle = "#ffffff";
  context.fillRect(0, 0, wide, high);
  write(title, PICTURE.margin, 26, "600 15px");
  const light = palette(data.colours.light, shown.scale);
  shown.panes.forEach((one, i) => {
    context.save();
    context.translate(PICTURE.margin + i * pane, PICTURE.head);
    write(paneTitle(one), geometry.room, -6, "12px", PAPER.soft);
    drawMap(context, geometry, (query, key) => one.colour(light, query, key), PAPER);
    const difference = one.name === "A−B";
    const marks = difference ? ["−100%", "0%", "100%"] : meanings();
    const [x, tall] = [geometry.wide + 10, Math.min(geometry.side, 220)];
    const ramp = context.createLinearGradient(0, PAD + tall, 0, PAD);
    const stops = data.colours.light[difference ? "differences" : "weights"];
    stops.forEach((stop, j) => ramp.addColorStop(j / (stops.length - 1), stop));
    context.fillStyle = ramp;
    context.fillRect(x, PAD, 12, tall);
    marks.forEach((text, j) => write(text, x + 17, PAD + (1 - j / 2) * tall + 4, "10px", PAPER.soft));
    context.restore();
  });
  return canvas;
}

// The squares on and below the diagonal.
function saveNumbers() {
  const { labels, sides, panes } = shown;
  const about = { probe: shown.probeName };
  sides.forEach(({ run, snapshot, head: number }, i) => {
    const [layer, head] = placeOf(number);
    const place = { run: RUNS[run].name, step: snapshot.step, layer, head };
    for (const [column, value] of Object.entries(place)) about[i ? `other_${column}` : column] = value;
  });
  const rows = labels.flatMap((query_token, query) => labels.slice(0, query + 1).map((key_token, key) => {
    const [weight, other_weight, difference] = panes.map(({ value }) => Number(value(query, key).toFixed(4)));
    return { ...about, query, query_token, key, key_token, weight, other_weight, difference };
  }));
  downloadCsv(`${fileName()}.csv`, data.columns[sides.length > 1 ? "comparison" : "weights"], rows);
}

addChoices($("scales"), "scale", [["sqrt", "√ scale"], ["linear", "linear"]]);
$("save-png").addEventListener("click", () => picture().toBlob((blob) => download(`${fileName()}.png`, blob)));
$("save-csv").addEventListener("click", saveNumbers);
addFollower(drawHover);
