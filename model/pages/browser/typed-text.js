// What a person has typed, as the model reads it, and its answers about it. All views of it ask here.

import { recent } from "browser/recent.js";
import { descriptionsOf } from "browser/recorded.js";
import { mapped, state } from "browser/state.js";

const KEPT = 24; // texts, and answers

export let engine = null;
export const useEngine = (started) => (engine = started);

Object.assign(state, { typed: "", off: [], otherText: "" });

const encoded = recent(KEPT); // by text

// The tokens that the model reads: the last that its context holds; for an empty text the one that begins a document.
export const tokensOf = (text) => encoded(text, () => {
  const { config: { context_length: context, window }, tokenizer: { encode, label, endOfText } } = engine;
  const all = encode(text);
  const tokens = all.length ? all.slice(-context) : [endOfText];
  return { text, tokens, labels: tokens.map(label), all: all.length, window };
});

const known = recent(KEPT); // { answer } by question
const kept = (...question) => known(JSON.stringify(question), () => ({ answer: null }));
let current = null; // the frame
let leaving = null; // the AbortController of what was asked for it

// The answer to a question for what is shown now; undefined if something else is shown before it comes.
export const ask = (name, request) => engine.ask(name, request, { signal: leaving.signal });

// `at`: a step that has weights, by its place on the slider. Answers are kept, so that going back costs nothing.
async function reading(at, { tokens }, { off = [], text = "A", details = false } = {}) {
  const found = kept(at, tokens, off);
  if (found.answer && (found.answer.deep || !details)) return found.answer;
  const answer = await ask("read", { snapshot: mapped[at].weights, tokens, off, text, details });
  if (!answer) return undefined;
  const { top, lens } = answer.details.probes.text;
  const named = new Set([...top, ...(lens?.token ?? [])].flat());
  answer.details.tokens = Object.fromEntries([...named].map((id) => [id, engine.tokenizer.label(id)]));
  return (found.answer = { ...answer, deep: details });
}

// What comes after a token, of all tokens in the vocabulary.
async function logitsAfter(at, { tokens }, off, token) {
  return (kept(at, tokens, off, token).answer ??=
    await ask("logits", { snapshot: mapped[at].weights, tokens, off, token }));
}

// What `render` shows of a frame's text, as readRecorded, and what the views of it need: the reading of the model as it
// is switched, and `intact`, that of the whole model. `late` asks for what takes longer, the details with lens and
// attribution; null if they are there already.
export async function readTyped(frame, at) {
  if (frame !== current) {
    leaving?.abort(); // what was asked for the last one is not wanted now
    [current, leaving] = [frame, new AbortController()];
  }
  const typed = tokensOf(frame.typed);
  const { off } = frame;
  const intact = await reading(at, typed);
  const now = await reading(at, typed, { off });
  const b = frame.otherText ? tokensOf(frame.otherText) : null;
  const other = b && { typed: b, next: (await reading(at, b, { text: "B" })).next };
  const token = Math.min(frame.token ?? Infinity, typed.tokens.length - 1);
  const logits = await logitsAfter(at, typed, off, token);
  const whole = off.length ? await logitsAfter(at, typed, [], token) : logits;
  const descriptions = await descriptionsOf(at); // of what each head does on other texts
  const late = now.deep ? null : async () => (await reading(at, typed, { off, details: true }))?.details;
  const ofText = { typed, weights: now.block, labels: typed.labels };
  return { ...now, ...ofText, intact, off, other, late, descriptions, logits, whole };
}
