// The data of the page, the state that a person chooses, and that state in the address.

import { markColour } from "browser/chart.js";
import { $, clamp, closest, systemTheme } from "browser/elements.js";

export const data = JSON.parse($("data").textContent);
export const SCORES = data.scores;

export const RUNS = data.runs; // one, or two whose maps have one shape and are of the same texts
export const { layers: LAYERS, heads: HEADS, probes: PROBES } = RUNS[0];
export const ALL_HEADS = [...Array(LAYERS * HEADS).keys()]; // numbered layer by layer

for (const [i, score] of Object.values(SCORES).entries()) score.colour = score.is_pattern ? markColour(i) : "accent";
export const MARKED = Object.keys(SCORES).filter((score) => SCORES[score].is_pattern);

// The snapshots of each run that have maps on this page. All snapshots have scores.
export const mapped = RUNS.map((run) => run.snapshots.filter((snapshot) => snapshot.blocks));
export const lastOf = (run) => mapped[run].length - 1;
export const comparable = RUNS.length > 1 || lastOf(0) > 0;

// What is compared with the first side: `head` is a number, "match" for the most similar map, or null for the same.
export const secondRun = RUNS.length > 1 ? { run: 1, at: lastOf(1), head: "match" } : null;

// token: undefined until the first drawing chooses one; null if a person chose none. linked: B follows A's steps.
export const state = {
  run: 0, at: lastOf(0), probe: 0, token: undefined, other: secondRun, linked: RUNS.length > 1,
  ...RUNS[0].opening, // head and score, and for a recorded text the token and probe that they are best seen in
};

// Choices by the names that the address has for them. A page opens with the first, which the address leaves out.
const OPTIONS = {};
export function addOption(name, values) {
  OPTIONS[name] = values;
  [state[name]] = values;
}
addOption("order", ["layer", ...Object.keys(SCORES)]);
addOption("theme", [systemTheme, systemTheme === "dark" ? "light" : "dark"]);
addOption("text", ["attention", "surprise"]);
addOption("curve", ["score", "text", "repeated"]); // a score of the heads, or the loss without a head

// "1.2" as two numbers; none of a text of another form.
const pairOf = (text) => (/^(\d+)\.(\d+)$/.exec(text) ?? []).slice(1).map(Number);

// A head's number from its short name, undefined if there is no such head.
export function headNumber(name) {
  const [layer, head] = pairOf(name);
  return layer < LAYERS && head < HEADS ? layer * HEADS + head : undefined;
}

export const placeOf = (head) => [Math.floor(head / HEADS), head % HEADS];
export const headName = (head) => `layer ${placeOf(head)[0]}, head ${placeOf(head)[1]}`;
export const shortName = (head) => placeOf(head).join(".");
export const headPart = (head) => `head ${shortName(head)}`; // as the details of a snapshot and the engine call it
export const tellsSince = (run) => RUNS[run].snapshots.length > 1; // one snapshot does not tell when a head formed
export const formation = (run, score, head) => RUNS[run].formation[score][shortName(head)] ?? Infinity;

// The place among a run's mapped snapshots that is nearest to a step.
export const nearest = (run, step) =>
  closest([...mapped[run].keys()], (at) => Math.abs(Math.log1p(mapped[run][at].step) - Math.log1p(step)));

// ---- the state in the address, so that a view can be kept and sent

// What only some pages have: `write` gives a field's value and `read` takes its text, null if it is left out.
const added = [];
export const addField = (name, write, read) => added.push({ name, write, read });

export function save() {
  const { run, at, head, probe, score, token, other, linked } = state;
  const fields = { step: mapped[run][at].step, head: shortName(head), probe: PROBES[probe].name, score };
  if (RUNS.length > 1) fields.run = run;
  for (const [name, [first]] of Object.entries(OPTIONS)) if (state[name] !== first) fields[name] = state[name];
  if (typeof token === "number") fields.token = token;
  for (const { name, write } of added) if (write() !== null) fields[name] = write();
  if (other) {
    fields.against = `${other.run}.${mapped[other.run][other.at].step}`;
    fields.other = typeof other.head === "number" ? shortName(other.head) : (other.head ?? "same");
    fields.linked = Number(linked);
  }
  try {
    history.replaceState(null, "", `#${new URLSearchParams(fields)}`);
  } catch {
    // A frame without an address of its own cannot keep the state there.
  }
}

// A field of the address as a number; undefined if it is none, or not below `count`.
export const numberIn = (text, count = Infinity) =>
  /^\d+$/.test(text ?? "") && Number(text) < count ? Number(text) : undefined;

// Takes from the address what makes sense, and leaves the rest of the state as it is.
export function restore() {
  if (!location.hash) return;
  const fields = new URLSearchParams(location.hash.slice(1));
  const pick = (field, options) => (options.includes(fields.get(field)) ? fields.get(field) : undefined);
  state.run = numberIn(fields.get("run"), RUNS.length) ?? state.run;
  state.score = pick("score", Object.keys(SCORES)) ?? state.score;
  const step = numberIn(fields.get("step"));
  state.at = step === undefined ? clamp(state.at, lastOf(state.run)) : nearest(state.run, step);
  const probe = PROBES.findIndex(({ name }) => name === fields.get("probe"));
  if (probe >= 0) state.probe = probe;
  state.head = headNumber(fields.get("head")) ?? state.head;
  for (const [name, options] of Object.entries(OPTIONS)) state[name] = pick(name, options) ?? options[0];
  for (const { name, read } of added) read(fields.get(name));
  state.token = numberIn(fields.get("token")) ?? null; // drawing knows how many there are
  state.linked = fields.get("linked") === "1";
  const [run, other] = pairOf(fields.get("against"));
  const head = headNumber(fields.get("other")) ?? pick("other", ["match"]) ?? null;
  state.other = run < RUNS.length ? { run, at: nearest(run, other), head } : null;
}
