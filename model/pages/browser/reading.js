// A network that reads one text, and what is measured meanwhile: the same as reading.py measures in Python. What was
// read of an earlier text is reused as far as the new text begins alike, so that a typed letter costs one token.

import { attribution } from "browser/attribution.js";
import { Cache, CHUNK, row, Trace } from "browser/network.js";
import { likeliest } from "browser/sampling.js";
import { triangle } from "browser/weights.js";

const TOP = 5; // tokens listed for a position, as in reading.py
const NEXT = 20; // tokens listed after the last position

export class Reading {
  // edits: as Network.read takes them.
  constructor(network, edits = []) {
    Object.assign(this, { network, edits, cache: null, trace: null, columns: [] });
  }

  // Reads the tokens and measures each position; yields now and then. deep: also measures lens and attribution.
  *read(tokens, deep) {
    const { network } = this;
    if (!this.cache || this.cache.room < tokens.length) { // a longer text than fits is read from its beginning
      const room = Math.min(network.config.context_length, 2 ** Math.ceil(Math.log2(Math.max(64, tokens.length))));
      const empty = { cache: new Cache(network.config, room), trace: new Trace(network.config, room), columns: [] };
      Object.assign(this, empty);
    }
    const { cache, trace } = this;
    let same = 0;
    while (same < Math.min(tokens.length, cache.length) && tokens[same] === cache.tokens[same]) same++;
    cache.length = same;
    // The last position that is the same is measured again: its next token is another now.
    this.columns.length = Math.min(this.columns.length, Math.max(0, same - 1));
    while (cache.length < tokens.length) {
      network.read(tokens.slice(cache.length, cache.length + CHUNK), cache, { edits: this.edits, trace });
      yield;
    }
    for (let t = 0; t < tokens.length; t++) {
      if (this.columns[t] && this.columns[t].deep >= deep) continue;
      const column = this.predictions(t, deep);
      this.columns[t] = { ...column, ...(deep && attribution(this, t, column.next[0][0])), deep };
      if (t % 4 === 3) yield;
    }
  }

  // The token after position t, undefined at the end.
  tokenAfter(t) {
    return t + 1 < this.cache.length ? this.cache.tokens[t + 1] : undefined;
  }

  // The input of the last matrix at a position, for some stages of the residual stream: one row for each.
  features(t, stages = this.trace.residual.slice(-1)) {
    const { D } = this.network;
    const rows = new Float32Array(stages.length * D);
    stages.forEach((stream, i) => this.network.norm("final_norm", row(stream, t, D), row(rows, i, D)));
    return rows;
  }

  // The logits (V,) at a position, valid until the network is used again.
  logits(t) {
    return this.network.unembed(this.features(t));
  }

  // The surprise and the likeliest tokens at a position; if `deep`, also the lens of each stage.
  predictions(t, deep) {
    const { network, trace } = this;
    const { V } = network;
    const next = this.tokenAfter(t);
    const stages = deep ? trace.residual : trace.residual.slice(-1);
    const logits = network.unembed(this.features(t, stages));
    const read = stages.map((_, i) => row(logits, i, V));
    const last = read.at(-1);
    const totals = read.map(logTotal);
    const top = likeliest(last, Math.min(NEXT, V));
    const probability = (stage, id) => Math.exp(read[stage][id] - totals[stage]);
    const column = {
      next: top.map((id) => [id, probability(stages.length - 1, id)]),
      nats: next === undefined ? null : totals.at(-1) - last[next],
      rank: next === undefined ? null : last.filter((logit) => logit > last[next]).length,
    };
    if (deep) {
      const final = Float64Array.from(last, (logit) => logit - totals.at(-1));
      const share = final.map(Math.exp);
      column.token = read.map((early) => likeliest(early, 1)[0]);
      column.probability = read.map((_, stage) => (next === undefined ? null : probability(stage, next)));
      column.divergence = read.map((early, stage) => divergence(share, final, early, totals[stage]));
    }
    return column;
  }

  // All maps of the text in the page's format: the lower triangle of each head, a byte 255 sqrt(p) for each weight p.
  block() {
    const size = triangle(this.cache.length);
    const block = new Uint8Array(this.trace.weights.length * size);
    this.trace.weights.forEach((weights, head) => {
      for (let i = 0; i < size; i++) block[head * size + i] = Math.round(255 * Math.sqrt(weights[i]));
    });
    return block;
  }

  // The figures, as a recording has them of its probe "text" (see `Reading.figures`), without the texts of tokens.
  // deep: with lens and attribution.
  figures(deep) {
    const { columns, network: { L, H } } = this;
    const rows = (count, pick) => Array.from({ length: count }, (_, i) => columns.map((column) => pick(column, i)));
    const sublayers = Array.from({ length: 2 * L }, (_, i) => `${i % 2 ? "feed-forward" : "attention"} ${i >> 1}`);
    const figures = {
      sublayers: ["embeddings", ...sublayers],
      bits: columns.map(({ nats }) => (nats === null ? null : nats / Math.LN2)),
      rank: columns.map(({ rank }) => rank),
      top: columns.map(({ next }) => next.slice(0, TOP).map(([id]) => id)),
      top_probability: columns.map(({ next }) => next.slice(0, TOP).map(([, probability]) => probability)),
    };
    if (!deep) return figures;
    const ofStages = (name) => rows(2 * L + 1, (column, i) => column[name][i]);
    figures.parts = Object.keys(columns[0].parts);
    figures.lens = Object.fromEntries(["token", "probability", "divergence"].map((name) => [name, ofStages(name)]));
    const known = columns.slice(0, -1);
    figures.attribution = figures.parts.map((part) => [...known.map(({ parts }) => parts[part]), null]);
    figures.attribution_of_likeliest = figures.parts.map((part) => columns.at(-1).parts[part]); // after the last token
    const largestLogit = Math.max(1, ...columns.map(({ logit }) => Math.abs(logit)));
    figures.attribution_error = Math.max(...columns.map(({ error }) => error)) / largestLogit;
    return figures;
  }
}

// The logarithm of the sum of the exponentials.
export function logTotal(logits) {
  let largest = -Infinity;
  for (let i = 0; i < logits.length; i++) if (logits[i] > largest) largest = logits[i];
  let total = 0;
  for (let i = 0; i < logits.length; i++) total += Math.exp(logits[i] - largest);
  return largest + Math.log(total);
}

// The Kullback-Leibler divergence in bits of an early prediction from the final one (its probabilities and their logs).
function divergence(share, final, early, earlyTotal) {
  let sum = 0;
  for (let id = 0; id < final.length; id++) sum += share[id] * (final[id] - early[id] + earlyTotal);
  return sum / Math.LN2;
}
