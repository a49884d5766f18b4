// Runs the page's engine without a browser: reads questions as JSON from standard input and writes the answers.
//
//   ["models", [{ manifest, texts, asks: [[method of LiveModel, request], ...], simd }, ...]]
//       answers that are objects have in `work` the number of tokens that the networks read for them
//   ["tokenizer", { stored, texts, ids }]
//   ["draws", { logits, options, count }]
//   ["turns", { names, steps }]     which question had each turn in the worker, if all are asked at once and never end

import { readFileSync } from "node:fs";
import { load } from "./modules.mjs";

const { LiveModel } = await load("live-model");
const { Network } = await load("network");
const { sample } = await load("sampling");
const { createTokenizer } = await load("tokenizer");

const finished = (job) => {
  const values = [];
  for (;;) {
    const { done, value } = job.next();
    if (done) return value ?? values;
    if (value !== undefined) values.push(value);
  }
};

// Imitates a browser without WebAssembly.
function withSimd(simd, make) {
  const { WebAssembly } = globalThis;
  if (!simd) globalThis.WebAssembly = undefined;
  try {
    return make();
  } finally {
    globalThis.WebAssembly = WebAssembly;
  }
}

let work = 0; // tokens that the networks have read
const { read } = Network.prototype;
Network.prototype.read = function (tokens, ...others) {
  work += tokens.length;
  return read.call(this, tokens, ...others);
};

const answers = {
  models: (models) => models.map(({ manifest, texts, asks, simd = true }) => {
    const model = new LiveModel(manifest, texts);
    if (withSimd(simd, () => model.snapshot(0)).network.products.simd !== simd) throw new Error(`with SIMD: ${!simd}`);
    return asks.map(([name, request]) => {
      work = 0;
      const answer = finished(model[name](request));
      return Array.isArray(answer) ? answer : { ...answer, weights: [...(answer.weights ?? [])], work };
    });
  }),
  tokenizer: ({ stored, texts, ids }) => {
    const { encode, label, endOfText } = createTokenizer(stored);
    return { ids: texts.map(encode), labels: ids.map(label), endOfText };
  },
  draws: ({ logits, options, count }) =>
    Array.from({ length: count }, () => sample(Float32Array.from(logits), options)),
  turns: ({ names, steps }) => new Promise((resolve) => {
    const turns = [];
    performance.now = () => turns.length; // each turn takes a millisecond
    LiveModel.prototype.parity = function* () {};
    for (const name of names)
      LiveModel.prototype[name] = function* () {
        for (; turns.length < steps; turns.push(name)) yield;
      };
    globalThis.onmessage = null;
    globalThis.postMessage = ({ id }) => {
      if (id === "start") names.forEach((name) => onmessage({ data: { id: name, name } }));
      else resolve(turns);
    };
    load("worker").then(() =>
      onmessage({ data: { id: "start", name: "start", request: { manifest: {}, texts: [] } } }));
  }),
};
const found = [];
for (const [name, question] of JSON.parse(readFileSync(0))) found.push(await answers[name](question));
process.stdout.write(JSON.stringify(found), () => process.exit()); // the worker would go on listening
