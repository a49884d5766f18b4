// The pure functions of the views, without a browser. Run by test_views_in_node.py, or `node --test` on this file.

import assert from "node:assert/strict";
import { register } from "node:module";
import { test } from "node:test";

// The modules name each other as the page's import map does.
const root = new URL("../../../model/pages/", import.meta.url).href;
const resolve = `export const resolve = (name, context, next) => name.startsWith("browser/")
  ? { url: ${JSON.stringify(root)} + name, format: "module", shortCircuit: true } : next(name, context);`;
register(`data:text/javascript,${encodeURIComponent(resolve)}`);
globalThis.matchMedia = () => ({ matches: false }); // all that they ask of a browser when they are loaded

const load = (name) => import(`browser/${name}.js`);
const [attribution, chart, elements, lens, surprise, maps, words] = await Promise.all(
  ["attribution", "chart", "elements", "lens", "surprise", "maps", "words"].map(load));

const labels = ["a", "b", "\u202e<img>", "\n"];
const nothing = { bits: [1, 3.16, 12, null], rank: [0, 2, 5, null] };
const details = {
  parts: ["token embedding", "head 0.0", "head 1.1", "feed-forward 0"],
  sublayers: ["embeddings", "attention 0", "feed-forward 0"],
  tokens: { 7: "b", 8: "def", 9: "x" },
  probes: {
    text: {
      ...nothing,
      top: [[7, 8], [8, 9], [8, 7], [9, 8]],
      top_probability: [[0.5, 0.25], [0.41, 0.2], [0.9, 0.004], [0.3, 0.3]],
      lens: {
        token: [[8, 8, 8, 8], [8, 9, null, 8], [7, 8, 8, 9]],
        probability: [[0, 0.25, null, null], [0.1, 0.1, 0.1, null], [0.5, 0.11, 0.001, null]],
        divergence: [[4, 2, null, 1], [3, 1, 1, 1], [0, 0, 0, 0]],
      },
      attribution: [[1, 0.5, 3, null], [-2, 0.25, 0.1, null], [0.5, 4, 0, null], [0.25, -1, 0.2, null]],
      attribution_error: 2e-7,
    },
  },
};

const measured = surprise.measuredOf(details, "text", labels);

test("what was expected in place of a token is what was predicted from the token before it", () => {
  const told = surprise.expectation(measured, 2);
  assert.match(told, /^The model expected: “\u2068def\u2069” 41%, “\u2068x\u2069” 20%; the true token .*/);
  assert.match(told, / was number 3, 3\.2 bits\.$/);
  assert.ok(told.includes("\\u202e<img>") && !told.includes("\u202e"));
});

test("the first token and a diverged model each get one sentence", () => {
  assert.match(surprise.expectation(measured, 0), /first token/);
  assert.match(surprise.expectation({ ...measured, bits: [null, null, null, null] }, 2), /–/);
});

test("the depth of a colour grows with surprise and stays within 0 and 1", () => {
  assert.deepEqual([0, 1, 2, 3].map((token) => surprise.depth(nothing, token)), [0, 0.1, 0.316, 1]);
});

test("a cell of the lens tells its sub-layer, token, guess and distance", () => {
  const told = lens.lensCell(measured, 1, 0).sentence;
  assert.match(told, /^After attention 0, reading 0 .*likeliest next “\u2068def\u2069”, the true next token .*/);
  assert.match(told, / gets 10%; 3\.0 bits from the final/);
  assert.match(lens.lensCell(measured, 2, 0).sentence, /the final prediction/);
  assert.match(lens.lensCell(measured, 1, 2).sentence, /likeliest next –/);
  assert.ok(!lens.lensCell(measured, 2, 3).sentence.includes("true next"));
});

test("parts are sorted by size and add up", () => {
  const parts = attribution.partsOf(measured, 1);
  assert.deepEqual(parts.map(({ name }) => name), ["head 1.1", "feed-forward 0", "token embedding", "head 0.0"]);
  assert.equal(attribution.sum(parts), 3.75);
});

test("a column without a next token has no sum and no number", () => {
  const parts = attribution.partsOf(measured, 3);
  assert.equal(attribution.sum(parts), null);
  assert.equal(words.signed(null), "–");
});

test("the badge is good up to the rounding of float32", () => {
  assert.deepEqual(attribution.badge(2e-7), { good: true, text: "✓ adds up to the logit: within 2e-7" });
  assert.equal(attribution.badge(2e-5).good, false);
  assert.equal(attribution.badge(null).good, false);
});

test("signs are shown unless a number rounds to nothing", () => {
  const signed = [0.123, -0.5, 0.001, -0.001, 0].map((x) => words.signed(x));
  assert.deepEqual(signed, ["+0.12", "−0.50", "0.00", "0.00", "0.00"]);
  const decimals = [-1.239, 2, -0.004, -0, null, NaN].map((x) => words.decimal(x));
  assert.deepEqual(decimals, ["−1.24", "2.00", "0.00", "0.00", "–", "–"]);
  assert.deepEqual(["-0", "-2.5M", "-1e-7", "0%"].map(words.withMinus), ["0", "−2.5M", "−1e-7", "0%"]);
});

test("a share has as many digits as a weight of the page", () => {
  const told = [0.416, 0.0994, 0.0012, 0.0001, 0, null].map((one) => words.percent(one));
  assert.deepEqual(told, ["42%", "9.9%", "0.1%", "<0.1%", "0%", "–"]);
});

test("large numbers are short", () => {
  const told = [950, 51_340, 1_474_560, 2e9, -12_000, 0.05].map((one) => chart.written(one));
  assert.deepEqual(told, ["950", "51.3k", "1.47M", "2B", "−12k", "0.05"]);
});

test("after the last token the likeliest next one is told, where it was measured", () => {
  const live = { ...measured, attribution_of_likeliest: [1, 2, 3, 4] };
  assert.equal(attribution.nextInWords(measured, 3), null);
  assert.match(attribution.nextInWords(live, 3), /likeliest to come next is “\u2068x\u2069” \(30%\)/);
  assert.match(attribution.nextInWords(live, 0), /^what comes next is “\u2068b\u2069”$/);
  assert.deepEqual(attribution.partsOf(live, 3).map(({ value }) => value), [4, 3, 2, 1]);
});

test("the row of a token is told in words", () => {
  const plain = (told) => told.replace(/[\u2068\u2069]/g, "");
  const reads = (query, weights) => plain(words.readsInWords(["x", "y", "\n", "a", "b"], query, weights));
  const starts = (weights, end) => assert.equal(reads(4, weights), `Reading “b” it ${end}`);
  starts([0, 0, 0.98, 0.01, 0.01], "looks at the last line break (98%).");
  starts([0, 0, 0, 0.7, 0.3], "looks at the token before it, “a” (70%) and itself (30%).");
  starts([0.6, 0.4, 0, 0, 0], "looks at the first token, “x” (60%) and “y”, 3 tokens back (40%).");
  starts([0.09, 0.09, 0.09, 0.09, 0.09], "spreads its attention: no token gets more than 9.0%.");
  assert.equal(reads(0, [1]), "“x” comes first, so there is nothing before it to look at.");
});

test("ticks are round and there are at least three of them", () => {
  assert.deepEqual(chart.ticks(0, 8.2, 4), [0, 2, 4, 6, 8]);
  for (const [low, high] of [[5.9, 8.3], [1.31, 1.39], [0, 0.07], [9212, 10_900], [-3, 2], [0, 1e-6]])
    assert.ok(chart.ticks(low, high, 4).length >= 3, `${low} ${high}`);
});

test("the steps of the slider are evenly spaced on the axis of the charts, and others between them", () => {
  const share = chart.stepAxis([0, 1, 2, 4, 50], 60);
  [0, 1, 2, 4, 50].forEach((step, i) => assert.equal(share(step), i / 4));
  assert.equal(share(27), (3 + 0.5) / 4);
  assert.equal(share(60), 1);
  assert.equal(chart.stepAxis([7], 10)(5), 0.5);
});
