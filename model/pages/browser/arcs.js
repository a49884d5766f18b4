// Arcs over the text, from the chosen token to those that it reads or that read it, as wide as the weight.

import { shape } from "browser/chart.js";
import { $ } from "browser/elements.js";
import { addFollower, addView, chosenToken, shown } from "browser/render.js";
import { weightsOf } from "browser/text.js";
import { largestFirst } from "browser/words.js";

const [LEAST, MOST] = [0.05, 12]; // the smallest weight that has an arc, and how many arcs there are
const WIDEST = 8; // pixels

const arcs = shape($("editor"), "svg", { id: "arcs", "aria-hidden": true });

function drawArcs() {
  arcs.replaceChildren();
  const token = chosenToken();
  if (token === null || shown.text === "surprise") return;
  const spans = [...$("tokens").querySelectorAll("span[data-index]")];
  const origin = arcs.getBoundingClientRect();
  // The middle of the upper edge of a token, which may stand in one span with the next ones.
  const placeOf = (i) => {
    const [box] = spans.find(({ dataset }) => Number(dataset.index) >= i)?.getClientRects() ?? [];
    return box && [box.left + box.width / 2 - origin.left, box.top - origin.top + 1];
  };
  const weights = weightsOf(shown.panes[0]);
  const from = placeOf(token);
  const strongest = largestFirst(weights).filter((i) => i !== token && weights[i] >= LEAST).slice(0, MOST);
  for (const i of from ? strongest : []) {
    const to = placeOf(i);
    if (!to) continue;
    const [[x, y], [toX, toY]] = [from, to];
    const rise = Math.min(28, 8 + 0.15 * Math.abs(toX - x));
    const d = `M${x} ${y}C${x} ${y - rise} ${toX} ${toY - rise} ${toX} ${toY}`;
    shape(arcs, "path", { d, "stroke-width": Math.max(1, WIDEST * weights[i]) });
  }
}

addView(drawArcs);
addFollower(drawArcs);
