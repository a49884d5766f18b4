// The data of the page, the state that a person chooses, and how the address keeps that state.

import { $, closest, systemTheme } from "browser/elements.js";

export const data = JSON.parse($("data").textContent);
// A file that was cut short has lost its model, and before the model's manifest also steps: then it shows none.
export const isWhole = $("end") !== null;
if (!isWhole) data.notes = ["This file has been cut short: copy or download it again."];
if (!isWhole && !$("manifest")) Object.assign(data, { run: null, film: null });
export const SCORES = data.scores;
const NOTHING = { layers: 0, heads: 0, probes: [], formation: {}, stages: [], snapshots: [], opening: {} };
export const RUN = data.run ?? NOTHING; // the recording of the model
export const { layers: LAYERS, heads: HEADS, snapshots } = RUN; // a snapshot is a stop of the slider
export const ALL_HEADS = [...Array(LAYERS * HEADS).keys()]; // numbered layer by layer

export const placeOf = (head) => [Math.floor(head / HEADS), head % HEADS];
export const headName = (head) => `layer ${placeOf(head)[0]}, head ${placeOf(head)[1]}`;
export const shortName = (head) => placeOf(head).join(".");
// A head's number from its short name, undefined if there is no such head.
export const headNumber = (name) => ALL_HEADS.find((head) => shortName(head) === name);

// The names of the scores' colours in theme.css, which has eight for patterns.
for (const [i, score] of Object.values(SCORES).entries()) score.colour = score.is_pattern ? `mark-${i % 8}` : "accent";
export const MARKED = Object.keys(SCORES).filter((score) => SCORES[score].is_pattern);

export const LAST = snapshots.length - 1;
export const stepOf = (at) => snapshots[at].step;
// Whether the page holds the weights of a step, so that a person can type there.
export const holdsWeights = (at) => snapshots[at].weights !== undefined;

export const HELD = [...snapshots.keys()].filter(holdsWeights);

// The texts that can be shown: what a person types, if the page holds weights, and the recorded texts.
const typed = HELD.length ? [{ name: "typed" }] : [];
export const TEXTS = [...typed, ...RUN.probes];
export const textNumber = (wanted) => [...TEXTS.keys()].find((i) => TEXTS[i].name === wanted);

// at: a step, by its place on the slider. token: undefined until the first frame chooses one; null if a person chose
// none. other: the step that is compared, by its place; null for none.
const { opening } = RUN;
export const state = {
  at: LAST, head: headNumber(opening.head), score: opening.score, probe: typed.length ? 0 : textNumber(opening.probe),
  token: undefined, other: null, square: null,
  film: null, // what the film does: "plays", "asks" or "answers"; null while it does not play
};

export const headPart = (head) => `head ${shortName(head)}`; // a head's name as a part of the model
// The change of state that chooses a part. If it is not a head, the map and the scores stay those of the last head.
const headOf = (part) => ALL_HEADS.find((head) => headPart(head) === part);
export const choosing = (part) => (headOf(part) === undefined ? { part } : { head: headOf(part), part: null });
export const PLAIN = { temperature: 1, topK: null }; // the model's own probabilities, with which the page opens
export const formation = (score, head) => RUN.formation[score]?.[shortName(head)] ?? Infinity;

// When a head formed, in words: it did not follow the pattern yet at the recorded step before.
export function formedBetween(step) {
  const before = snapshots.findLast((snapshot) => snapshot.step < step);
  return before ? `between steps ${before.step} and ${step}` : `by step ${step}`;
}

// The place on the slider that is nearest to a step.
export const nearest = (step) =>
  closest([...snapshots.keys()], (at) => Math.abs(Math.log1p(stepOf(at)) - Math.log1p(step)));

// ---- the address keeps the state, so that a person can save and send a view

// A field of the address: `write` returns its text, null to leave it out; `read` gets the text back, or null.
const fields = [];
export const addField = (name, write, read) => fields.push({ name, write, read });

// Adds a field with a few values. The page opens with the first value, which the address leaves out.
export function addOption(name, values) {
  [state[name]] = values;
  addField(name, () => (state[name] === values[0] ? null : state[name]),
    (text) => (state[name] = values.includes(text) ? text : values[0]));
}

// A text of the address as a number; undefined if it is not one.
const numberIn = (text) => (/^\d+$/.test(text ?? "") ? Number(text) : undefined);
const placeIn = (text) => (numberIn(text) === undefined ? null : nearest(Number(text)));

addField("step", () => stepOf(state.at), (text) => (state.at = placeIn(text) ?? state.at));
addField("head", () => shortName(state.head), (text) => (state.head = headNumber(text) ?? state.head));
addField("probe", () => TEXTS[state.probe].name, (text) => (state.probe = textNumber(text) ?? state.probe));
addField("score", () => state.score, (text) => (state.score = text in SCORES ? text : state.score));
addField("token", () => state.token ?? null, (text) => (state.token = numberIn(text) ?? null)); // may be too large
addField("against", () => (state.other === null ? null : stepOf(state.other)), (text) => (state.other = placeIn(text)));
addOption("theme", [systemTheme, systemTheme === "dark" ? "light" : "dark"]);

// Writes the state to the address. how: "pushState" adds an entry to the browser's history.
export function save(how = "replaceState") {
  if (!snapshots.length) return;
  const written = fields.map(({ name, write }) => [name, write()]).filter(([, value]) => value !== null);
  keepInHistory(null, `#${new URLSearchParams(written)}`, how);
}

// Adds values to `history.state`, where the page finds them after a reload.
export function keepInHistory(values, address = "", how = "replaceState") {
  try {
    history[how](values && { ...history.state, ...values }, "", address);
  } catch {
    // A frame without an address of its own, as in a notebook, cannot keep the state.
  }
}

// Call this before a change, so that the browser's "back" returns to the present state.
export function keepView() {
  save();
  save("pushState");
}

// Takes the valid fields from the address, and leaves the rest of the state as it is.
export function restore() {
  if (!location.hash || !snapshots.length) return;
  const texts = new URLSearchParams(location.hash.slice(1));
  for (const { name, read } of fields) read(texts.get(name));
  state.square = null;
}
