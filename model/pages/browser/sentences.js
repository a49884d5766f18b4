// Sentences on the chosen head: what it reads at the chosen token, and its description by describe.py.

import { $, button, element } from "browser/elements.js";
import { addFollower, addView, change, chosenToken, shown } from "browser/render.js";
import { headName, headPart } from "browser/state.js";
import { weightsOf } from "browser/text.js";
import { capital, largestFirst, readsInWords } from "browser/words.js";

addView(function drawSays() {
  const { head, sides } = shown;
  const name = capital(headName(head));
  const isOff = shown.typing && shown.off.includes(headPart(head));
  const off = isOff ? "Switched off now: what it reads does not reach the model. " : "";
  $("sentences").replaceChildren(...sides.map(({ label, descriptions }) =>
    element("p", {}, element("b", {}, `${label}${name}. `), off, descriptions[head].sentence)));
  drawReading();
});

function drawReading() {
  const token = chosenToken();
  const { labels, head } = shown;
  const name = headPart(head).replace("h", "H");
  if (token === null)
    return $("reading").replaceChildren("Point at a token to see what this head reads there; click to keep it.");
  const rows = shown.sides.map(weightsOf);
  const square = { query: token, key: largestFirst(rows[0])[0] };
  const why = shown.typing && token ? button("why there?", () => change({ token, square })) : "";
  $("reading").replaceChildren(...shown.sides.map(({ label }, i) =>
    element("p", {}, `${label}${readsInWords(name, labels, token, rows[i])} `, i ? "" : why)));
}

addFollower(drawReading);
