// The text: a recorded one, or the box in which a person types. Its tokens are shaded by what the chosen token reads
// (attends to), or by how little the model expected each.

import { $, clamp, element, onKeys, SIDEWAYS, tokenSpans } from "browser/elements.js";
import { word } from "browser/heads.js";
import { isDark, rgb } from "browser/maps.js";
import {
  addChoices, addFollower, addView, change, chosenToken, point, pointer, render, rendered, shown, stepButton,
} from "browser/render.js";
import { addField, holdsWeights, keepView, mapped, save, state, TEXTS } from "browser/state.js";
import { depth, lossOf } from "browser/measured.js";
import { engine, tokensOf } from "browser/typed-text.js";
import { decimal, isOdd, visible } from "browser/words.js";

const PAUSE = 300; // milliseconds after which the address follows
const LONG_PAUSE = 1000; // milliseconds without a letter, after which what is typed is undone by itself
const END_OF_TEXT = "<|endoftext|>";

export const box = $("box"); // transparent, above the tokens
const tokens = $("tokens");

let showsEnd = false; // whether the end of the text is to be in sight when it has been read
let read = null; // the labels or the typed text that `pieces` are of
let pieces = []; // { text, ids }: together the text that was read last; what was not read has no ids
let spans = []; // { span, ids }: those of the pieces that have ids, as they stand in the page
let revealed = null; // the chosen token that was scrolled to last

// What the chosen token gives to each token, on one of the large maps.
export function weightsOf(pane) {
  const token = chosenToken();
  return shown.labels.map((_, i) => (token === null ? 0 : pane.value(token, i)));
}

// The tokens as pieces of the text in the box. A character that is spread over several tokens is one piece. Not read
// are the beginning of a long text, and what the tokenizer leaves out.
function piecesOf({ text, tokens, all }) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true }); // which is text here
  const known = []; // the last first
  let ids = [];
  for (const [i, token] of (all ? tokens : []).entries()) {
    const piece = decoder.decode(engine.tokenizer.bytes(token), { stream: i + 1 < tokens.length });
    ids.push(i);
    if (piece) known.unshift({ piece, ids });
    if (piece) ids = [];
  }
  const found = [];
  let end = text.length;
  for (const { piece, ids } of known) {
    const place = text.lastIndexOf(piece, end - piece.length);
    const start = place < 0 ? Math.max(0, end - piece.length) : place; // half a character is read as another
    const after = { text: text.slice(start + piece.length, end), ids: [] };
    found.unshift({ text: text.slice(start, start + piece.length), ids }, after);
    end = start;
  }
  return [{ text: text.slice(0, end), ids: [] }, ...found].filter(({ text }) => text);
}

// Shows the text in the box: what was read and still stands there, up to where a person has changed it since.
function layBox() {
  const { value } = box;
  const nodes = [];
  spans = [];
  let at = 0;
  for (const { text, ids } of pieces) {
    if (!value.startsWith(text, at)) break;
    const span = element("span", { textContent: text, className: ids.length ? "" : "unread" });
    span.toggleAttribute("data-odd", isOdd(text));
    if (ids.length) span.dataset.index = ids.at(-1);
    if (ids.length) spans.push({ span, ids });
    nodes.push(span);
    at += text.length;
  }
  tokens.replaceChildren(...nodes, value.slice(at), "\u200b"); // which gives an empty last line its height
}

function layRecorded() {
  spans = tokenSpans(shown.labels).map((span, i) => ({ span, ids: [i] }));
  tokens.replaceChildren(...spans.map(({ span }) => span));
}

// A token's background and text colour: those of its square on the map.
function shadeOf(weight) {
  if (weight < 0.001) return ["", ""];
  const colour = shown.palette.weights[Math.round(255 * Math.sqrt(weight))];
  return [rgb(colour), `var(--${isDark(colour) === (shown.theme === "dark") ? "ink" : "panel"})`];
}

function shade() {
  tokens.classList.toggle("by-surprise", shown.text === "surprise");
  const [{ measured }] = shown.sides;
  const weights = weightsOf(shown.panes[0]);
  const token = chosenToken();
  const pointed = pointer.cell?.key;
  const most = (ids, of) => Math.max(...ids.map(of));
  for (const { span, ids } of spans) {
    span.style.setProperty("--depth", most(ids, (id) => depth(measured, id)).toFixed(3));
    const [background, color] = shadeOf(most(ids, (id) => weights[id] ?? 0));
    Object.assign(span.style, { background, color });
    span.className = ids.includes(token) ? "chosen" : ids.includes(pointed) ? "pointed" : "";
  }
}

addView(function drawText() {
  const { typing, labels, token } = shown;
  const { typed } = shown.sides[0];
  const now = typing ? typed : labels;
  box.hidden = !typing;
  tokens.tabIndex = typing ? -1 : 0;
  if (read !== now) pieces = typing ? piecesOf(typed) : [];
  if (typing) layBox();
  else if (read !== now) layRecorded();
  read = now;
  shade();
  tell();
  if (showsEnd) showEnd(); // the note takes its height from the box
  showsEnd &&= typing && box.value !== typed.text;
  if (revealed !== token) reveal(spans.find(({ ids }) => ids.includes(token))?.span);
  revealed = token;
});

// What stands below the text: its tokens, what they cost, and what is not as it seems.
function tell() {
  const { typing, labels, sides } = shown;
  const [{ measured, typed }] = sides;
  const count = typing && !typed.all ? 0 : labels.length;
  const loss = lossOf(measured);
  const cost = [", ", word("loss"), ` ${decimal(loss)} `, word("nats"), ` (${decimal(loss / Math.LN2)} bits) a token`];
  $("cost").replaceChildren(`${count} ${count === 1 ? "token" : "tokens"}`, ...(count > 1 ? cost : []));
  const { period } = TEXTS.find(({ name }) => name === shown.textName);
  const bare = engine && sides.find(({ at }) => !holdsWeights(at));
  const why = bare
    ? [`${bare.when} holds no weights here, with which to read yours. Back to your text: `,
      ...mapped.filter((_, at) => holdsWeights(at)).map(({ step }) => stepButton(step))]
    : ["the model in this page has not started. "];
  const isReplaced = !typing && TEXTS[state.probe].name === "typed";
  $("heads").hidden = TEXTS[0].name !== "typed";
  $("window").replaceChildren(...(isReplaced ? [element("b", {}, "This is a recorded text: "), ...why] : []), [
    period && `${period} random tokens, which nothing can expect, then the same again: here heads show that look back.`,
    labels.includes(END_OF_TEXT) && `${END_OF_TEXT} marks where a document begins.`,
    ...(typing ? aboutTyped(typed) : []),
  ].filter(Boolean).join(" "));
}

function aboutTyped(typed) {
  const { context_length: context } = engine.config;
  const whole = typed.all === typed.tokens.length;
  return [
    !typed.all && (typed.text ? "The model has no token for this text:" : "The box is empty:"),
    !typed.all && "shown is what the model expects at the beginning of a document.",
    typed.all && whole && pieces.some(({ ids }) => !ids.length) && "Grey: the model has no token for it.",
    typed.all && !whole && `The model reads ${context} tokens at once:`,
    typed.all && !whole && `of these ${typed.all.toLocaleString("en")} it reads the last ${context} (grey: not read).`,
  ];
}

function showEnd() {
  $("editor").scrollTop = $("editor").scrollHeight;
  showsEnd = true;
}

// Shows a text in the box, and its end; it is read when `readBox` is called.
export function showInBox(text) {
  box.value = text;
  if (!box.hidden) layBox();
  showEnd();
}

const before = []; // the texts before the one in the box, the last of them last
let typedAt = -Infinity; // when a person changed the text last

// To be called before the box gets another text: one can come back to this one.
export function keepText(text = box.value) {
  keepView();
  before.push(text);
  typedAt = -Infinity;
}

export function undo() {
  while (before.at(-1) === box.value) before.pop(); // the tour has put it back
  if (!before.length) return;
  keepView(); // the browser's "back" undoes this
  typedAt = -Infinity;
  showInBox(before.pop());
  readBox();
  save();
}
export const canUndo = () => before.some((text) => text !== box.value);

let saving = null;

// Reads the text in the box. The address follows when a person pauses.
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
  state.typed = box.value; // where all line breaks are alike
});

// Scrolls the text, and never the page, to a token if there is one.
function reveal(span) {
  if (!span) return;
  const [outer, inner] = [$("editor"), span].map((node) => node.getBoundingClientRect());
  if (inner.top >= outer.top && inner.bottom <= outer.bottom) return;
  const line = parseFloat(getComputedStyle(span).lineHeight); // the first one in sight is to be whole
  const top = $("editor").scrollTop + inner.top - outer.top - outer.height / 2;
  $("editor").scrollTop = Math.round(top / line) * line;
}

const indexOf = (node) => (node?.dataset?.index === undefined ? null : Number(node.dataset.index));

// In the box: the token that the caret stands in or behind.
function chooseAtCaret() {
  let end = 0;
  const node = [...tokens.childNodes].find(({ textContent }) => (end += textContent.length) >= box.selectionStart);
  const token = indexOf(node);
  if (token !== null && token !== state.token) change({ token, square: null });
}

const pointAt = (token) => token !== pointer.token && point({ token });
$("editor").addEventListener("pointermove", ({ clientX, clientY }) =>
  pointAt(indexOf(document.elementsFromPoint(clientX, clientY).find((node) => node.parentNode === tokens))));
$("editor").addEventListener("pointerleave", () => pointAt(null));
tokens.addEventListener("click", ({ target }) => {
  const token = indexOf(target);
  if (token !== null) change({ token: token === state.token ? null : token, square: null });
});
box.addEventListener("click", chooseAtCaret);
box.addEventListener("keyup", ({ key }) => /^(Arrow|Home|End)/.test(key) && chooseAtCaret());
onKeys(tokens, SIDEWAYS, (by) => {
  const { labels } = shown;
  const token = state.token === null ? labels.length - 1 : clamp(state.token + by, labels.length - 1);
  change({ token, square: null });
  rendered.then(() => {
    $("live").textContent = `token ${token} ${visible(labels[token], 40)}: ${$("reading").textContent}`;
  });
});

const NAMES = { typed: "your text", text: "recorded", repeated: "repeated" };
addChoices($("probes"), "probe", TEXTS.map(({ name }, i) => [i, NAMES[name] ?? name]));
$("probes").hidden = TEXTS.length < 2;
addFollower(shade);
