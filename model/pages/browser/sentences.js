// What the chosen head does, in sentences: for the chosen token, and as Python describes it.

import { $, element } from "browser/elements.js";
import { addFollower, addView, chosenToken, shown } from "browser/render.js";
import { headName, headPart } from "browser/state.js";
import { weightsOf } from "browser/text.js";
import { readsInWords } from "browser/words.js";

const OFF = "Off now, so nothing that it reads reaches the model. ";

addView(function drawSays() {
  const paragraph = (...nodes) => element("p", {}, ...nodes);
  const { head, sides } = shown;
  const told = sides.map(({ label, descriptions }) => ({ label, ...descriptions.flat()[head] }));
  const name = headName(head).replace("l", "L");
  const off = shown.typing && shown.off.includes(headPart(head)) ? OFF : "";
  $("sentences").replaceChildren(...told.map(({ label, sentence }) =>
    paragraph(element("b", {}, `${label}${name}. `), off, sentence)));
  // The numbers that the sentence rests on.
  $("evidence").replaceChildren(...told.map(({ label, evidence }) => paragraph(evidence ? label + evidence : "")));
  drawReading();
});

function drawReading() {
  const token = chosenToken();
  const { labels } = shown;
  if (token === null) {
    $("reading").textContent = "Point at a token to see what it reads; click to keep it.";
    return;
  }
  $("reading").replaceChildren(...shown.sides.map(({ label }, i) =>
    element("p", {}, label + readsInWords(labels, token, weightsOf(shown.panes[i])))));
}

addFollower(drawReading);
