// What each part of the model adds to the logit of the next token: of the true one, or of the likeliest after a text that
// ends there. The parts add up to the logit exactly, but for rounding: each adds a vector to the stream, and the final norm's
// scale is that of the whole.

import { element } from "browser/elements.js";
import { share } from "browser/surprise.js";
import { quote, signed } from "browser/words.js";

const SHOWN_PARTS = 12;
const LARGEST_ERROR = 1e-5; // of a sum of float32 numbers

// "head 1.2" -> [1, 2]; null for other parts.
export function headOf(name) {
  const found = /^head (\d+)\.(\d+)$/.exec(name);
  return found && [Number(found[1]), Number(found[2])];
}

// measured: what a capture measured of one probe, see surprise.js.

// What comes after a token, in words: after the last one the likeliest token. null where that was not measured.
export function nextInWords({ labels, tokens, top, top_probability, attribution_of_likeliest }, token) {
  if (token + 1 < labels.length) return `what comes next is ${quote(labels[token + 1])}`;
  if (!attribution_of_likeliest) return null;
  const likeliest = `${quote(tokens[top.at(-1)[0]])} (${share(top_probability.at(-1)[0])})`;
  return `the likeliest to come next is ${likeliest}; the text ends here, so the true one is not known`;
}

// One column of the attribution: { name, value } for each part, largest first or in the model's order. After the last token
// that of the likeliest next one, where it was measured.
export function partsOf({ parts: names, attribution, attribution_of_likeliest: last, bits }, token, order = "largest") {
  const values = token === bits.length - 1 && last ? last : attribution.map((row) => row[token]);
  const parts = names.map((name, i) => ({ name, value: values[i] ?? null }));
  return order === "largest" ? parts.sort((one, two) => Math.abs(two.value) - Math.abs(one.value)) : parts;
}

export const sum = (parts) => (parts.some(({ value }) => value === null) ? null : parts.reduce((total, { value }) => total + value, 0));

// The `count` largest parts in the order given, and the sum of the others: { shown, others: { count, value } or null }.
export function fold(parts, count = SHOWN_PARTS) {
  if (parts.length <= count + 1) return { shown: parts, others: null };
  const large = new Set([...parts].sort((one, two) => Math.abs(two.value) - Math.abs(one.value)).slice(0, count));
  const rest = parts.filter((part) => !large.has(part));
  return { shown: parts.filter((part) => large.has(part)), others: { count: rest.length, value: sum(rest) } };
}

export function badge(error) {
  if (error === null || error === undefined) return { good: false, text: "the sum could not be checked" };
  const size = error === 0 ? "0" : error.toExponential(0);
  return error <= LARGEST_ERROR ? { good: true, text: `✓ adds up to the logit: within ${size}` } : { good: false, text: `✗ does not add up to the logit: off by ${size}` };
}

export const attributionRows = ({ parts, attribution, labels }) =>
  parts.flatMap((part, i) => labels.map((token, position) =>
    ({ part, position, token, next_token: labels[position + 1], logit: attribution[i][position] })));

// ---- drawing

// Fills a table with a row a part: its name, a bar to either side of zero, its number, and that of another capture.
// view: { parts, other: parts of the other capture or null, names: of both, all, chosen: [layer, head], choose, showAll }
export function drawParts(table, { parts, other, names, all, chosen, choose, showAll }) {
  const { shown, others } = all ? { shown: parts, others: null } : fold(parts);
  const inOther = (name) => other?.find((part) => part.name === name)?.value ?? null;
  const rows = shown.map(({ name, value }) => ({ name, value, against: inOther(name), head: headOf(name) }));
  if (others) {
    const against = other && sum(other.filter(({ name }) => !shown.some((part) => part.name === name)));
    rows.push({ name: `others (${others.count})`, value: others.value, against, folded: true });
  }
  const largest = Math.max(1e-9, ...rows.flatMap(({ value, against }) => [Math.abs(value), Math.abs(against)]));
  const cellsOf = ({ value, against }) => [
    element("td", { className: "balance" }, bar(value, largest, ""), ...(other ? [bar(against, largest, "second")] : [])),
    element("td", { textContent: signed(value) }), ...(other ? [element("td", { className: "soft", textContent: signed(against) })] : []),
  ];
  const body = rows.map(({ name: textContent, head, folded, ...values }) => {
    const name = head ? element("button", { textContent, title: "choose this head", onclick: () => choose(head) })
      : folded ? element("button", { textContent, title: "show every part", onclick: showAll })
      : element("span", { textContent });
    if (head) name.setAttribute("aria-pressed", String(head) === String(chosen));
    return element("tr", {}, element("th", { scope: "row" }, name), ...cellsOf(values));
  });
  const titles = names.map((textContent) => element("th", { scope: "col", textContent }));
  const heading = other ? [element("thead", {}, element("tr", {}, element("th"), element("th"), ...titles))] : [];
  const total = [sum(parts), ...(other ? [sum(other)] : [])].map((value) => element("td", { textContent: signed(value) }));
  const foot = element("tr", {}, element("th", { scope: "row", textContent: "sum: the logit" }), element("td"), ...total);
  table.replaceChildren(...heading, element("tbody", {}, ...body), element("tfoot", {}, foot));
}

function bar(value, largest, className) {
  const size = (50 * Math.abs(value ?? 0)) / largest;
  const bar = element("i", { className: `${className} ${value < 0 ? "less" : "more"}`, style: { width: `${size}%` } });
  bar.style[value < 0 ? "right" : "left"] = "50%";
  return bar;
}
