// The views of surprise, lens and attribution. measured.js and lens.js know nothing of the page: they get what is shown
// from this module.

import { $, element, tableRow } from "browser/elements.js";
import { buttons } from "browser/heads.js";
import { createLens } from "browser/lens.js";
import { badge, expectation, nextInWords, partsOf, sum } from "browser/measured.js";
import { addChoices, addFollower, addView, change, pointer, shown } from "browser/render.js";
import { partName } from "browser/scores.js";
import { quote, signed } from "browser/words.js";

function drawSurprise() {
  const isChosen = shown.text === "surprise";
  const token = pointer.token ?? shown.token;
  $("surprise-key").hidden = !isChosen;
  $("expected").hidden = !isChosen || token === null;
  if ($("expected").hidden) return;
  const sentences = shown.sides.map(({ label, measured }) => label + expectation(measured, token));
  $("expected").replaceChildren(...sentences.map((textContent) => element("p", { textContent })));
}

addChoices($("shades"), "text", [["attention", "reads"], ["surprise", "surprise"]]);
// Pointing at the map does not redraw this: a screen reader would read the list out again for each square.
addFollower((patch) => "token" in patch && drawSurprise());

const panes = [...$("lenses").children];
const lenses = panes.map((pane) => createLens(pane, (token) => change({ token })));

function drawLenses() {
  const { sides, palette, token } = shown;
  panes.forEach((pane, i) => {
    pane.hidden = !sides[i];
    if (pane.hidden) return;
    const name = (pane.firstChild.textContent = sides[i].title);
    lenses[i]({ measured: sides[i].measured, colours: palette.weights, token, name });
  });
}

// Shows the first of two steps only: the steps may expect different tokens, whose attributions cannot be compared.
function drawAttribution() {
  const [{ label, measured }] = shown.sides;
  const { labels } = measured;
  const token = shown.token ?? Math.max(0, labels.length - 2); // the last token whose next one is known
  const next = nextInWords(measured, token);
  $("attribution-token").textContent = next
    ? `${label}At token ${token} ${quote(labels[token])}, ${next}.`
    : `${quote(labels[token])} is the last token: what comes after it is not known. Choose an earlier one.`;
  $("pushes").hidden = $("parts").hidden = !next;
  const { good, text } = badge(measured.attribution_error);
  Object.assign($("attribution-badge"), { textContent: text, className: `badge ${good ? "good" : "bad"}` });
  drawParts(partsOf(measured, token), next);
}

// Underlines the parts in the picture of the model by how much they pushed, if the next token is known. The table has a
// row for each part: its name, a bar to one side of zero, and its number.
function drawParts(parts, isKnown) {
  const largest = Math.max(1e-9, ...parts.map(({ value }) => Math.abs(value)));
  const values = new Map(parts.map(({ name, value }) => [name, value]));
  for (const [part, button] of buttons) {
    const value = (isKnown && values.get(part)) || 0;
    button.style.setProperty("--lit", (Math.abs(value) / largest).toFixed(2));
    button.classList.toggle("less", value < 0);
  }
  const body = parts.map(({ name, value }) => tableRow(partName(name),
    element("td", { className: "balance" }, bar(value, largest)), element("td", {}, signed(value))));
  const foot = tableRow("sum: the logit", element("td"), element("td", {}, signed(sum(parts))));
  $("parts").replaceChildren(element("tbody", {}, ...body), element("tfoot", {}, foot));
}

function bar(value, largest) {
  const width = `${(50 * Math.abs(value ?? 0)) / largest}%`;
  const [side, className] = value < 0 ? ["right", "less"] : ["left", "more"];
  return element("i", { className, style: { width, [side]: "50%" } });
}

// While a person types, lens and attribution come after all else; until then the last ones stay.
async function drawDeep() {
  const frame = shown;
  const waiting = frame.sides.filter(({ late }) => late);
  if (waiting.length) {
    const figures = await Promise.all(waiting.map(({ late }) => late()));
    if (frame !== shown || !figures.every(Boolean)) return;
    const measured = figures.map((ofSide) => ({ ...ofSide, labels: frame.labels }));
    waiting.forEach((side, i) => Object.assign(side, { measured: measured[i], late: null }));
  }
  const isMeasured = shown.sides.every(({ measured }) => measured.lens); // of the film's word only while it is typed
  $("lens").hidden = $("attribution").hidden = !isMeasured;
  if (!isMeasured) return;
  drawLenses();
  drawAttribution();
}

addView(drawSurprise);
addView(drawDeep);
