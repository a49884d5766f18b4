// Thumbnails of all heads.

import { $, element } from "browser/elements.js";
import { ofHead, shrink } from "browser/maps.js";
import { addView, change, shown } from "browser/render.js";
import { ALL_HEADS, formation, HEADS, headName, labelsOf, LAYERS, MARKED, SCORES, shortName, written } from "browser/state.js";

export const thumbs = ALL_HEADS.map((head) => {
  const caption = element("span", { className: "caption" }, element("span"), element("span"));
  const marks = element("span", { className: "marks" });
  const button = element("button", { className: "thumb" }, element("canvas"), element("i"), caption, marks);
  button.addEventListener("click", () => change({ head }));
  return button;
});

function drawGrid() {
  const score = shown.order === "layer" ? shown.score : shown.order;
  const scores = shown.capture.scores[score].flat();
  const order = [...ALL_HEADS];
  if (shown.order !== "layer") order.sort((one, two) => scores[two] - scores[one] || one - two);
  arrange(order);
  $("bar-meaning").textContent = `bar: ${SCORES[score].label}`;
  const length = labelsOf(shown.probe).length;
  const factor = Math.max(1, Math.ceil(length / (thumbs[0].clientWidth * devicePixelRatio)));
  const image = new ImageData(Math.ceil(length / factor), Math.ceil(length / factor));
  for (const [head, thumb] of thumbs.entries()) {
    const [canvas, bar, caption, marks] = thumb.children;
    if (canvas.width !== image.width) canvas.width = canvas.height = image.width;
    shrink(ofHead(shown.a, head, length), length, factor, shown.palette.weights, image);
    canvas.getContext("2d").putImageData(image, 0, 0);
    bar.style.width = `${100 * scores[head]}%`;
    caption.children[0].textContent = shortName(head);
    caption.children[1].textContent = written(scores[head], 2);
    const formed = MARKED.filter((one) => formation(shown.run, one, head) <= shown.capture.step);
    if (marks.dataset.formed !== formed.join()) {
      marks.dataset.formed = formed.join();
      marks.replaceChildren(...formed.map(markOf));
    }
    thumb.setAttribute("aria-pressed", head === shown.head);
    const told = formed.map((one) => `, ${SCORES[one].label} formed at step ${formation(shown.run, one, head)}`);
    thumb.title = `${headName(head)}, ${SCORES[score].label} ${written(scores[head], 2)}${told.join("")}`;
    thumb.setAttribute("aria-label", thumb.title);
  }
}

function arrange(order) {
  const sorted = shown.order !== "layer";
  const key = `${sorted} ${order}`;
  if ($("grid").dataset.order === key) return;
  $("grid").dataset.order = key;
  $("grid").className = sorted ? "sorted" : "";
  const wide = `max(72px, min(190px, calc(${100 / thumbs.length}% - 5px)))`;
  $("grid").style.gridTemplateColumns = sorted ? `repeat(auto-fill, minmax(${wide}, 1fr))` : `max-content repeat(${HEADS}, minmax(20px, 190px))`;
  if (sorted) return $("grid").replaceChildren(...order.map((head) => thumbs[head]));
  const heading = (textContent) => element("span", { className: "heading", textContent });
  const rows = [heading("L\\H"), ...Array.from({ length: HEADS }, (_, head) => heading(head))];
  for (let layer = 0; layer < LAYERS; layer++) rows.push(heading(layer), ...thumbs.slice(layer * HEADS, (layer + 1) * HEADS));
  $("grid").replaceChildren(...rows);
}

const markOf = (score) => element("b", { textContent: SCORES[score].letter, style: { background: `var(--${SCORES[score].colour})` } });

for (const score of MARKED) $("legend").append(element("span", {}, markOf(score), SCORES[score].label));
$("legend").append("letter: formed by this step", element("span", { id: "bar-meaning" }));
addView(drawGrid);
