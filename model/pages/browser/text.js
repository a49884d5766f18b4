// The text: a recorded one, or the box in which a person types. Its tokens are shaded by how much the chosen token
// reads of each (attention), or by how little the model expected each (surprise).

import { $, clamp, element, onKeys, SIDEWAYS, tokenSpans } from "browser/elements.js";
import { word } from "browser/heads.js";
import { inkOn, rgb, weightOf } from "browser/maps.js";
import {
  addChoices, addFollower, addView, change, chosenToken, point, pointer, render, rendered, shown, stepButton,
} from "browser/render.js";
import { addField, HELD, holdsWeights, keepView, save, state, stepOf, TEXTS } from "browser/state.js";
import { lossOf, strength } from "browser/measured.js";
import { engine, piecesOf, tokensOf } from "browser/typed-text.js";
import { decimal, isOdd, visible } from "browser/words.js";

const PAUSE = 300; // milliseconds after the last letter until the address is updated
const LONG_PAUSE = 1000; // milliseconds without a letter, after which the next letter begins a new step of undo
const END_OF_TEXT = "<|endoftext|>";

export const box = $("box"); // transparent, above the tokens
const tokens = $("tokens");

let showsEnd = false; // whether to scroll to the end of the text once it has been read
let laidOut = null; // the labels or the typed text that were laid out last
let pieces = []; // { text, ids }: together the typed text that was read last; a piece that was not read has no ids
let spans = []; // { span, ids }: the elements of the pieces with ids
let revealed = null; // the chosen token that was scrolled to last

// The weights that the chosen token gives to each token, in the chosen head of a side.
export function weightsOf(side) {
  const token = chosenToken();
  return side.labels.map((_, key) => (token === null ? 0 : weightOf(side, side.head, token, key)));
}

// Shows the text of the box. The pieces that were read keep their spans, up to the first change since.
function layBox() {
  const { value } = box;
  const nodes = [];
  spans = [];
  let end = 0; // of the pieces so far
  for (const { text, ids } of pieces) {
    if (!value.startsWith(text, end)) break;
    const span = element("span", { textContent: text, className: ids.length ? "" : "unread" });
    span.toggleAttribute("data-odd", isOdd(text));
    if (ids.length) span.dataset.index = ids.at(-1);
    if (ids.length) spans.push({ span, ids });
    nodes.push(span);
    end += text.length;
  }
  tokens.replaceChildren(...nodes, value.slice(end), "\u200b"); // the last character gives an empty line its height
}

function layRecorded() {
  spans = tokenSpans(shown.labels).map((span, i) => ({ span, ids: [i] }));
  tokens.replaceChildren(...spans.map(({ span }) => span));
}

// A token's background, the colour of its square on the map, and a text colour that can be read on it.
function shadeOf(weight) {
  if (weight < 0.001) return ["", ""];
  const colour = shown.palette.weights[Math.round(255 * Math.sqrt(weight))];
  return [rgb(colour), inkOn(colour)];
}

function shade() {
  tokens.classList.toggle("by-surprise", shown.text === "surprise");
  const [side] = shown.sides;
  const { measured } = side;
  const weights = weightsOf(side);
  const token = chosenToken();
  const pointed = pointer.cell?.key;
  const most = (ids, measure) => Math.max(...ids.map(measure));
  for (const { span, ids } of spans) {
    span.style.setProperty("--strength", most(ids, (id) => strength(measured, id)).toFixed(3));
    const [background, color] = shadeOf(most(ids, (id) => weights[id] ?? 0));
    Object.assign(span.style, { background, color });
    span.className = ids.includes(token) ? "chosen" : ids.includes(pointed) ? "pointed" : "";
  }
}

addView(function drawText() {
  const { typing, labels, token } = shown;
  const { typed } = shown.sides[0];
  const text = typing ? typed : labels;
  box.hidden = !typing;
  tokens.tabIndex = typing ? -1 : 0;
  if (laidOut !== text) pieces = typing ? piecesOf(typed) : [];
  if (typing) layBox();
  else if (laidOut !== text) layRecorded();
  laidOut = text;
  shade();
  tell();
  if (showsEnd) showEnd(); // scrolls again, because the note below takes height from the box
  showsEnd &&= typing && box.value !== typed.text;
  if (revealed !== token) reveal(spans.find(({ ids }) => ids.includes(token))?.span);
  revealed = token;
});

// Fills the lines below the text: the number of tokens, their loss, and notes on the text.
function tell() {
  const { typing, labels, sides } = shown;
  const [{ measured, typed }] = sides;
  const count = typing && !typed.all ? 0 : labels.length;
  const loss = lossOf(measured);
  const cost = [", ", word("loss"), ` ${decimal(loss)} `, word("nats"), ` (${decimal(loss / Math.LN2)} bits) a token`];
  $("cost").replaceChildren(`${count} ${count === 1 ? "token" : "tokens"}`, ...(count > 1 ? cost : []));
  const { period } = TEXTS.find(({ name }) => name === shown.textName);
  const bare = engine ? sides.filter(({ at }) => !holdsWeights(at)) : [];
  const back = (at) => stepButton(stepOf(at), bare.map(({ field }) => field));
  const why = bare.length
    ? [`the page has no weights of ${bare[0].when} to read your text with. Back to your text: `, ...HELD.map(back)]
    : ["the model in this page has not started. "];
  const isReplaced = !typing && TEXTS[state.probe].name === "typed" && (bare.length || !shown.isWord);
  $("heads").hidden = TEXTS[0].name !== "typed";
  $("window").replaceChildren(...(isReplaced ? [element("b", {}, "This is a recorded text: "), ...why] : []), [
    period && `${period} random tokens, which no model can expect, then the same again, for heads that look back.`,
    labels.includes(END_OF_TEXT) && `${END_OF_TEXT} marks where a document begins.`,
    ...(typing ? aboutTyped(typed) : []),
  ].filter(Boolean).join(" "));
}

function aboutTyped(typed) {
  const { context_length: context } = engine.config;
  const whole = typed.all === typed.tokens.length;
  return [
    !typed.all && (typed.text ? "The model has no token for this text:" : "The box is empty:"),
    !typed.all && "this is what the model expects at the beginning of a document.",
    typed.all && whole && pieces.some(({ ids }) => !ids.length) && "Grey: the model has no token for it.",
    typed.all && !whole && `The model reads ${context} tokens at once:`,
    typed.all && !whole && `of these ${typed.all.toLocaleString("en")} it reads the last ${context} (grey: not read).`,
  ];
}

function showEnd() {
  $("editor").scrollTop = $("editor").scrollHeight;
  showsEnd = true;
}

// Puts a text into the box and scrolls to its end; `readBox` then reads it.
export function showInBox(text) {
  box.value = text;
  if (!box.hidden) layBox();
  showEnd();
}

const before = []; // earlier texts of the box, the latest at the end
let typedAt = -Infinity; // when a person typed the last letter

// Call this before the box gets another text, so that undo can return to this one.
export function keepText(text = box.value) {
  keepView();
  before.push(text);
  typedAt = -Infinity;
}

export function undo() {
  while (before.at(-1) === box.value) before.pop(); // the tour may have put this text back
  if (!before.length) return;
  keepView(); // the browser's "back" undoes this
  typedAt = -Infinity;
  showInBox(before.pop());
  readBox();
  save();
}
export const canUndo = () => before.some((text) => text !== box.value);

let saving = null;

// Reads the text in the box. The address is updated when a person pauses.
export function readBox() {
  const typed = box.value;
  layBox();
  if (box.selectionEnd === typed.length) showEnd();
  Object.assign(state, { typed, token: tokensOf(typed).tokens.length - 1, square: null });
  render();
  clearTimeout(saving);
  saving = setTimeout(save, PAUSE);
}

box.addEventListener("input", () => {
  if (performance.now() - typedAt > LONG_PAUSE) keepText(state.typed);
  typedAt = performance.now();
  readBox();
});
box.addEventListener("keydown", (event) => {
  if (event.key === "Escape") box.blur();
  if (event.key === "Enter" && event.ctrlKey) $("write").click();
});
addField("typed", () => (engine ? state.typed : null), (text) => {
  if (text === null || text === state.typed) return;
  if (shown) before.push(box.value);
  box.value = text;
  state.typed = box.value; // the box has made all line breaks alike
});

// Scrolls the text, but never the page, to a token.
function reveal(span) {
  if (!span) return;
  const [outer, inner] = [$("editor"), span].map((node) => node.getBoundingClientRect());
  if (inner.top >= outer.top && inner.bottom <= outer.bottom) return;
  const line = parseFloat(getComputedStyle(span).lineHeight); // so that the first visible line is whole
  const top = $("editor").scrollTop + inner.top - outer.top - outer.height / 2;
  $("editor").scrollTop = Math.round(top / line) * line;
}

const indexOf = (node) => (node?.dataset?.index === undefined ? null : Number(node.dataset.index));

// The token in the box that the caret is in or behind; after a click, the caret may be behind the one before.
function tokenAtCaret() {
  let end = 0;
  return indexOf([...tokens.childNodes].find(({ textContent }) => (end += textContent.length) >= box.selectionStart));
}

const choose = (token) => token !== null && token !== state.token && change({ token, square: null });

const pointAt = (token) => token !== pointer.token && point({ token });
$("editor").addEventListener("pointermove", ({ clientX, clientY }) =>
  pointAt(indexOf(document.elementsFromPoint(clientX, clientY).find((node) => node.parentNode === tokens))));
$("editor").addEventListener("pointerleave", () => pointAt(null));
tokens.addEventListener("click", ({ target }) => {
  const token = indexOf(target);
  if (token !== null) change({ token: token === state.token ? null : token, square: null });
});
box.addEventListener("click", () => choose(pointer.token ?? tokenAtCaret()));
box.addEventListener("keyup", ({ key }) => /^(Arrow|Home|End)/.test(key) && choose(tokenAtCaret()));
onKeys(tokens, SIDEWAYS, (by) => {
  const { labels } = shown;
  const token = clamp((state.token ?? shown.token ?? labels.length) + by, labels.length - 1);
  change({ token, square: null });
  rendered.then(() => {
    $("live").textContent = `token ${token} ${visible(labels[token], 40)}: ${$("reading").textContent}`;
  });
});

const NAMES = { typed: "your text", word: "word", text: "recorded", repeated: "repeated" };
addChoices($("probes"), "probe", TEXTS.map(({ name }, i) => [i, NAMES[name] ?? name]));
$("probes").hidden = TEXTS.length < 2;
addFollower(shade);
