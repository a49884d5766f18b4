// An opened square of the map: how its weight is computed, and what it does. Only typed text has this, because the
// engine computes it. scripts/walk.py shows the same with every number.

import { $, element, tableHead, tableRow, track } from "browser/elements.js";
import "browser/large-map.js"; // where a person chooses a square: drawn before this view
import { rgb } from "browser/maps.js";
import { addView, change, shown } from "browser/render.js";
import { headName, placeOf, snapshots } from "browser/state.js";
import { ask, engine } from "browser/typed-text.js";
import { decimal, largestFirst, listed, percent, quote, signed } from "browser/words.js";

const SHOWN = 6; // tokens of the row: the key itself, and those with the largest weights
const LEAST = 0.01; // smallest change of a logit that is mentioned
const LEAST_SHARE = 0.1; // smallest share of a score that is mentioned
let opened = null; // the square that was scrolled to last

addView(async function drawSquare() {
  const frame = shown;
  const { square, sides: [{ at, head: number, typed, off }] } = frame;
  const { window } = engine?.config ?? {};
  const isSeen = square && square.key <= square.query && !(window && square.key <= square.query - window);
  $("square").hidden = !isSeen;
  if (opened !== square) $("square").replaceChildren();
  if (!isSeen) return;
  const [layer, head] = placeOf(number);
  const request = { snapshot: snapshots[at].weights, tokens: typed.tokens, off, layer, head, ...square };
  const answer = await ask("square", request);
  if (!answer || frame !== shown) return;
  $("square").replaceChildren(...contents(answer, square, frame));
  if (opened !== square) $("square").scrollIntoView({ block: "nearest" });
  opened = square;
});

function contents({ q, k, first, scores, weights, sources, pushes }, { query, key }, { labels, head }) {
  const token = (i) => `${quote(labels[i])} (token ${i})`;
  const weight = weights[key - first];
  const close = element("button", { className: "push", onclick: () => change({ square: null }) }, "close");
  const step = (name, ...nodes) => element("li", {}, element("b", { textContent: `${name}. ` }), ...nodes);
  const mean = scores.reduce((sum, score) => sum + score, 0) / scores.length;
  const largest = sources.filter(([, share]) => Math.abs(share) >= LEAST_SHARE)
    .map(([part, share]) => `${part} ${signed(share)}`);
  const madeOf = largest.length
    ? ` The difference comes from what earlier parts wrote at ${quote(labels[key])}: most from ${listed(largest)}.`
    : "";
  const raised = pushes.filter(([, change]) => change >= LEAST)
    .map(([id, change]) => `${quote(engine.tokenizer.label(id))} ${signed(change)}`);
  return [
    element("div", { className: "bar" },
      element("h3", {}, `How ${quote(labels[query])} reads ${quote(labels[key])} in ${headName(head)}`), close),
    element("ol", {},
      step("Query and key", `The head makes a query q from the stream of ${token(query)}, and a key k from that of ` +
        `${token(key)}: lists of ${q.length} numbers each. Blue is above 0, orange below; where both agree, ` +
        "their product is above 0.", strip("q", q), strip("k", k), strip("q × k", q.map((x, i) => x * k[i]))),
      step("Attention score", `How well they fit is the sum of these products, q · k, divided by √${q.length}: ` +
        `${decimal(scores[key - first])}. The mean over all tokens that ${quote(labels[query])} can see is ` +
        `${decimal(mean)}.${madeOf}`),
      step("Softmax", "The weight is e to the power of the score, divided by the sum of this over all tokens that " +
        `${quote(labels[query])} can see:`, scoreTable(first, scores, weights, key, labels)),
      step("Value", `${percent(weight)} of the value of ${quote(labels[key])}, a third such list, is added to the ` +
        `stream of ${quote(labels[query])}, through the output matrix.`,
        raised.length ? ` By itself this raises most the logits of ${listed(raised)}.` : "")),
  ];
}

// A row of squares, one for each number of a vector; the largest number has the full colour.
function strip(name, vector) {
  const largest = Math.max(...vector.map(Math.abs));
  const squares = vector.map((x) =>
    element("i", { style: { background: rgb(shown.palette.difference(x / largest || 0)) } }));
  return element("div", { className: "strip" }, element("b", {}, name), ...squares);
}

function scoreTable(first, scores, weights, key, labels) {
  const row = (name, score, weight) =>
    tableRow(name, ...[score, track([weight]), percent(weight)].map((content) => element("td", {}, content)));
  const named = [...new Set([key - first, ...largestFirst(weights)])].slice(0, SHOWN).sort((a, b) => a - b);
  const rows = named.map((i) => row(`${first + i} ${quote(labels[first + i])}`, decimal(scores[i]), weights[i]));
  rows[named.indexOf(key - first)].className = "chosen";
  const others = [...weights.keys()].filter((i) => !named.includes(i));
  if (others.length) rows.push(row(`${others.length} more`, "", others.reduce((sum, i) => sum + weights[i], 0)));
  return element("table", { className: "numbers" }, tableHead(["token", "score", "", "weight"]),
    element("tbody", {}, ...rows));
}
