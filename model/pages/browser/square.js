// A square of the map, opened: how the weight comes about, and what it does. The engine computes it for what was typed;
// scripts/walk.py shows the same with every number.

import { $, element, tableHead, track } from "browser/elements.js";
import "browser/large-map.js"; // where a square is chosen, and which is drawn before
import { addView, change, shown } from "browser/render.js";
import { headName, mapped, placeOf } from "browser/state.js";
import { ask, engine } from "browser/typed-text.js";
import { decimal, largestFirst, listed, percent, quote, signed } from "browser/words.js";

const SHOWN = 6; // tokens of the row: those with the largest weights, and the key itself
const LEAST = 0.01; // change of a logit that is told
const LEAST_SHARE = 0.1; // of a score that is told
let opened = null; // the square that was scrolled to last

addView(async function drawSquare() {
  const now = shown;
  const { square, sides: [{ at, head: number, typed, off }] } = now;
  const { window } = engine?.config ?? {};
  const isSeen = square && square.key <= square.query && !(window && square.key <= square.query - window);
  $("square").hidden = !isSeen;
  if (opened !== square) $("square").replaceChildren();
  if (!isSeen) return;
  const [layer, head] = placeOf(number);
  const request = { snapshot: mapped[at].weights, tokens: typed.tokens, off, layer, head, ...square };
  const found = await ask("square", request);
  if (!found || now !== shown) return;
  $("square").replaceChildren(...contents(found, square, now));
  if (opened !== square) $("square").scrollIntoView({ block: "nearest" });
  opened = square;
});

function contents({ first, scores, weights, sources, pushes }, { query, key }, { labels, head }) {
  const { config: { embed_dim, num_heads } } = engine;
  const width = embed_dim / num_heads;
  const token = (i) => `${quote(labels[i])} (token ${i})`;
  const weight = weights[key - first];
  const close = element("button", { className: "push", onclick: () => change({ square: null }) }, "close");
  const step = (name, ...nodes) => element("li", {}, element("b", { textContent: `${name}. ` }), ...nodes);
  const mean = scores.reduce((sum, score) => sum + score, 0) / scores.length;
  const made = sources.filter(([, share]) => Math.abs(share) >= LEAST_SHARE)
    .map(([part, share]) => `${part} ${signed(share)}`);
  const madeOf = made.length
    ? ` The difference comes from what earlier parts wrote at ${quote(labels[key])}: most from ${listed(made)}.`
    : "";
  const raised = pushes.filter(([, change]) => change >= LEAST)
    .map(([id, change]) => `${quote(engine.tokenizer.label(id))} ${signed(change)}`);
  return [
    element("div", { className: "bar" },
      element("h3", {}, `How ${quote(labels[query])} reads ${quote(labels[key])} in ${headName(head)}`), close),
    element("ol", {},
      step("Query and key", `In ${headName(head)} ${token(query)} asks with its query q, and ${token(key)} is ` +
        `found by its key k: ${width} numbers each, made of what the model knows of the two tokens at this layer.`),
      step("Score", `How well they fit: q · k, divided by √${width}, is ${decimal(scores[key - first])}; the mean of ` +
        `all that ${quote(labels[query])} can see is ${decimal(mean)}.${madeOf}`),
      step("Softmax", `e to the power of each score, divided by the sum over all that ${quote(labels[query])} can see:`,
        scoreTable(first, scores, weights, key, labels)),
      step("Value", `${percent(weight)} of the value of ${quote(labels[key])} is written to the stream of ` +
        `${quote(labels[query])}, through the output matrix.`,
        raised.length ? ` By itself that raises most the logits of ${listed(raised)}.` : "")),
  ];
}

function scoreTable(first, scores, weights, key, labels) {
  const row = (name, score, weight, className = "") => element("tr", { className },
    element("th", { scope: "row" }, name), element("td", {}, score), element("td", {}, track([weight])),
    element("td", {}, percent(weight)));
  const named = [...new Set([key - first, ...largestFirst(weights)])].slice(0, SHOWN).sort((one, two) => one - two);
  const rows = named.map((i) => row(`${first + i} ${quote(labels[first + i])}`, decimal(scores[i]), weights[i],
    i === key - first ? "chosen" : ""));
  const others = [...weights.keys()].filter((i) => !named.includes(i));
  if (others.length) rows.push(row(`${others.length} more`, "", others.reduce((sum, i) => sum + weights[i], 0)));
  return element("table", { className: "numbers" }, tableHead(["token", "score", "", "weight"]),
    element("tbody", {}, ...rows));
}
