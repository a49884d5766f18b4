// Draws the state. A view is a module that calls addView with its drawing function. A view that needs another one
// imports it, and is therefore drawn after it. addFollower is for what changes while something is only pointed at.

import { $, choices, press } from "browser/elements.js";
import { clearestQuery, matchingHead, ofHead, palette } from "browser/maps.js";
import { addOption, data, mapped, nearest, PROBES, restore, RUNS, save, state } from "browser/state.js";
import { measuredOf } from "browser/surprise.js";

let load = null; // where maps come from

// Starts the page. loader: an asynchronous function of a frame (a copy of the state), the place of a step among a run's
// snapshots, and the run, which gives { weights of all heads, details (see recording.py), labels of the tokens } and
// what else the views need.
export function start(loader) {
  load = loader;
  restore();
  addEventListener("hashchange", () => (restore(), render()));
  addEventListener("resize", render);
  render();
}

// The state that is on the screen with what it shows: the `snapshot` and `labels` of the first side, and `sides`: what
// is looked at, and what it is compared with. A side is what `load` gives, and { name, label: the name before a
// sentence if there are two, when: run and step in words, title: label and when, run, at, snapshot, head, measured: see
// surprise.js }.
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

// Buttons that set a field of the state: `options` are its values and their names. A field of this view alone is an
// option (see addOption).
export function addChoices(parent, field, options) {
  if (!(field in state)) addOption(field, options.map(([value]) => value));
  choices(parent, options, (value) => change({ [field]: value }));
  addView(() => press(parent, shown[field]));
}

export function point(patch) {
  Object.assign(pointer, patch);
  for (const draw of followers) draw(patch);
}

export function change(patch) {
  if (patch.probe !== undefined && patch.probe !== state.probe) state.token = undefined;
  Object.assign(state, patch);
  const { other, linked, run, at } = state;
  if (other && linked && (patch.at !== undefined || patch.linked))
    state.other = { ...other, at: nearest(other.run, mapped[run][at].step) };
  save();
  render();
}

// Changes what is compared, unless a person has just ended that.
export const changeOther = (patch) => state.other && change({ other: { ...state.other, ...patch } });

// Draws one frame after another. A frame that is asked for but not begun will show the latest state in any case.
let asked = false;

export function render() {
  if (asked) return;
  asked = true;
  rendered = rendered.then(draw, draw);
}

async function draw() {
  asked = false;
  const next = { ...state, received: state.direction === "from", probeName: PROBES[state.probe].name };
  const first = await side("A", next, next);
  first.head = next.head;
  next.sides = [first];
  const { length } = first.labels;
  const { token } = next;
  if (token >= length) next.token = null;
  if (token === undefined) next.token = clearestQuery(ofHead(first.weights, next.head, length), length);
  if (state.token === token) state.token = next.token;
  if (next.other) {
    const second = await side("B", next, next.other);
    second.head = next.other.head ?? next.head;
    if (second.head === "match")
      second.head = matchingHead(ofHead(first.weights, next.head, length), second.weights, length);
    next.sides.push(second);
  }
  Object.assign(next, { snapshot: first.snapshot, labels: first.labels });
  // The views measure themselves, so the theme and the layout come first.
  document.documentElement.dataset.theme = next.theme;
  $("main").classList.toggle("compare", Boolean(next.other));
  document.documentElement.style.setProperty("--top", `${$("main").offsetTop}px`);
  document.documentElement.style.setProperty("--controls", `${$("controls").offsetHeight}px`);
  next.palette = palette(data.colours[next.theme], next.scale);
  // What is pointed at may have gone with the text.
  const places = [pointer.token, pointer.cell?.query, pointer.cell?.key];
  if (shown?.probe !== next.probe || places.some((place) => place >= length)) pointer.cell = pointer.token = null;
  shown = next;
  for (const view of views) view();
  document.documentElement.dataset.drawn = `${next.run}:${next.snapshot.step}`;
}

async function side(name, frame, { run, at }) {
  const snapshot = mapped[run][at];
  const loaded = await load(frame, at, run);
  const { details, labels } = loaded;
  const measured = measuredOf(details, frame.probeName, labels);
  const label = frame.other ? `${name}: ` : "";
  const when = `${RUNS.length > 1 ? `${RUNS[run].name}, ` : ""}step ${snapshot.step}`;
  return { ...loaded, name, label, when, title: label + when, run, at, snapshot, measured };
}
