// Puts tokens, numbers and places into words. Pure functions, which make tokens with any characters safe to show.

// Characters that are invisible or look like a space: as str.isprintable in Python, see `visible` in describe.py.
export const HIDDEN = /(?! )[\p{C}\p{Z}]/gu;
export const isOdd = (text) => /(?![ \n\t])[\p{C}\p{Z}]/u.test(text); // with a character that a text does not show
const NAMED = { "\n": "↵", "\t": "⇥", "\r": "␍" };
export const codePoint = (c) => NAMED[c] ?? `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`;
export const cut = (text, length) =>
  text.length > length ? [...text.slice(0, length)].slice(0, -1).join("") + "…" : text;
export const visible = (text, length) =>
  cut(cut(text, 4 * length).replace(HIDDEN, codePoint).replaceAll(" ", "·"), length);

// A token in a sentence, isolated so that a right-to-left token does not reorder the sentence.
export const quote = (label) => (/^\n+$/.test(label) ? visible(label, 20) : `“\u2068${visible(label, 20)}\u2069”`);

// A number with this many digits after the point. It has the page's minus sign, which is as wide as a plus; no sign if
// it rounds to 0; and a dash stands for a missing number.
export const decimal = (value, digits = 2) => (Number.isFinite(value) ? withMinus(value.toFixed(digits)) : "–");
export const withMinus = (written) => (Number(written) === 0 ? written.replace("-", "") : written.replaceAll("-", "−"));

// A very small number, such as 2.5e−7.
export const scientific = (value, digits = 1) =>
  (!Number.isFinite(value) ? "not a number" : value === 0 ? "0" : withMinus(value.toExponential(digits)));

// A change, as `decimal` writes it, with a plus if it is positive.
export function signed(value, digits = 2) {
  const written = decimal(value, digits);
  return value > 0 && Number(written) > 0 ? `+${written}` : written;
}

// A weight or a probability as a percentage, with as many digits as the page's weights have.
export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  if (share >= 0.0995) return `${Math.round(100 * share)}%`;
  if (share >= 0.0005) return `${(100 * share).toFixed(1)}%`;
  return share > 1e-9 ? "<0.1%" : "0%"; // less may be rounding
}

export const capital = (text) => text[0].toUpperCase() + text.slice(1);
const list = new Intl.ListFormat("en-GB"); // "a, b and c"
export const listed = (items) => list.format(items);

const away = (count) => `${count} ${count === 1 ? "token" : "tokens"}`;

// Names a key from the point of view of the query that gives it this weight.
function keyInWords(labels, query, key, weight) {
  const name = quote(labels[key]);
  if (key === query) return "itself";
  if (key === query - 1) return `the token before it, ${name}`;
  if (key === 0) return `the first token, ${name}`;
  const named = weight >= INDUCTION ? ": induction" : "";
  if (labels[key - 1] === labels[query]) return `${name}, which followed ${quote(labels[query])} before${named}`;
  if (labels[key] === labels[query]) return `the same token, ${away(query - key)} back`;
  return `${name}, ${away(query - key)} back`;
}

const MENTIONED = 0.1; // smallest weight that a sentence mentions; it mentions at most three
const INDUCTION = 0.3; // smallest weight that a sentence calls induction

// The places of the numbers, the place of the largest first.
export const largestFirst = (numbers) => [...numbers.keys()].sort((a, b) => numbers[b] - numbers[a]);

// Says what a head of this name reads at one token, from the token's row of the map: weights[key].
export function readsInWords(name, labels, query, weights) {
  if (query === 0) return `${quote(labels[0])} comes first, so there is nothing before it to look at.`;
  const keys = largestFirst(weights).filter((i) => weights[i] >= MENTIONED).slice(0, 3);
  const start = `${name}, reading ${quote(labels[query])},`;
  if (!keys.length) return `${start} spreads its attention: no token gets more than ${percent(Math.max(...weights))}.`;
  const looks = keys.map((key) => `${keyInWords(labels, query, key, weights[key])} (${percent(weights[key])})`);
  return `${start} looks at ${listed(looks)}.`;
}

// Puts one square of the map into words. weights: [name of the pane, weight] for each map.
export function squareInWords(labels, query, key, weights) {
  const [from, to] = [`${quote(labels[query])} (token ${query})`, `${quote(labels[key])} (token ${key})`];
  if (key > query) return `${to} is not visible to ${from}: it comes later.`;
  const target = key === query ? "itself" : to;
  const [[first, weight], ...others] = weights;
  const sentence = `${first ? `In ${first} ` : ""}${from} gives ${percent(weight)} of its attention to ${target}`;
  return `${[sentence, ...others.map(([name, other]) => `in ${name} ${percent(other)}`)].join(", ")}.`;
}
