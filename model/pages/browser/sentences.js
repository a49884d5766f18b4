// What the chosen head does, in sentences: for the chosen token, and as Python describes it.

import { $, element } from "browser/elements.js";
import { addFollower, addView, chosenToken, shown } from "browser/render.js";
import { headName } from "browser/state.js";
import { weightsOf } from "browser/text.js";
import { isReadInWords, readsInWords } from "browser/words.js";

addView(function drawSays() {
  const paragraph = (...nodes) => element("p", {}, ...nodes);
  const told = shown.sides.map(({ label, head, descriptions }) => ({ label, head, ...descriptions.flat()[head] }));
  $("sentences").replaceChildren(...told.map(({ label, head, sentence }) =>
    paragraph(element("b", {}, `${label}${headName(head).replace("l", "L")}. `), sentence)));
  // The numbers that the sentence rests on.
  $("evidence").replaceChildren(...told.map(({ label, evidence }) => paragraph(evidence ? label + evidence : "")));
  drawReading();
});

function drawReading() {
  const token = chosenToken();
  const { labels } = shown;
  const verb = shown.received ? "is read by" : "reads";
  if (token === null) {
    $("reading").textContent = `Point at a token to shade the text by what it ${verb}; click to keep it.`;
    return;
  }
  const inWords = shown.received ? isReadInWords : readsInWords;
  $("reading").replaceChildren(...shown.sides.map(({ label }, i) =>
    element("p", {}, label + inWords(labels, token, weightsOf(shown.panes[i])))));
}

addFollower(drawReading);
