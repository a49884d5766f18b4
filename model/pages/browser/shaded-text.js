// The probe as text, shaded by what a token reads (attends to) or by what reads it.

import { $, clamp, onKeys, SIDEWAYS, tokenSpans } from "browser/elements.js";
import { isDark, rgb } from "browser/maps.js";
import {
  addChoices, addFollower, addView, change, chosenToken, point, pointer, rendered, shown,
} from "browser/render.js";
import { PROBES, state } from "browser/state.js";
import { visible } from "browser/words.js";

const ROOTS = [$("tokens"), $("tokens-b")];
const built = new Map(); // the labels that each of them shows
let revealed = null; // the chosen token that was scrolled to last

// The weights between the chosen token and each other token, on one of the large maps.
export function weightsOf(pane) {
  const token = chosenToken();
  const weight = shown.received ? (i) => pane.value(i, token) : (i) => pane.value(token, i);
  return shown.labels.map((_, i) => (token === null ? 0 : weight(i)));
}

// A token's background and text colour: those of its square on the map.
function shadeOf(token, weights) {
  if (weights[token] < 0.001) return ["", ""];
  const colour = shown.palette.weights[Math.round(255 * Math.sqrt(weights[token]))];
  return [rgb(colour), `var(--${isDark(colour) === (shown.theme === "dark") ? "ink" : "panel"})`];
}

function drawTokens(root, pane) {
  if (built.get(root) !== shown.labels) root.replaceChildren(...tokenSpans(shown.labels));
  built.set(root, shown.labels);
  const weights = weightsOf(pane);
  const token = chosenToken();
  const pointed = pointer.cell && (shown.received ? pointer.cell.query : pointer.cell.key);
  [...root.children].forEach((span, i) => {
    const [background, color] = shadeOf(i, weights);
    Object.assign(span.style, { background, color });
    span.className = i === token ? "chosen" : i === pointed ? "pointed" : "";
  });
}

function drawText() {
  const [a, b] = shown.panes;
  const twoRuns = b && shown.sides[1].run !== shown.run;
  for (const title of document.querySelectorAll("#text h3")) title.hidden = !twoRuns;
  $("tokens-b").hidden = !twoRuns;
  drawTokens($("tokens"), a);
  if (twoRuns) drawTokens($("tokens-b"), b);
}

addView(function drawControls() {
  const { period } = PROBES[shown.probe];
  $("about-probe").hidden = !period;
  $("period").textContent = period;
  drawText();
  if (revealed !== shown.token) for (const root of ROOTS) reveal(root, root.children[shown.token]);
  revealed = shown.token;
});

// Scrolls the text, and never the page, to a token if there is one.
function reveal(root, span) {
  if (!span) return;
  const [box, inside] = [root.getBoundingClientRect(), span.getBoundingClientRect()];
  if (inside.top < box.top || inside.bottom > box.bottom) root.scrollTop += inside.top - box.top - box.height / 2;
}

addChoices($("probes"), "probe", PROBES.map(({ name }, i) => [i, name]));
$("probes").hidden = PROBES.length < 2;
addChoices($("directions"), "direction", [["to", "reads"], ["from", "is read by"]]);
addFollower(drawText);

const indexOf = (span) => (span.dataset.index === undefined ? null : Number(span.dataset.index));
const pointAt = (token) => token !== pointer.token && point({ token });

for (const root of ROOTS) {
  root.addEventListener("pointerover", (event) => pointAt(indexOf(event.target)));
  root.addEventListener("pointerleave", () => pointAt(null));
  root.addEventListener("click", ({ target }) => {
    const token = indexOf(target);
    if (token !== null) change({ token: token === state.token ? null : token });
  });
}
onKeys($("tokens"), SIDEWAYS, (by) => {
  const { labels } = shown;
  const token = state.token === null ? labels.length - 1 : clamp(state.token + by, labels.length - 1);
  change({ token });
  rendered.then(() => {
    $("live").textContent = `token ${token} ${visible(labels[token], 40)}: ${$("reading").textContent}`;
  });
});
