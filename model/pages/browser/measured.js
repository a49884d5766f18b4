// What a snapshot measured of a text, in words: what the model expected in place of each token, how much the true one
// surprised it, and what each part adds to the logit of the next token. Parts add up to it but for rounding: each adds
// a vector to the stream, and the final norm's scale is that of the whole.
//
// measured: what `measuredOf` gives. Its column t reads token t and predicts token t + 1.

import { decimal, percent, quote, scientific } from "browser/words.js";

const FULL = 10; // bits at which the colour is full
const LARGEST_ERROR = 1e-5; // of a sum of float32 numbers, relative to the largest logit where that is above 1

// What a snapshot measured of one probe: that part of its details (see recording.py), with what the probes share and
// the labels of the tokens.
export const measuredOf = (details, probe, labels) => ({ ...details, ...details.probes[probe], labels });

// The loss in nats per token; NaN for a single token.
export const lossOf = ({ bits }) =>
  (Math.LN2 * bits.slice(0, -1).reduce((sum, one) => sum + one, 0)) / (bits.length - 1);

// From 0 to 1: how deep the colour of a token is. The first token was not predicted.
export const depth = (measured, token) => Math.min(1, (measured.bits[token - 1] ?? 0) / FULL);

export function expectation(measured, token) {
  if (token === 0) return "This is the first token: nothing comes before it that could tell what to expect.";
  const [bits, rank] = [measured.bits[token - 1], measured.rank[token - 1]];
  const truth = quote(measured.labels[token]);
  if (bits === null || rank === null) return `The model's prediction of ${truth} is not a number: –.`;
  const { top, top_probability: shares, tokens } = measured;
  const expected = top[token - 1].map((id, place) => `${quote(tokens[id])} ${percent(shares[token - 1][place])}`);
  const came = `the true token ${truth} was number ${rank + 1}, ${decimal(bits, 1)} bits`;
  return `The model expected: ${expected.join(", ")}; ${came}.`;
}

// What comes after a token, in words: after the last one the likeliest token. null where that was not measured.
export function nextInWords({ labels, tokens, top, top_probability, attribution_of_likeliest }, token) {
  if (token + 1 < labels.length) return `what comes next is ${quote(labels[token + 1])}`;
  if (!attribution_of_likeliest) return null;
  const likeliest = `${quote(tokens[top.at(-1)[0]])} (${percent(top_probability.at(-1)[0])})`;
  return `the likeliest to come next is ${likeliest}; the text ends here, so the true one is not known`;
}

// One column of the attribution: { name, value } for each part, largest first. After the last token that of the
// likeliest next one, where it was measured.
export function partsOf({ parts: names, attribution, attribution_of_likeliest: last, bits }, token) {
  const values = token === bits.length - 1 && last ? last : attribution.map((row) => row[token]);
  const parts = names.map((name, i) => ({ name, value: values[i] }));
  return parts.sort((one, two) => Math.abs(two.value) - Math.abs(one.value));
}

// Null if one of them is not known.
export const sum = (parts) =>
  parts.reduce((total, { value }) => (total === null || value === null ? null : total + value), 0);

export function badge(error) {
  const size = scientific(error, 0);
  const good = error !== null && error <= LARGEST_ERROR;
  return { good, text: good ? `✓ adds up to the logit: within ${size}` : `✗ not the logit: off by ${size}` };
}
