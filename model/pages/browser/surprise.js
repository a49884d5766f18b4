// What the model expected in place of each token of the text, and how much the true one surprised it.
//
// measured: a probe's part of a capture's details. Its column t reads token t and predicts token t + 1.

import { element } from "browser/elements.js";
import { decimal, quote, visible } from "browser/words.js";

const FULL = 10; // bits at which the colour is full
export const UNMEASURED = "This capture was recorded before predictions were measured: it has maps and scores only.";

// From 0 to 1: how deep the colour of a token is. The first token was not predicted.
export const depth = (measured, token) => Math.min(1, (measured?.bits[token - 1] ?? 0) / FULL);

export function share(probability) {
  if (probability > 0 && probability < 0.0005) return "<0.001";
  return decimal(probability, probability < 0.0095 ? 3 : 2);
}

export function ordinal(place) {
  const ending = [11, 12, 13].includes(place % 100) ? "th" : { 1: "st", 2: "nd", 3: "rd" }[place % 10] ?? "th";
  return `${place}${ending}`;
}

// The likeliest tokens in place of `token`: { text, probability, hit }. None for the first.
export function candidates(details, probe, token) {
  const { top, top_probability: probabilities, rank } = details.probes[probe];
  return (top[token - 1] ?? []).map((id, place) => ({
    text: details.tokens[id] ?? `token ${id}`, probability: probabilities[token - 1][place], hit: rank[token - 1] === place,
  }));
}

export function expectation(details, probe, labels, token) {
  const measured = details?.probes?.[probe];
  if (!measured) return UNMEASURED;
  if (token === 0) return "This is the first token: nothing comes before it that could tell what to expect.";
  const [bits, rank] = [measured.bits[token - 1] ?? null, measured.rank[token - 1] ?? null];
  if (bits === null || rank === null) return `The model's prediction of ${quote(labels[token])} is not a number: –.`;
  const expected = candidates(details, probe, token).map(({ text, probability }) => `${quote(text)} ${share(probability)}`);
  const came = `the true token ${quote(labels[token])} came ${ordinal(rank + 1)}, ${decimal(bits, 1)} bits`;
  return `The model expected: ${expected.join(", ")}; ${came}.`;
}

// A row for each position that reads a token and predicts the next.
export function surpriseRows(details, probe, labels) {
  const { bits, rank, top, top_probability: probabilities } = details.probes[probe];
  const likeliest = (position) => top[position].flatMap((id, i) =>
    [[`top_${i + 1}`, details.tokens[id]], [`top_${i + 1}_probability`, probabilities[position][i]]]);
  return labels.map((token, position) => ({
    position, token, next_token: labels[position + 1], bits: bits[position], rank: rank[position], ...Object.fromEntries(likeliest(position)),
  }));
}

// ---- drawing

// The style sheet makes the depth a colour, so that a text can be shaded by something else underneath.
export function shadeBySurprise(spans, details, probe) {
  for (const [token, span] of [...spans].entries()) span.style.setProperty("--depth", depth(details?.probes?.[probe], token).toFixed(3));
}

// Items of a list: the sentence, then the likeliest tokens with a bar each.
export function expectationItems(details, probe, labels, token) {
  const likeliest = details?.probes?.[probe] ? candidates(details, probe, token) : [];
  const sentence = element("li", { className: "sentence", textContent: expectation(details, probe, labels, token) });
  return [sentence, ...likeliest.map(({ text, probability, hit }) => {
    const bar = element("i", { style: { width: `${100 * (probability ?? 0)}%` } });
    const name = element("bdi", { textContent: `${visible(text, 40) || "∅"}${hit ? " ✓" : ""}` });
    const number = element("span", { textContent: share(probability) });
    return element("li", { className: "expected" }, number, element("span", { className: "track" }, bar), name);
  })];
}
