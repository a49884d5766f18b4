// The picture of the model, in which a person chooses parts: its tables, and for each block its heads, as thumbnails of
// their maps, and its feed-forward. The help explains each kind of part (see page.html).

import { $, element } from "browser/elements.js";
import { ofHead, shrink } from "browser/maps.js";
import { addView, change, shown } from "browser/render.js";
import {
  ALL_HEADS, formation, formedBetween, headName, headPart, HEADS, LAYERS, MARKED, SCORES, shortName, snapshots, state,
} from "browser/state.js";
import { decimal } from "browser/words.js";

// The explanations of the help by word: tooltips where the page uses the word (dfn), and texts about parts.
const words = new Map([...$("words").querySelectorAll("dt")].map(({ textContent, nextElementSibling }) =>
  [textContent, nextElementSibling.textContent.replace(/\s+/g, " ").trim()]));
const explained = (use) => Object.assign(use, { title: words.get(use.textContent.toLowerCase()), tabIndex: 0 });
document.querySelectorAll("dfn").forEach(explained);
export const word = (name) => (words.has(name) ? explained(element("dfn", {}, name)) : name);
const kindOf = (part) => part.replace(/ [\d.]+$/, "");
export const meaningOf = (part) => words.get(kindOf(part));

export const thumbs = ALL_HEADS.map((head) => {
  const parts = [element("canvas"), element("i"), element("span", { className: "marks" })];
  const onclick = () => change({ head, part: null }); // while "Break it" is open, switches.js takes the click
  return element("button", { className: "thumb", title: words.get("head"), onclick }, ...parts);
});

let inSight = null; // the part that was scrolled to last, and the width of the picture then
Object.assign(state, { part: null }); // the part that was chosen last, if it is not a head
const PARTS = Object.keys(snapshots.find(({ ablation }) => ablation)?.ablation.text ?? {});
export const buttons = new Map(ALL_HEADS.map((head) => [headPart(head), thumbs[head]]));

function buttonOf(part) {
  const [textContent, title] = [kindOf(part), meaningOf(part) ?? ""];
  const button = element("button", { className: "part", textContent, ariaLabel: part, title });
  button.addEventListener("click", () => change({ part }));
  buttons.set(part, button);
  return button;
}

const tables = PARTS.filter((part) => !/\d$/.test(part));
const blocks = [...Array(LAYERS).keys()].map((layer) => {
  const heads = element("span", { className: "heads" }, ...thumbs.slice(layer * HEADS, (layer + 1) * HEADS));
  const buttonsOf = (kind) => PARTS.filter((part) => part === `${kind} ${layer}`).map(buttonOf);
  const name = element("span", { className: "heading" }, word("block"), ` ${layer}`);
  const parts = [...buttonsOf("value embeddings"), heads, ...buttonsOf("feed-forward")];
  return element("span", { className: "block" }, name, element("span", {}, ...parts));
});
const flow = (...nodes) => element("span", {}, ...nodes);
$("grid").append(flow(word("token"), "s →"), element("span", { className: "tables" }, ...tables.map(buttonOf)));
$("grid").append(flow(word("stream"), " →"), ...blocks, flow("→ ", word("next token")));
$("grid").style.setProperty("--columns", HEADS <= 4 ? HEADS : Math.ceil(Math.sqrt(HEADS)));

addView(function drawHeads() {
  const [side] = shown.sides;
  const scores = side.snapshot.scores[shown.score].flat();
  const { label } = SCORES[shown.score];
  const length = shown.labels.length;
  const width = Math.max(1, thumbs[0].clientWidth * devicePixelRatio); // the width is 0 before the page is shown
  const factor = Math.ceil(length / width);
  const image = new ImageData(Math.ceil(length / factor), Math.ceil(length / factor));
  for (const [head, button] of thumbs.entries()) {
    const [canvas, bar, marks] = button.children;
    if (canvas.width !== image.width) canvas.width = canvas.height = image.width;
    shrink(ofHead(side.weights, head, length), length, factor, shown.palette.weights, image);
    canvas.getContext("2d").putImageData(image, 0, 0);
    bar.style.width = `${100 * scores[head]}%`;
    const formed = MARKED.filter((score) => formation(score, head) <= side.snapshot.step);
    marks.replaceChildren(shortName(head), ...side.descriptions[head].patterns.map(markOf));
    const since = formed.map((score) => `${SCORES[score].label} formed ${formedBetween(formation(score, head))}`);
    button.ariaLabel = [headName(head), `${label} ${decimal(scores[head])}`, ...since].join(", ");
  }
  const chosen = shown.part ?? headPart(side.head);
  // If the picture is wider than the window, scrolls to the chosen part.
  const { clientWidth } = $("grid");
  const wanted = `${chosen}, ${clientWidth}`;
  if (wanted !== inSight) $("grid").scrollLeft = buttons.get(chosen).offsetLeft - clientWidth / 2;
  inSight = wanted;
  for (const [part, button] of buttons) button.ariaPressed = part === chosen;
});

export const markOf = (score) => element("b", {
  className: "mark", textContent: SCORES[score].letter, style: { background: `var(--${SCORES[score].colour})` },
});
