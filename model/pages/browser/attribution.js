// What each part of the network adds to a number: to the logit of a token ("direct logit attribution"), or to the score
// of a key. A part adds a vector to the stream; with the scale of each norm held fixed, the number is a sum over parts.

import { applyRotary, moments } from "browser/formulas.js";
import { oldestSeen, row } from "browser/network.js";
import { likeliest } from "browser/sampling.js";
import { triangle } from "browser/weights.js";

const TOP = 5; // parts and tokens that `square` names

// What each part adds to the logit of the next token; at the last position, of the likeliest one. See reading.py.
export function attribution(reading, t, likeliestNext) {
  const { network, trace } = reading;
  const { D, L } = network;
  const next = reading.tokenAfter(t) ?? likeliestNext;
  const wanted = row(network.weight("lm_head"), next, D);
  const parts = shares(reading, beforeNorm(network, "final_norm", row(trace.residual.at(-1), t, D), wanted), L, t);
  addBias(network, parts, "final norm bias", "final_norm", wanted);
  const sum = Object.values(parts).reduce((a, b) => a + b, 0);
  const logit = dot(reading.features(t), wanted);
  return { parts, logit, error: Math.abs(sum - logit) };
}

// What the tables and the parts of the first `layers` layers add to (stream . direction) at position t.
function shares(reading, direction, layers, t) {
  const { network, trace } = reading;
  const { D, config: { embedding_norm: normed } } = network;
  const ofTables = normed ? beforeNorm(network, "embedding_norm", row(trace.embeddings, t, D), direction) : direction;
  const parts = {};
  for (const [name, rows] of Object.entries(trace.tables)) parts[name] = dot(row(rows, t, D), ofTables);
  addBias(network, parts, "embedding bias", "embedding_norm", direction);
  for (let layer = 0; layer < layers; layer++) addLayer(reading, parts, layer, t, direction);
  return parts;
}

// Adds the share of a bias, if the model has it.
function addBias(network, parts, part, name, direction) {
  const bias = network.weights.get(`${name}.bias`);
  if (bias) parts[part] = dot(bias, direction);
}

// The vector whose product with a part of the norm's input x is that part's share of (norm(x) . direction).
function beforeNorm(network, name, x, direction) {
  const weight = network.weight(name);
  const weighted = weight ? Float64Array.from(direction, (value, i) => value * weight[i]) : direction;
  const middle = weight ? average(weighted) : 0;
  const [, divisor] = moments(x, weight);
  return Float64Array.from(weighted, (value) => (value - middle) / divisor);
}

function addLayer({ network, trace }, parts, layer, t, direction) {
  const { D, H, K } = network;
  const output = `blocks.${layer}.attention.output_proj`;
  const byColumn = new Float64Array(D); // direction times the output matrix
  const matrix = network.weight(output);
  for (let d = 0; d < D; d++) for (let i = 0; i < D; i++) byColumn[i] += direction[d] * matrix[d * D + i];
  for (let head = 0; head < H; head++) {
    const given = row(trace.heads[layer], t * H + head, K);
    parts[`head ${layer}.${head}`] = dot(given, row(byColumn, head, K));
  }
  addBias(network, parts, `attention bias ${layer}`, output, direction);
  parts[`feed-forward ${layer}`] = dot(row(trace.feedForwards[layer], t, D), direction);
  addBias(network, parts, `feed-forward bias ${layer}`, `blocks.${layer}.feed_forward.down_proj`, direction);
  parts[`feed-forward ${layer}`] -= parts[`feed-forward bias ${layer}`] ?? 0;
}

// What each earlier part of the model adds to a score through the key. With the scale of each norm held fixed, the
// key is a sum over what was added to its token's stream ("K-composition" in Elhage et al. 2021).
function sharesOfScore(reading, layer, head, queryVector, position) {
  const { network, trace } = reading;
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
  if (network.rotary) applyRotary(turned, position, network.rotary, -1);
  const direction = new Float64Array(D);
  for (let i = 0; i < K; i++) for (let d = 0; d < D; d++) direction[d] += (turned[i] * matrix[i * D + d]) / divisor;
  return shares(reading, beforeNorm(network, `${block}_norm`, stream, direction), layer, position);
}

// How a head's query gets its weight on a key, and what this does; compare walk.py. Yields now and then.
//
// q, k: the vectors (K,). scores, q.k / sqrt(K), and weights, their softmax: for the keys that the query can see, from
// the key `first` on.
// sources: [part, share] of the parts that add most to the difference of the key's score from the mean of the scores.
// pushes: [token, change of its logit] of the tokens that the value by itself raises most, as in `attribution`.
export function* square(reading, { layer, head, query, key }) {
  const { cache, trace, network } = reading;
  const { D, H, kv, K, V, config } = network;
  const rowOf = (rows, position) => row(rows[layer], position * kv + network.groupOf(head), K);
  const queryVector = row(trace.queries[layer], query * H + head, K);
  const first = oldestSeen(config, cache.tokens, query);
  const scores = Array.from({ length: query + 1 - first }, (_, i) =>
    dot(queryVector, rowOf(cache.keys, first + i)) / Math.sqrt(K));
  const weights = [...trace.weights[layer * H + head].subarray(triangle(query) + first, triangle(query + 1))];
  const byKey = []; // for each key, what each part adds to its score
  for (const i of scores.keys()) {
    byKey.push(sharesOfScore(reading, layer, head, queryVector, first + i));
    yield;
  }
  const sources = Object.entries(byKey[key - first]).map(([part, share]) =>
    [part, share - average(byKey.map((ofKey) => ofKey[part]))]);
  const matrix = network.weight(`blocks.${layer}.attention.output_proj`);
  const read = rowOf(cache.values, key).map((x) => weights[key - first] * x);
  const value = Float64Array.from({ length: D }, (_, d) => dot(row(matrix, d * H + head, K), read));
  const weight = network.weight("final_norm");
  const middle = weight ? average(value) : 0;
  const [, divisor] = moments(row(trace.residual.at(-1), query, D), weight);
  const normed = value.map((x, i) => ((x - middle) / divisor) * (weight ? weight[i] : 1));
  const changes = Float64Array.from({ length: V }, (_, id) => dot(row(network.weight("lm_head"), id, D), normed));
  return {
    q: [...queryVector], k: [...rowOf(cache.keys, key)], first, scores, weights,
    pushes: likeliest(changes, TOP).map((id) => [id, changes[id]]),
    sources: sources.sort(([, a], [, b]) => Math.abs(b) - Math.abs(a)).slice(0, TOP),
  };
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

const average = (x) => x.reduce((a, b) => a + b, 0) / x.length;
