// What the model expected in place of each token of the text, and how much the true one surprised it.
//
// measured: what `measuredOf` gives. Its column t reads token t and predicts token t + 1.

import { decimal, percent, quote } from "browser/words.js";

const FULL = 10; // bits at which the colour is full

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
