// What the chosen head does, in sentences: as Python describes it, on a text that was typed, and for the chosen token.

import { $, element } from "browser/elements.js";
import { addFollower, addView, chosenToken, shown } from "browser/render.js";
import { habitsInWords, LEAST_TOKENS } from "browser/habits.js";
import { ofHead } from "browser/maps.js";
import { headName, RUNS } from "browser/state.js";
import { weightsOf } from "browser/shaded-text.js";
import {
  isReadInWords, keysInWords, largestFirst, offsetsInWords, percent, quote, readsInWords, visible,
} from "browser/words.js";

const STRONGEST = 5; // tokens that the chosen one looks at
const COUNTS = 3; // tokens and distances that a head looks at

addView(function drawSays() {
  $("sentences").replaceChildren(...shown.sides.map(describe));
  $("evidence").replaceChildren(...shown.sides.flatMap(evidenceOf));
  drawReading();
});

// The sentence is about the text that was typed, or if that is short about the texts that the page was made with.
function describe({ label, head, descriptions, typed, attention, labels }) {
  const { sentence } = descriptions.flat()[head];
  const title = element("b", { textContent: `${label}${headName(head).replace("l", "L")}. ` });
  if (!typed) return element("p", {}, title, sentence);
  const made = `When this page was made, on other text: ${sentence}`;
  if (labels.length < LEAST_TOKENS) return element("p", {}, title, made);
  const here = habitsInWords(ofHead(attention, head, labels.length), labels);
  return element("p", {}, title, `On this text it ${here}.`, element("span", { className: "note" }, ` ${made}`));
}

// The numbers that the sentence rests on. That of a head without a name has the counts in itself. The counts are of
// the windows on which heads are measured, not of the text that is shown.
function evidenceOf({ label, run, head, descriptions }) {
  const { evidence, keys, offsets, name: pattern } = descriptions.flat()[head];
  const lines = [evidence && `${label}${evidence}.`];
  if (pattern && keys.length) lines.push(`Over ${RUNS[run].windows} it looks most at ${keysInWords(largest(keys))}.`);
  if (pattern && offsets.length) lines.push(`By distance: ${offsetsInWords(largest(offsets))}.`);
  return lines.filter(Boolean).map((textContent) => element("p", { textContent }));
}

// The counts come by how much they exceed uniform attention; they are told by their shares.
const largest = (counts) => counts.slice(0, COUNTS).sort(([, one], [, two]) => two - one);

function drawReading() {
  const token = chosenToken();
  const { labels } = shown;
  const verb = shown.received ? "is read by" : "reads";
  if (token === null) {
    $("reading").textContent = `Point at a token to shade the text by what it ${verb}; click to keep it.`;
    return $("top").replaceChildren();
  }
  const inWords = shown.received ? isReadInWords : readsInWords;
  $("reading").replaceChildren(...shown.sides.map(({ label }, i) =>
    element("p", {}, label + inWords(labels, token, weightsOf(shown.panes[i])))));
  const weights = weightsOf(shown.panes[0]);
  const order = largestFirst(weights).filter((i) => (shown.received ? i >= token : i <= token) && weights[i] >= 0.0005);
  $("top").ariaLabel = `token ${token} ${visible(labels[token], 40)} ${verb}, strongest first`;
  $("top").replaceChildren(...order.slice(0, STRONGEST).map((i) => element("li", {},
    element("span", {}, percent(weights[i])), element("bdi", {}, quote(labels[i])),
    element("span", { className: "soft" }, `token ${i}`))));
}

addFollower(drawReading);
