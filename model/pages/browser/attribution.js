// What each part of the model adds to the logit of the next token: of the true one, or of the likeliest after a text
// that ends there. The parts add up to the logit exactly, but for rounding: each adds a vector to the stream, and the
// final norm's scale is that of the whole.

import { percent, quote, scientific } from "browser/words.js";

const LARGEST_ERROR = 1e-5; // of a sum of float32 numbers, relative to the largest logit where that is above 1

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
