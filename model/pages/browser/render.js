// Draws the state. A view is a module that calls addView with its drawing function. A view that needs another view
// imports it, and is therefore drawn after it. addFollower is for what changes when the pointer moves.

import { $, button, keepFocus } from "browser/elements.js";
import { palette } from "browser/maps.js";
import { readRecorded } from "browser/recorded.js";
import {
  addOption, data, holdsWeights, keepView, nearest, restore, save, snapshots, state, textNumber, TEXTS,
} from "browser/state.js";
import { engine, readTyped } from "browser/typed-text.js";

export function start() {
  restore();
  addEventListener("hashchange", () => (restore(), render()));
  addEventListener("resize", render);
  render();
}

// The frame on the screen: the state, the `snapshot` and `labels` of the first side, `typing`: whether typed text is
// shown, textName, and `sides`: the step that is shown, and the step that it is compared with. A side is a reading with
// { name, label: the name before a sentence if there are two sides, when: its step in words, title: label and when, at,
// field: that of the state with its step, snapshot, head, measured: see measured.js }.
export let shown = null;
export let rendered = Promise.resolve(); // settles when every requested frame is drawn
export const pointer = { cell: null, token: null }; // the square { query, key } of the map, or the token, pointed at

const views = [];
const plainViews = []; // views of a page without maps, where `shown` is null
const followers = [];
export const addView = (draw) => views.push(draw);
export const addPlainView = (draw) => plainViews.push(draw);
export const addFollower = (draw) => followers.push(draw);

// The token that is pointed at in the text or on the map, or else the chosen token; null if there is none.
export function chosenToken() {
  const { cell, token } = pointer;
  return token ?? cell?.query ?? shown.token;
}

// A button that goes to a step, with these fields of the state.
export const stepButton = (step, fields = ["at"]) =>
  button(`step ${step}`, () => change(Object.fromEntries(fields.map((field) => [field, nearest(step)]))));

// Adds buttons that set a field of the state. options: pairs of a value and the name of its button. A field that the
// state does not have becomes an option (see addOption).
export function addChoices(parent, field, options) {
  if (!(field in state)) addOption(field, options.map(([value]) => value));
  const buttons = options.map(([value, name]) => button(name, () => change({ [field]: value })));
  parent.append(...buttons);
  addView(() => buttons.forEach((button, i) => (button.ariaPressed = options[i][0] === shown[field])));
}

export function point(patch) {
  Object.assign(pointer, patch);
  for (const draw of followers) draw(patch);
}

const UNDOABLE = ["off", "other", "probe"]; // the browser's "back" undoes a change of these fields

export function change(patch) {
  if (UNDOABLE.some((field) => field in patch && String(patch[field]) !== String(state[field]))) keepView();
  const isOtherText = patch.probe !== undefined && patch.probe !== state.probe;
  if (isOtherText) Object.assign(state, { token: undefined, square: null });
  Object.assign(state, patch);
  save();
  render();
}

// Requests a frame. Frames are drawn one after another, and one that has not begun will show the latest state anyway.
let isRequested = false;

export function render() {
  if (isRequested) return;
  isRequested = true;
  rendered = rendered.then(draw, draw);
}

// Chooses the text of a frame: a recorded text if the page cannot read the typed one. isWord: whether it is the film's.
function textOf({ at, other, probe, typed }) {
  const { name } = TEXTS[probe];
  const hasWeights = holdsWeights(at) && (other === null || holdsWeights(other));
  const typing = Boolean(name === "typed" && engine && hasWeights);
  const isWord = name === "word" || (name === "typed" && typed === data.film?.text);
  const textName = name === "typed" && !typing ? (isWord ? "word" : "text") : name;
  return { typing, textName, probe: textNumber(textName), isWord };
}

async function draw() {
  isRequested = false;
  document.documentElement.dataset.theme = state.theme;
  if (!snapshots.length) return plainViews.forEach((view) => view());
  const next = { ...state, ...textOf(state) };
  const first = await side("A", next, "at");
  next.sides = [first];
  const { length } = first.labels;
  const { token } = next;
  if (token >= length) next.token = null;
  // Chooses the last token; in a recorded text, the last whose true next token is known.
  if (token === undefined) next.token = Math.max(0, length - (next.typing || next.isWord ? 1 : 2));
  // While a recorded text is shown in place of the typed one, the state keeps the token that is chosen there.
  if (state.token === token && next.probe === state.probe) state.token = next.token;
  if (next.other !== null) next.sides.push(await side("B", next, "other"));
  if (next.square && (!next.typing || next.square.query >= length)) next.square = null;
  Object.assign(next, { snapshot: first.snapshot, labels: first.labels });
  // The views measure the layout, so it is set first. If they move its top, another frame follows: see below.
  const top = $("main").offsetTop;
  const focus = keepFocus();
  const classes = { compare: next.other !== null, typing: next.typing, filming: next.film };
  $("main").className = Object.keys(classes).filter((name) => classes[name]).join(" ");
  document.documentElement.style.setProperty("--top", `${top}px`);
  document.documentElement.style.setProperty("--controls", `${$("kept-in-sight").offsetHeight}px`);
  next.palette = palette(data.colours[next.theme]);
  // The text may no longer have the token that is pointed at.
  const places = [pointer.token, pointer.cell?.query, pointer.cell?.key];
  if (shown?.textName !== next.textName || places.some((place) => place >= length)) pointer.cell = pointer.token = null;
  shown = next;
  for (const view of views) Promise.resolve(view()).then(focus);
  document.documentElement.dataset.drawn = next.snapshot.step;
  if ($("main").offsetTop !== top) render();
}

async function side(name, frame, field) {
  const at = frame[field];
  const snapshot = snapshots[at];
  const loaded = await (frame.typing ? readTyped : readRecorded)(frame, at);
  const measured = { ...loaded.figures, labels: loaded.labels };
  const label = frame.other === null ? "" : `${name}: `;
  const when = `step ${snapshot.step.toLocaleString("en")}`;
  return { ...loaded, name, label, when, title: label + when, at, field, snapshot, measured, head: frame.head };
}
