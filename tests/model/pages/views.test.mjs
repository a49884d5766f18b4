// The pure functions of the views, without a browser. Run by test_views_in_node.py, or `node --test` on this file.

import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./modules.mjs";

const [measured, chart, words] = await Promise.all(["measured", "chart", "words"].map(load));

test("the badge is good if the error is within the rounding of float32", () => {
  assert.deepEqual([2e-7, 2e-5, null].map((error) => measured.badge(error).good), [true, false, false]);
});

test("numbers have a sign unless they round to zero", () => {
  const signed = [0.123, -0.5, 0.001, -0.001, 0].map((x) => words.signed(x));
  assert.deepEqual(signed, ["+0.12", "−0.50", "0.00", "0.00", "0.00"]);
  const decimals = [-1.239, 2, -0.004, -0, null, NaN].map((x) => words.decimal(x));
  assert.deepEqual(decimals, ["−1.24", "2.00", "0.00", "0.00", "–", "–"]);
  assert.deepEqual(["-0", "-2.5M", "-1e-7", "0%"].map(words.withMinus), ["0", "−2.5M", "−1e−7", "0%"]);
});

test("a share is a percentage with at most one decimal", () => {
  const told = [0.416, 0.0994, 0.0012, 0.0001, 0, null].map((one) => words.percent(one));
  assert.deepEqual(told, ["42%", "9.9%", "0.1%", "<0.1%", "0%", "–"]);
});

test("characters that are invisible or look like a space are written as escapes", () => {
  const characters = [..."\u200b\u00ad\u061c\u2060\u200d\ufeff\u00a0\u3000"];
  for (const one of characters) {
    const code = `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`;
    assert.equal(words.visible(one, 8), code);
    assert.equal(words.quote(`a${one}`), `“\u2068a${code}\u2069”`);
    assert.ok(words.isOdd(`a${one}`));
  }
  assert.equal(words.visible(" \n\ta", 8), "·↵⇥a");
  assert.ok(!words.isOdd(" \n\ta"));
});

test("large numbers are abbreviated", () => {
  const told = [950, 51_340, 1_474_560, 2e9, -12_000, 0.05].map((one) => chart.written(one));
  assert.deepEqual(told, ["950", "51.3k", "1.47M", "2B", "−12k", "0.05"]);
});

test("the weights of a token are described in a sentence", () => {
  const plain = (told) => told.replace(/[\u2068\u2069]/g, "");
  const reads = (query, weights) => plain(words.readsInWords("Head 1.0", ["x", "y", "\n", "a", "b"], query, weights));
  const starts = (weights, end) => assert.equal(reads(4, weights), `Head 1.0, reading “b”, ${end}`);
  starts([0, 0, 0.98, 0.01, 0.01], "looks at ↵, 2 tokens back (98%).");
  starts([0, 0, 0, 0.7, 0.3], "looks at the token before it, “a” (70%) and itself (30%).");
  starts([0.6, 0.4, 0, 0, 0], "looks at the first token, “x” (60%) and “y”, 3 tokens back (40%).");
  starts([0.09, 0.09, 0.09, 0.09, 0.09], "spreads its attention: no token gets more than 9.0%.");
  assert.equal(reads(0, [1]), "“x” comes first, so there is nothing before it to look at.");
});

test("the sentence mentions induction if the head clearly looks at the token after an equal one", () => {
  const told = (weight) => words.readsInWords("Head 1.0", ["x", "a", "y", "z", "a"], 4, [0.7 - weight, 0.1, weight, 0.1, 0.1]);
  assert.deepEqual([0.2, 0.6].map((weight) => told(weight).includes("induction")), [false, true]);
});

test("marks of stages do not overlap, keep their order and stay before the end", () => {
  const placed = (places) => chart.apart(places, 300);
  assert.deepEqual(placed([50, 150]), [50, 150]);
  for (const crowded of [placed([50, 51, 52]), placed([298, 299, 300])]) {
    assert.deepEqual([...crowded].sort((a, b) => a - b), crowded);
    assert.ok(crowded.at(-1) <= 300 && crowded.every((one, i) => !i || one - crowded[i - 1] > 30));
  }
});

test("there are at least three ticks, at round numbers", () => {
  assert.deepEqual(chart.ticks(0, 8.2, 4), [0, 2, 4, 6, 8]);
  for (const [low, high] of [[5.9, 8.3], [1.31, 1.39], [0, 0.07], [9212, 10_900], [-3, 2], [0, 1e-6]])
    assert.ok(chart.ticks(low, high, 4).length >= 3, `${low} ${high}`);
});

test("the chart's axis spaces the slider's steps evenly, and places other steps between them", () => {
  const share = chart.stepAxis([0, 1, 2, 4, 50], 60);
  [0, 1, 2, 4, 50].forEach((step, i) => assert.equal(share(step), i / 4));
  assert.equal(share(27), (3 + 0.5) / 4);
  assert.equal(share(60), 1);
  assert.equal(chart.stepAxis([7], 10)(5), 0.5);
});
