// Draws the state. A view is a module that calls addView with its drawing function. A view that needs another one
// imports it, and is therefore drawn after it. addFollower is for what changes while something is only pointed at.

import { $ } from "browser/elements.js";
import { clearestQuery, matchingHead, ofHead, palette } from "browser/maps.js";
import { data, mapped, nearest, PROBES, restore, save, state } from "browser/state.js";
import { weighted } from "browser/value-weighting.js";

let load = null; // where maps come from

// Starts the page. source: an asynchronous function of a run, the place of a step among its captures, and a probe, which gives
// { weights of all heads, details (see archive.py), labels of the tokens } and what else the views of a page need.
export function start(source) {
  load = source;
  restore();
  addEventListener("hashchange", () => (restore(), render()));
  addEventListener("resize", render);
  render();
}

// The state that is on the screen with what it shows. `sides` is what is looked at, and what it is compared with:
// { name, run, capture, head } with what `load` gives. `details` are those of the first side (see archive.py).
export let shown = null;
export let rendered = Promise.resolve(); // settles when everything that was asked for is drawn
export const pointer = { cell: null, token: null }; // the square { query, key } and the token of the text pointed at

const views = [];
const followers = [];
export const addView = (draw) => views.push(draw);
export const addFollower = (draw) => followers.push(draw);

// The token that is pointed at in the text or on the map, or else the one that was chosen; null if there is none.
export function chosenToken() {
  const { cell, token } = pointer;
  return token ?? (cell ? (shown.received ? cell.key : cell.query) : shown.token);
}

export function point(patch) {
  Object.assign(pointer, patch);
  for (const draw of followers) draw();
}

export function change(patch) {
  if (patch.probe !== undefined && patch.probe !== state.probe) state.token = undefined;
  Object.assign(state, patch);
  const { other, linked, run, at } = state;
  if (other && linked && (patch.at !== undefined || patch.linked)) state.other = { ...other, at: nearest(other.run, mapped[run][at].step) };
  save();
  render();
}

// One frame after another. While one is drawn, only the latest request for another is kept.
let wanted = false;
let busy = false;

export function render() {
  wanted = true;
  if (!busy) rendered = drawWanted();
}

async function drawWanted() {
  busy = true;
  try {
    while (wanted) {
      wanted = false;
      await draw();
    }
  } finally {
    busy = false;
  }
}

async function draw() {
  const next = { ...state, sides: [await side("A", state, state.probe)] };
  const [first] = next.sides;
  first.head = next.head;
  const { length } = first.labels;
  PROBES[next.probe].labels = first.labels;
  if (next.token >= length) state.token = next.token = null;
  if (next.token === undefined) state.token = next.token = clearestQuery(ofHead(first.weights, next.head, length), length);
  if (next.other) {
    const second = await side("B", next.other, next.probe);
    const { head } = next.other;
    second.head = head === "match" ? matchingHead(ofHead(first.weights, next.head, length), second.weights, length) : (head ?? next.head);
    next.sides.push(second);
  }
  Object.assign(next, { capture: first.capture, otherCapture: next.sides[1]?.capture, details: first.details });
  // The views measure themselves, so the theme and the layout come first.
  document.documentElement.dataset.theme = next.theme;
  $("main").classList.toggle("compare", Boolean(next.other));
  document.documentElement.style.setProperty("--top", `${$("main").offsetTop}px`);
  document.documentElement.style.setProperty("--controls", `${$("controls").offsetHeight}px`);
  next.palette = palette(data.colours[next.theme], next.scale);
  if (shown && shown.probe !== next.probe) pointer.cell = pointer.token = null;
  shown = next;
  for (const view of views) view();
  document.documentElement.dataset.drawn = `${next.run}:${next.capture.step}`;
}

async function side(name, { run, at }, probe) {
  const capture = mapped[run][at];
  const loaded = await load(run, at, probe);
  const { weights, details, labels } = loaded;
  const norms = state.weighting === "values" && details.probes?.[PROBES[probe].name]?.value_norms;
  return { ...loaded, name, run, capture, weights: norms ? weighted(weights, norms, labels.length) : weights };
}
