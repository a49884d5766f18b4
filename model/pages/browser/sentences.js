// What the chosen head does, in sentences: for the chosen token, and as Python describes it.

import { $, element } from "browser/elements.js";
import { addFollower, addView, chosenToken, shown } from "browser/render.js";
import { headName, headPart } from "browser/state.js";
import { weightsOf } from "browser/text.js";
import { isReadInWords, readsInWords } from "browser/words.js";

const OFF = "Off now, so nothing that it reads reaches the model. ";

addView(function drawSays() {
  const paragraph = (...nodes) => element("p", {}, ...nodes);
  const told = shown.sides.map(({ label, head, off, descriptions }) =>
    ({ label, head, off: shown.typing && off.includes(headPart(head)), ...descriptions.flat()[head] }));
  $("sentences").replaceChildren(...told.map(({ label, head, off, sentence }) =>
    paragraph(element("b", {}, `${label}${headName(head).replace("l", "L")}. `), off ? OFF : "", sentence)));
  // The numbers that the sentence rests on.
  $("evidence").replaceChildren(...told.map(({ label, evidence }) => paragraph(evidence ? label + evidence : "")));
  drawReading();
});

function drawReading() {
  const token = chosenToken();
  const { labels } = shown;
  if (token === null) {
    const what = shown.received ? "which tokens read it" : "what it reads";
    $("reading").textContent = `Point at a token to see ${what}; click to keep it.`;
    return;
  }
  const inWords = shown.received ? isReadInWords : readsInWords;
  $("reading").replaceChildren(...shown.sides.map(({ label }, i) =>
    element("p", {}, label + inWords(labels, token, weightsOf(shown.panes[i])))));
}

addFollower(drawReading);
