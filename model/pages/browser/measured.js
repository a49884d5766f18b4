// Puts into words what was measured of a text: what the model expected at each token, how much the true token surprised
// it, and what each part adds to the logit of the next token (see attribution.js).
//
// measured: the figures of a reading with the labels of its tokens. Column t reads token t and predicts token t + 1.

import { decimal, percent, quote, scientific } from "browser/words.js";

const FULL = 10; // bits with the full colour
const LARGEST_ERROR = 1e-5; // of a sum of float32 numbers, relative to the largest logit if that is above 1

// The loss in nats per token; NaN for a single token.
export const lossOf = ({ bits }) =>
  (Math.LN2 * bits.slice(0, -1).reduce((sum, cost) => sum + cost, 0)) / (bits.length - 1);

// The strength of a token's colour of surprise, from 0 to 1; 0 for the first token, which was not predicted.
export const strength = (measured, token) => Math.min(1, (measured.bits[token - 1] ?? 0) / FULL);

export function expectation(measured, token) {
  if (token === 0) return "This is the first token: the model did not predict it.";
  const [bits, rank] = [measured.bits[token - 1], measured.rank[token - 1]];
  const truth = quote(measured.labels[token]);
  if (bits === null || rank === null) return `The model’s prediction of ${truth} is not a number (–).`;
  const { top, top_probability: shares, tokens } = measured;
  const expected = top[token - 1].map((id, place) => `${quote(tokens[id])} ${percent(shares[token - 1][place])}`);
  const came = `the true token, ${truth}, was number ${rank + 1} (surprise: ${decimal(bits, 1)} bits)`;
  return `The model expected ${expected.join(", ")}; ${came}.`;
}

// Names the token after a token; after the last token, the likeliest one. null if that was not measured.
export function nextInWords({ labels, tokens, top, top_probability, attribution_of_likeliest }, token) {
  if (token + 1 < labels.length) return `the next token is ${quote(labels[token + 1])}`;
  if (!attribution_of_likeliest) return null;
  const likeliest = `${quote(tokens[top.at(-1)[0]])} (${percent(top_probability.at(-1)[0])})`;
  return `the likeliest next token is ${likeliest}; the text ends here, so the true one is not known`;
}

// One column of the attribution: { name, value } for each part, the largest first. After the last token it is about the
// likeliest next token, if that was measured.
export function partsOf({ parts: names, attribution, attribution_of_likeliest: last, bits }, token) {
  const values = token === bits.length - 1 && last ? last : attribution.map((row) => row[token]);
  const parts = names.map((name, i) => ({ name, value: values[i] }));
  return parts.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
}

// The sum of the values, null if one of them is null.
export const sum = (parts) =>
  parts.reduce((total, { value }) => (total === null || value === null ? null : total + value), 0);

export function badge(error) {
  const size = scientific(error, 0);
  const good = error !== null && error <= LARGEST_ERROR;
  return { good, text: good ? `✓ adds up to the logit: within ${size}` : `✗ not the logit: off by ${size}` };
}
