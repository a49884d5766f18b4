// What the page's engine answers, without a browser: reads questions as JSON from standard input, writes the answers.
//
// A question is { models: [{ manifest, texts, asks: [[name, request], ...] }] } for LiveModel, or { tokenizer, texts, ids }.

import { readFileSync } from "node:fs";
import { register } from "node:module";

const root = new URL("../../../model/inspection/", import.meta.url).href;
const resolve = `export const resolve = (name, context, next) => name.startsWith("browser/")
  ? { url: ${JSON.stringify(root)} + name, format: "module", shortCircuit: true } : next(name, context);`;
register(`data:text/javascript,${encodeURIComponent(resolve)}`);
const { LiveModel } = await import("browser/live-model.js");
const { plainProducts } = await import("browser/products.js");
const { randomNumbers, sample } = await import("browser/sampling.js");
const { createTokenizer } = await import("browser/tokenizer.js");

const finished = (job) => {
  const values = [];
  for (;;) {
    const { done, value } = job.next();
    if (done) return value ?? values;
    if (value !== undefined) values.push(value);
  }
};

const answers = {
  models: (models) => models.map(({ manifest, texts, asks, plain }) => {
    const model = new LiveModel(manifest, texts, plain ? plainProducts() : undefined);
    return asks.map(([name, request]) => {
      if (name === "use") return model.use(request.snapshot);
      const answer = finished(model[name](request));
      return answer.block ? { ...answer, block: [...answer.block] } : answer;
    });
  }),
  tokenizer: ({ stored, texts, ids }) => {
    const tokenizer = createTokenizer(stored);
    return { ids: texts.map(tokenizer.encode), labels: ids.map(tokenizer.label), vocabSize: tokenizer.vocabSize, endOfText: tokenizer.endOfText };
  },
  draws: ({ logits, options, count }) => {
    const random = randomNumbers(1);
    return Array.from({ length: count }, () => sample(Float32Array.from(logits), options, random));
  },
};
const questions = JSON.parse(readFileSync(0));
console.log(JSON.stringify(questions.map(([name, question]) => answers[name](question))));
