// What a person has typed, as the model reads it, and the model's readings of it. All views of the live page ask here.

import { mapped, state } from "browser/state.js";

const KEPT = 12; // texts and readings

export let engine = null;
let used; // the snapshot that answers

export function useEngine(started) {
  engine = started;
  used = engine.steps.length - 1;
}

// Lets the snapshot at a place of the slider answer.
export async function ask(at) {
  if (used === at) return;
  used = at;
  await engine.use(at);
}

Object.assign(state, { typed: "", off: [], instead: "mean", otherText: "" });

// ---- text -> tokens

const read = new Map(); // by text

// The tokens that the model reads: the last that its context holds; for an empty text the one that begins a document.
export function tokensOf(text) {
  if (!read.has(text)) {
    const { encode, label, endOfText } = engine.tokenizer;
    const all = encode(text);
    const tokens = all.length ? all.slice(-engine.config.context_length) : [endOfText];
    keep(read, text, { text, tokens, labels: tokens.map(label), all: all.length });
  }
  return read.get(text);
}

export const textOf = (tokens) => new TextDecoder().decode(Uint8Array.from(tokens.flatMap((token) => [...engine.tokenizer.bytes(token)])));

function keep(map, key, value) {
  map.set(key, value);
  if (map.size > KEPT) map.delete(map.keys().next().value);
}

// ---- tokens -> what the model makes of them

const readings = new Map();

async function reading(at, tokens, edits, details = false) {
  const key = JSON.stringify([at, tokens, edits]);
  if (!readings.has(key) || (details && !readings.get(key).deep)) {
    await ask(at);
    keep(readings, key, { ...(await engine.read(tokens, { edits, details })), deep: details });
  }
  return readings.get(key);
}

export const editsOf = ({ off, instead }) => off.map((part) => ({ part, with: instead }));

// What `render` shows: the reading of the model as it is switched, and `intact`, that of the whole model. `later` is what
// takes longer, the details with lens and attribution; undefined if a newer question has come.
export async function readTyped(run, at) {
  const typed = tokensOf(state.typed);
  const edits = editsOf(state);
  const atOnce = state.weighting === "values" || Boolean(state.other); // another step's answer would take its place
  const intact = await reading(at, typed.tokens, []);
  const { block, details, loss, next, deep } = await reading(at, typed.tokens, edits, atOnce);
  const b = state.otherText && tokensOf(state.otherText);
  const other = b && { typed: b, next: (await reading(at, b.tokens, [])).next };
  const { descriptions } = mapped[run][at]; // of what each head does on the text with which the page opened
  const later = deep ? null : reading(at, typed.tokens, edits, true).then(({ details }) => ({ ...details, descriptions }), unlessAborted);
  return { typed, intact, edits, loss, next, other, later, details: { ...details, descriptions }, weights: block, labels: typed.labels };
}

// Nobody waits for the answer to a question any more whose place a newer one has taken.
export function unlessAborted(error) {
  if (error.name !== "AbortError") throw error;
}
