// The text that a person has typed, as the model reads it, and the model's answers about it. All views ask here.

import { recent } from "browser/recent.js";
import { descriptionsOf } from "browser/recorded.js";
import { snapshots, state } from "browser/state.js";

const KEPT = 24; // texts, and answers

export let engine = null;
export const useEngine = (started) => (engine = started);

Object.assign(state, { typed: "", off: [], otherText: "" });
// The parts that are off once this one is switched.
export const toggled = (part) =>
  (state.off.includes(part) ? state.off.filter((other) => other !== part) : [...state.off, part]);

const encoded = recent(KEPT); // by text

// The tokens that the model reads: the last of the text, as many as its context holds; for an empty text, the token
// that begins a document.
export const tokensOf = (text) => encoded(text, () => {
  const { config: { context_length: context, window }, tokenizer: { encode, label, endOfText } } = engine;
  const all = encode(text);
  const tokens = all.length ? all.slice(-context) : [endOfText];
  return { text, tokens, labels: tokens.map(label), all: all.length, window };
});

// Splits a typed text into pieces, one for each token. A character that is spread over several tokens is one piece. The
// beginning of a long text, and text for which the tokenizer has no token, become pieces without ids.
export function piecesOf({ text, tokens, all }) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true }); // a byte order mark is text here
  const decoded = []; // from the last to the first
  let ids = [];
  for (const [i, token] of (all ? tokens : []).entries()) {
    const piece = decoder.decode(engine.tokenizer.bytes(token), { stream: i + 1 < tokens.length });
    ids.push(i);
    if (piece) decoded.unshift({ piece, ids });
    if (piece) ids = [];
  }
  const split = [];
  let end = text.length;
  for (const { piece, ids } of decoded) {
    const place = text.lastIndexOf(piece, end - piece.length);
    const start = place < 0 ? Math.max(0, end - piece.length) : place; // half a surrogate pair is read as U+FFFD
    const after = { text: text.slice(start + piece.length, end), ids: [] };
    split.unshift({ text: text.slice(start, start + piece.length), ids }, after);
    end = start;
  }
  return [{ text: text.slice(0, end), ids: [] }, ...split].filter(({ text }) => text);
}

const cached = recent(KEPT); // { answer } by question
const kept = (...question) => cached(JSON.stringify(question), () => ({ answer: null }));
let current = null; // the frame for which the model is asked
let leaving = null; // the AbortController of the questions for that frame

// Asks the model for the current frame. The answer is undefined if another frame comes first.
export const ask = (name, request) => engine.ask(name, request, { signal: leaving.signal });

// at: a step that has weights, by its place on the slider. Answers are kept, so that going back costs nothing.
async function reading(at, { tokens }, { off = [], text = "A", deep = false } = {}) {
  const entry = kept(at, tokens, off);
  if (entry.answer && (entry.answer.deep || !deep)) return entry.answer;
  const answer = await ask("read", { snapshot: snapshots[at].weights, tokens, off, text, deep });
  if (!answer) return undefined;
  const { top, lens } = answer.figures;
  const ids = new Set([...top, ...(lens?.token ?? [])].flat());
  answer.figures.tokens = Object.fromEntries([...ids].map((id) => [id, engine.tokenizer.label(id)]));
  return (entry.answer = { ...answer, deep });
}

// What is exact at a token: see LiveModel.at.
async function exactAt(at, { tokens }, off, token) {
  return (kept(at, tokens, off, token).answer ??=
    await ask("at", { snapshot: snapshots[at].weights, tokens, off, token }));
}

// What `render` shows of a typed text, as readRecorded returns it of a recorded one, and what the views of typed text
// need: the reading with the parts that are off, and `intact`, the reading of the whole model. `late` asks for the
// figures that take longer, with lens and attribution; null if they are there already.
export async function readTyped(frame, at) {
  if (frame !== current) {
    leaving?.abort(); // the answers for the last frame are not wanted now
    [current, leaving] = [frame, new AbortController()];
  }
  const typed = tokensOf(frame.typed);
  const { off } = frame;
  const intact = await reading(at, typed);
  const asSwitched = await reading(at, typed, { off });
  const b = frame.otherText ? tokensOf(frame.otherText) : null;
  const other = b && { typed: b, next: (await reading(at, b, { text: "B" })).next };
  const query = Math.min(frame.token ?? Infinity, typed.tokens.length - 1);
  const exact = { query, ...(await exactAt(at, typed, off, query)) };
  const { logits: whole } = await exactAt(at, typed, [], query);
  const descriptions = await descriptionsOf(at); // recorded: they are not of this text
  const late = asSwitched.deep ? null : async () => (await reading(at, typed, { off, deep: true }))?.figures;
  return { ...asSwitched, typed, labels: typed.labels, intact, off, other, late, descriptions, exact, whole };
}
