// A network that reads one text, and what is measured meanwhile: the same as reading.py measures in Python. What was
// read of an earlier text is reused as far as the new text begins alike, so that a typed letter costs one token.

import { Cache, CHUNK, moments, oldestSeen, rotate, row, Trace } from "browser/network.js";
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
      this.columns[t] = { ...column, ...(deep && this.attribution(t, column.next[0][0])), deep };
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
    return this.network.logits(this.features(t));
  }

  // The surprise and the likeliest tokens at a position; if `deep`, also the lens of each stage.
  predictions(t, deep) {
    const { network, trace } = this;
    const { V } = network;
    const next = this.tokenAfter(t);
    const stages = deep ? trace.residual : trace.residual.slice(-1);
    const logits = network.logits(this.features(t, stages));
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

  // What each part adds to the logit of the next token; at the last position, of the likeliest one. See reading.py.
  attribution(t, likeliestNext) {
    const { network, trace } = this;
    const { D, L } = network;
    const next = this.tokenAfter(t) ?? likeliestNext;
    const wanted = row(network.weight("lm_head"), next, D);
    const parts = this.shares(this.beforeNorm("final_norm", row(trace.residual.at(-1), t, D), wanted), L, t);
    this.addBias(parts, "final norm bias", "final_norm", wanted);
    const sum = Object.values(parts).reduce((a, b) => a + b, 0);
    const logit = dot(this.features(t), wanted);
    return { parts, logit, error: Math.abs(sum - logit) };
  }

  // What the tables and the parts of the first `layers` layers add to (stream . direction) at position t.
  shares(direction, layers, t) {
    const { network, trace } = this;
    const { D, config: { embedding_norm: normed } } = network;
    const ofTables = normed ? this.beforeNorm("embedding_norm", row(trace.embeddings, t, D), direction) : direction;
    const parts = {};
    for (const [name, rows] of Object.entries(trace.tables)) parts[name] = dot(row(rows, t, D), ofTables);
    this.addBias(parts, "embedding bias", "embedding_norm", direction);
    for (let layer = 0; layer < layers; layer++) this.addLayer(parts, layer, t, direction);
    return parts;
  }

  // Adds the share of a bias, if the model has it.
  addBias(parts, part, name, direction) {
    const bias = this.network.weights.get(`${name}.bias`);
    if (bias) parts[part] = dot(bias, direction);
  }

  // The vector whose product with a part of the norm's input x is that part's share of (norm(x) . direction).
  beforeNorm(name, x, direction) {
    const weight = this.network.weight(name);
    const weighted = weight ? Float64Array.from(direction, (value, i) => value * weight[i]) : direction;
    const middle = weight ? average(weighted) : 0;
    const [, divisor] = moments(x, weight);
    return Float64Array.from(weighted, (value) => (value - middle) / divisor);
  }

  addLayer(parts, layer, t, direction) {
    const { network, trace } = this;
    const { D, H, K } = network;
    const output = `blocks.${layer}.attention.output_proj`;
    const byColumn = new Float64Array(D); // direction times the output matrix
    const matrix = network.weight(output);
    for (let d = 0; d < D; d++) for (let i = 0; i < D; i++) byColumn[i] += direction[d] * matrix[d * D + i];
    for (let head = 0; head < H; head++) {
      const given = row(trace.heads[layer], t * H + head, K);
      parts[`head ${layer}.${head}`] = dot(given, row(byColumn, head, K));
    }
    this.addBias(parts, `attention bias ${layer}`, output, direction);
    parts[`feed-forward ${layer}`] = dot(row(trace.feedForwards[layer], t, D), direction);
    this.addBias(parts, `feed-forward bias ${layer}`, `blocks.${layer}.feed_forward.down_proj`, direction);
    parts[`feed-forward ${layer}`] -= parts[`feed-forward bias ${layer}`] ?? 0;
  }

  // What each earlier part of the model adds to a score through the key. With the scale of each norm held fixed, the
  // key is a sum over what was added to its token's stream ("K-composition" in Elhage et al. 2021).
  sharesOfScore(layer, head, queryVector, position) {
    const { network, trace } = this;
    const { D, H, K, config } = network;
    const block = `blocks.${layer}.attention`;
    const first = (H + network.groupOf(head)) * K; // the first of the key's rows in the projection
    const [projection, bias] = [network.weight(`${block}.qkv_proj`), network.weights.get(`${block}.qkv_proj.bias`)];
    const matrix = projection.subarray(first * D, (first + K) * D);
    const stream = row(trace.residual[2 * layer], position, D);
    let divisor = Math.sqrt(K);
    if (config.qk_norm) {
      const normed = network.norm(`${block}_norm`, stream, new Float32Array(D));
      const key = Float64Array.from({ length: K }, (_, i) => dot(row(matrix, i, D), normed) + (bias?.[first + i] ?? 0));
      divisor *= moments(key)[1];
    }
    const turned = Float64Array.from(queryVector);
    if (network.turns) rotate(turned, position, network.turns, -1);
    const direction = new Float64Array(D);
    for (let i = 0; i < K; i++) for (let d = 0; d < D; d++) direction[d] += (turned[i] * matrix[i * D + d]) / divisor;
    return this.shares(this.beforeNorm(`${block}_norm`, stream, direction), layer, position);
  }

  // How a head's query gets its weight on a key, and what this does; compare walk.py. Yields now and then.
  //
  // scores, q.k / sqrt(K), and weights, their softmax: for the keys that the query can see, from the key `first` on.
  // sources: [part, share] of the parts that add most to the difference of the key's score from the mean of the scores.
  // pushes: [token, change of its logit] of the tokens that the value by itself raises most, as in `attribution`.
  *square({ layer, head, query, key }) {
    const { cache, trace, network } = this;
    const { D, H, kv, K, V, config } = network;
    const rowOf = (rows, position) => row(rows[layer], position * kv + network.groupOf(head), K);
    const queryVector = row(trace.queries[layer], query * H + head, K);
    const first = oldestSeen(config, cache.tokens, query);
    const scores = Array.from({ length: query + 1 - first }, (_, i) =>
      dot(queryVector, rowOf(cache.keys, first + i)) / Math.sqrt(K));
    const weights = [...trace.weights[layer * H + head].subarray(triangle(query) + first, triangle(query + 1))];
    const shares = []; // for each key, what each part adds to its score
    for (const i of scores.keys()) {
      shares.push(this.sharesOfScore(layer, head, queryVector, first + i));
      yield;
    }
    const sources = Object.entries(shares[key - first]).map(([part, share]) =>
      [part, share - average(shares.map((ofKey) => ofKey[part]))]);
    const matrix = network.weight(`blocks.${layer}.attention.output_proj`);
    const read = rowOf(cache.values, key).map((x) => weights[key - first] * x);
    const value = Float64Array.from({ length: D }, (_, d) => dot(row(matrix, d * H + head, K), read));
    const weight = network.weight("final_norm");
    const middle = weight ? average(value) : 0;
    const [, divisor] = moments(row(trace.residual.at(-1), query, D), weight);
    const normed = value.map((x, i) => ((x - middle) / divisor) * (weight ? weight[i] : 1));
    const changes = Float64Array.from({ length: V }, (_, id) => dot(row(network.weight("lm_head"), id, D), normed));
    return {
      first, scores, weights, pushes: likeliest(changes, TOP).map((id) => [id, changes[id]]),
      sources: sources.sort(([, a], [, b]) => Math.abs(b) - Math.abs(a)).slice(0, TOP),
    };
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

  // The details, as a recording has them of its probe "text" (see `Reading.figures`), without the texts of tokens.
  details(deep) {
    const { columns, network: { L, H } } = this;
    const rows = (count, pick) => Array.from({ length: count }, (_, i) => columns.map((column) => pick(column, i)));
    const text = {
      bits: columns.map(({ nats }) => (nats === null ? null : nats / Math.LN2)),
      rank: columns.map(({ rank }) => rank),
      top: columns.map(({ next }) => next.slice(0, TOP).map(([id]) => id)),
      top_probability: columns.map(({ next }) => next.slice(0, TOP).map(([, probability]) => probability)),
    };
    const sublayers = Array.from({ length: 2 * L }, (_, i) => `${i % 2 ? "feed-forward" : "attention"} ${i >> 1}`);
    const details = { parts: [], sublayers: ["embeddings", ...sublayers], probes: { text } };
    if (!deep) return details;
    const ofStages = (name) => rows(2 * L + 1, (column, i) => column[name][i]);
    details.parts = Object.keys(columns[0].parts);
    text.lens = Object.fromEntries(["token", "probability", "divergence"].map((name) => [name, ofStages(name)]));
    const known = columns.slice(0, -1);
    text.attribution = details.parts.map((part) => [...known.map(({ parts }) => parts[part]), null]);
    text.attribution_of_likeliest = details.parts.map((part) => columns.at(-1).parts[part]); // after the last token
    const largestLogit = Math.max(1, ...columns.map(({ logit }) => Math.abs(logit)));
    text.attribution_error = Math.max(...columns.map(({ error }) => error)) / largestLogit;
    return details;
  }
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

const average = (x) => x.reduce((a, b) => a + b, 0) / x.length;

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
