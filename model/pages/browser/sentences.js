// What the chosen head does, in sentences: as Python describes it, on a text that was typed, and for the chosen token.

import { $, element } from "browser/elements.js";
import { addFollower, addView, chosenToken, shown } from "browser/render.js";
import { habitInWords } from "browser/habits.js";
import { ofHead } from "browser/maps.js";
import { headName, SCORES } from "browser/state.js";
import { weightsOf } from "browser/text.js";
import { isReadInWords, readsInWords } from "browser/words.js";

addView(function drawSays() {
  $("sentences").replaceChildren(...shown.sides.map(describe));
  $("evidence").replaceChildren(...shown.sides.map(({ label, head, descriptions }) => {
    const { evidence } = descriptions.flat()[head]; // the numbers that the sentence rests on
    return element("p", {}, evidence ? label + evidence : "");
  }));
  drawReading();
});

// What the head does on many texts, and on one that was typed.
function describe({ label, head, descriptions, typed, weights, labels }) {
  const { sentence } = descriptions.flat()[head];
  const title = element("b", { textContent: `${label}${headName(head).replace("l", "L")}. ` });
  if (!typed) return element("p", {}, title, sentence);
  const habit = habitInWords(ofHead(weights, head, labels.length), typed.tokens, SCORES, typed.window);
  return element("p", {}, title, sentence, habit && ` On this text it ${habit}.`);
}

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
