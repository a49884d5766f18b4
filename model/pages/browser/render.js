// Draws the state. A view is a module that calls addView with its drawing function. A view that needs another one
// imports it, and is therefore drawn after it. addFollower is for what changes while something is only pointed at.

import { $, button, element } from "browser/elements.js";
import { palette } from "browser/maps.js";
import { readRecorded } from "browser/recorded.js";
import {
  addOption, data, holdsWeights, keepView, mapped, nearest, restore, save, state, textNumber, TEXTS,
} from "browser/state.js";
import { measuredOf } from "browser/measured.js";
import { engine, readTyped } from "browser/typed-text.js";

export function start() {
  restore();
  addEventListener("hashchange", () => (restore(), render()));
  addEventListener("resize", render);
  render();
}

// The state that is on the screen with what it shows: the `snapshot` and `labels` of the first side, `typing`: whether
// it is what was typed, textName, and `sides`: what is looked at, and what it is compared with. A side is what was
// read, and { name, label: the name before a sentence if there are two, when: its step in words, title: label and when,
// at, snapshot, head, measured: see measured.js }.
export let shown = null;
export let rendered = Promise.resolve(); // settles when everything that was asked for is drawn
export const pointer = { cell: null, token: null }; // the square { query, key } and the token of the text pointed at

const views = [];
const plainViews = []; // those of a page without maps, which have nothing in `shown`
const followers = [];
export const addView = (draw) => views.push(draw);
export const addPlainView = (draw) => plainViews.push(draw);
export const addFollower = (draw) => followers.push(draw);

// The token that is pointed at in the text or on the map, or else the one that was chosen; null if there is none.
export function chosenToken() {
  const { cell, token } = pointer;
  return token ?? cell?.query ?? shown.token;
}

// A button that goes to a step.
export const stepButton = (step) => button(`step ${step}`, () => change({ at: nearest(step) }));

// Buttons that set a field of the state: `options` are its values and their names. A field of this view alone is an
// option (see addOption).
export function addChoices(parent, field, options) {
  if (!(field in state)) addOption(field, options.map(([value]) => value));
  const buttons = options.map(([value, name]) =>
    element("button", { onclick: () => change({ [field]: value }) }, name));
  parent.append(...buttons);
  addView(() => buttons.forEach((button, i) => (button.ariaPressed = options[i][0] === shown[field])));
}

export function point(patch) {
  Object.assign(pointer, patch);
  for (const draw of followers) draw(patch);
}

const STEPS = ["off", "other", "probe"]; // fields of which a change can be taken back by the browser's "back"

export function change(patch) {
  if (STEPS.some((field) => field in patch && String(patch[field]) !== String(state[field]))) keepView();
  const isOther = patch.probe !== undefined && patch.probe !== state.probe; // text
  if (isOther) Object.assign(state, { token: undefined, square: null });
  Object.assign(state, patch);
  save();
  render();
}

// Draws one frame after another. A frame that is asked for but not begun will show the latest state in any case.
let asked = false;

export function render() {
  if (asked) return;
  asked = true;
  rendered = rendered.then(draw, draw);
}

// The text that a frame shows: where the page cannot read what is typed, the recorded one.
function textOf({ at, other, probe }) {
  const { name } = TEXTS[probe];
  const typing = name === "typed" && engine && holdsWeights(at) && (other === null || holdsWeights(other));
  const textName = name === "typed" && !typing ? "text" : name;
  return { typing: Boolean(typing), textName, probe: textNumber(textName) };
}

async function draw() {
  asked = false;
  document.documentElement.dataset.theme = state.theme;
  if (!mapped.length) return plainViews.forEach((view) => view());
  const next = { ...state, ...textOf(state) };
  const first = await side("A", next, next.at);
  next.sides = [first];
  const { length } = first.labels;
  const { token } = next;
  if (token >= length) next.token = null;
  // The last token; of a recorded text, the last whose true next token is known.
  if (token === undefined) next.token = Math.max(0, length - (next.typing ? 1 : 2));
  // A text that stands in for what was typed may be too short for its token.
  if (state.token === token && (next.probe === state.probe || next.token !== null)) state.token = next.token;
  if (next.other !== null) next.sides.push(await side("B", next, next.other));
  if (next.square && (!next.typing || next.square.query >= length)) next.square = null;
  Object.assign(next, { snapshot: first.snapshot, labels: first.labels });
  // The views measure themselves, so the layout comes first. A line that comes or goes above it is drawn with them.
  const top = $("main").offsetTop;
  $("main").className = `${next.other === null ? "" : "compare"} ${next.typing ? "typing" : ""}`;
  document.documentElement.style.setProperty("--top", `${top}px`);
  document.documentElement.style.setProperty("--controls", `${$("kept-in-sight").offsetHeight}px`);
  next.palette = palette(data.colours[next.theme]);
  // What is pointed at may have gone with the text.
  const places = [pointer.token, pointer.cell?.query, pointer.cell?.key];
  if (shown?.textName !== next.textName || places.some((place) => place >= length)) pointer.cell = pointer.token = null;
  shown = next;
  for (const view of views) view();
  document.documentElement.dataset.drawn = next.snapshot.step;
  if ($("main").offsetTop !== top) render();
}

async function side(name, frame, at) {
  const snapshot = mapped[at];
  const loaded = await (frame.typing ? readTyped : readRecorded)(frame, at);
  const measured = measuredOf(loaded.details, frame.typing ? "text" : frame.textName, loaded.labels);
  const label = frame.other === null ? "" : `${name}: `;
  const when = `step ${snapshot.step}`;
  return { ...loaded, name, label, when, title: label + when, at, snapshot, measured, head: frame.head };
}
