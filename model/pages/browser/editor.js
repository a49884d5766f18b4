// The box in which a person types. Each token's colour shows how little the model expected it.

import { $, element } from "browser/elements.js";
import { addView, render, shown } from "browser/render.js";
import { addField, save, state } from "browser/state.js";
import { depth } from "browser/surprise.js";
import { engine, tokensOf } from "browser/typed-text.js";
import { decimal } from "browser/words.js";

const PAUSE = 300; // milliseconds
const LONGEST = 10_000; // characters; far more than a context holds
const ADDRESSED = 2_000; // characters of the text that the address keeps

export const box = $("box");

// The end of a text, from the beginning of a character.
const ending = (text, length) => (text.length > length ? text.slice(-length).replace(/^[\udc00-\udfff]/, "") : text);
const number = (count) => count.toLocaleString("en");
let showsEnd = false; // whether the end of the text is to be in sight when it has been read
let isCut = false; // whether the text was too long, until it is changed again
let pieces = []; // [text, depth of its colour]: together the text that was read last

// The tokens as pieces of the text in the box. A character that is spread over several tokens is one piece. What was
// not read has no depth: the beginning of a long text, and what the tokenizer leaves out.
function piecesOf({ text, tokens, all }, measured) {
  const decoder = new TextDecoder();
  const read = []; // the last first
  let depthSoFar = 0;
  for (const [i, token] of (all ? tokens : []).entries()) {
    const piece = decoder.decode(engine.tokenizer.bytes(token), { stream: i + 1 < tokens.length });
    depthSoFar = Math.max(depthSoFar, depth(measured, i));
    if (!piece) continue;
    read.unshift([piece, depthSoFar]);
    depthSoFar = 0;
  }
  const found = [];
  let end = text.length;
  for (const [piece, depth] of read) {
    const place = text.lastIndexOf(piece, end - piece.length);
    const start = place < 0 ? Math.max(0, end - piece.length) : place; // half a character is read as another
    found.unshift([text.slice(start, start + piece.length), depth], [text.slice(start + piece.length, end), null]);
    end = start;
  }
  return [[text.slice(0, end), null], ...found].filter(([text]) => text);
}

// Colours the box: what was read and still stands there, up to where a person has changed it since.
function paint() {
  const { value } = box;
  const spans = [];
  let at = 0;
  for (const [text, depth] of pieces) {
    if (!value.startsWith(text, at)) break;
    const span = element("span", { textContent: text, className: depth === null ? "unread" : "" });
    span.style.setProperty("--depth", (depth ?? 0).toFixed(3));
    spans.push(span);
    at += text.length;
  }
  $("coloured").replaceChildren(...spans, value.slice(at), "\u200b"); // which gives an empty last line its height
}

addView(function drawBox() {
  const [{ typed, measured, loss }] = shown.sides;
  pieces = piecesOf(typed, measured);
  paint();
  const { context_length: context } = engine.config;
  const count = typed.all ? typed.tokens.length : 0;
  const cost = loss === null ? "" : `, loss ${decimal(loss)} nats per token`;
  $("cost").textContent = `${count} ${count === 1 ? "token" : "tokens"}${count > 1 ? cost : ""}`;
  $("window").textContent = [
    isCut && `The text was too long: its last ${number(box.value.length)} characters are kept.`,
    !typed.all && (typed.text ? "The model has no token for this text:" : "The box is empty:"),
    !typed.all && "shown is what the model expects at the beginning of a document.",
    typed.all && typed.all === count && pieces.some(([, depth]) => depth === null) &&
      "Grey: the model has no token for it.",
    typed.all > count && `The model reads ${context} tokens at once:`,
    typed.all > count && `of these ${number(typed.all)} it reads the last ${context} (grey: not read).`,
    typed.text.length > ADDRESSED && "The address of this page, by which you can keep or send it,",
    typed.text.length > ADDRESSED && `holds the last ${number(ADDRESSED)} characters of the text only.`,
  ].filter(Boolean).join(" ");
  if (showsEnd) showEnd(); // the note takes its height from the box
  showsEnd &&= box.value !== typed.text;
});

function showEnd() {
  $("editor").scrollTop = $("editor").scrollHeight;
  showsEnd = true;
}

// Shows a text in the box, and its end; it is read when `readBox` is called.
export function showInBox(text) {
  box.value = text;
  paint();
  showEnd();
}

let saving = null;

// Reads the text in the box. The address follows when a person pauses.
export function readBox() {
  isCut = box.value.length > LONGEST;
  if (isCut) box.value = ending(box.value, LONGEST);
  const typed = box.value;
  paint();
  if (box.selectionEnd === typed.length) showEnd();
  Object.assign(state, { typed, token: tokensOf(typed).tokens.length - 1 });
  render();
  clearTimeout(saving);
  saving = setTimeout(save, PAUSE);
}

box.addEventListener("input", readBox);
box.addEventListener("keydown", (event) => {
  if (event.key === "Escape") box.blur();
  if (event.key === "Enter" && event.ctrlKey) $("write").click();
});
addField("typed", () => ending(state.typed, ADDRESSED), (text) => {
  if (text === null || text === state.typed) return;
  box.value = ending(text, LONGEST);
  state.typed = box.value; // where all line breaks are alike
});
