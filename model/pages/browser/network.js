// The GPT of model/gpt.py, step by step: tokens -> embeddings -> blocks -> logits.
//
// Weights have the names of the checkpoint. Shapes: T new tokens, S tokens so far, D model width, H heads, K head
// width, V vocabulary, L layers. A matrix is a Float32Array that holds one row after the other.

import { ACTIVATIONS, applyRotary, attend, normalise, rotaryAngles } from "browser/formulas.js";
import { createProducts } from "browser/products.js";
import { triangle } from "browser/weights.js";

export const CHUNK = 16; // most tokens in one call of `read`: a few milliseconds of work
const NGRAM_PRIME = 2 ** 31 - 1; // as in gpt.py

export const row = (matrix, i, width) => matrix.subarray(i * width, (i + 1) * width); // a view, not a copy
const hasValues = (config, layer) => config.value_embeddings && (config.num_layers - 1 - layer) % 2 === 0;

// The position at which the document of the token at `position` begins, if attention stays within a document; else 0.
function documentStart({ document_start: token }, tokens, position) {
  return token === null ? 0 : Math.max(0, tokens.subarray(0, position + 1).lastIndexOf(token));
}

// The position of the first key that the query at `position` sees.
export const oldestSeen = (config, tokens, position) =>
  Math.max(documentStart(config, tokens, position), config.window ? position - config.window + 1 : 0);

// The rows of the n-gram tables for the token at `position`; compare NgramEmbedding in gpt.py.
function ngramRows(config, tokens, position) {
  const { ngram_sizes: sizes, ngram_buckets: buckets, ngram_factors, vocab_size } = config;
  const start = documentStart(config, tokens, position);
  const rows = [];
  for (let back = 0, key = 0; back < sizes.at(-1); back++) {
    key += ngram_factors[back] * (position - back >= start ? tokens[position - back] : vocab_size);
    const mixed = key % NGRAM_PRIME;
    if (sizes.includes(back + 1)) rows.push(((mixed ^ (mixed >> 15)) % buckets) + rows.length * buckets);
  }
  return rows;
}

// Up to `room` tokens, and their keys and values, (S, H_kv K) for each layer.
export class Cache {
  constructor(config, room) {
    const width = config.num_kv_heads * (config.embed_dim / config.num_heads);
    const perLayer = () => Array.from({ length: config.num_layers }, () => new Float32Array(room * width));
    Object.assign(this, { room, width, length: 0, tokens: new Int32Array(room), keys: perLayer(), values: perLayer() });
  }

  // Takes over the first `length` tokens of another cache.
  copy(other, length) {
    this.tokens.set(other.tokens.subarray(0, length));
    for (const name of ["keys", "values"])
      other[name].forEach((rows, layer) => this[name][layer].set(rows.subarray(0, length * this.width)));
    this.length = length;
  }
}

// What a network computed for up to `room` tokens, row by row; compare `Pass` in passes.py.
export class Trace {
  constructor(config, room) {
    const { num_layers: L, num_heads: H, embed_dim: D } = config;
    const rows = (count, width = D) => Array.from({ length: count }, () => new Float32Array(room * width));
    this.tables = {}; // (T, D) by name, filled as they are added
    [this.embeddings] = rows(1); // (T, D): the sum of the tables
    this.residual = rows(2 * L + 1); // (T, D) after the embeddings, attention 0, feed-forward 0, attention 1, ...
    this.queries = rows(L); // (T, H K), after QK-norm and rotation
    this.heads = rows(L); // (T, H K), the input of the output matrix
    this.feedForwards = rows(L); // (T, D)
    this.weights = Array.from({ length: L * H }, () => new Float32Array(triangle(room))); // a row for each query
  }
}

export class Network {
  // tensors: Map of name -> { size, fill(array) }; fill writes the numbers into a Float32Array. See weights.js.
  constructor(config, tensors) {
    const { num_heads: H, num_kv_heads: kv, embed_dim: D, feed_forward_dim: hidden } = config;
    const [L, V, K] = [config.num_layers, config.vocab_size, D / H];
    if (!ACTIVATIONS[config.activation]) throw new Error(`it does not know the activation ${config.activation}`);
    Object.assign(this, { config, D, H, kv, K, L, V, qkvWidth: (H + 2 * kv) * K });
    const stages = Math.max(CHUNK, 2 * L + 1); // a lens reads all stages of a token at once
    const sizes = {
      x: stages * D, normed: stages * D, qkv: CHUNK * this.qkvWidth, merged: CHUNK * D, added: CHUNK * D,
      hidden: CHUNK * hidden, gate: CHUNK * hidden, logits: stages * V,
    };
    const room = [...Object.values(sizes), ...[...tensors.values()].map(({ size }) => size)].reduce((a, b) => a + b);
    this.products = createProducts(room);
    this.scratch = Object.fromEntries(Object.entries(sizes).map(([name, n]) => [name, this.products.floats(n)]));
    this.weights = new Map();
    for (const [name, { size }] of tensors) this.weights.set(name, this.products.floats(size));
    if (config.tie_embeddings) this.weights.set("lm_head.weight", this.weights.get("token_embedding.weight"));
    for (const [name, { fill }] of tensors) fill(this.weights.get(name));
    this.rotary = config.position === "rotary" ? rotaryAngles(config.context_length, K) : null;
  }

  weight(name) {
    return this.weights.get(`${name}.weight`);
  }

  // The number of the key and value head that a head reads; several heads may share one.
  groupOf(head) {
    return Math.floor(head / (this.H / this.kv));
  }

  // Reads 1..CHUNK tokens that follow those of the cache, and appends them to the cache.
  //
  // edits: [{ part, vector, position }]: the vector replaces the output of the part (see parts.py) at this position, or
  //   at all if it is undefined. trace: a Trace to fill at the tokens' positions.
  // from: { layer, residual }: starts at this layer, with the residual stream (S, D) before it.
  // Returns the features (T, D), valid until the next call.
  read(tokens, cache, { edits = [], trace = null, from = null } = {}) {
    const { config } = this;
    const [T, start, D] = [tokens.length, cache.length, config.embed_dim];
    cache.tokens.set(tokens, start);
    const chunk = { tokens, cache, start, T, edits, trace };
    const x = this.scratch.x.subarray(0, T * D);
    if (from) x.set(from.residual.subarray(start * D, (start + T) * D));
    else this.embed(x, chunk);
    for (let layer = from?.layer ?? 0; layer < config.num_layers; layer++) {
      trace?.residual[2 * layer].set(x, start * D);
      addTo(x, this.attention(x, layer, chunk));
      trace?.residual[2 * layer + 1].set(x, start * D);
      addTo(x, this.feedForward(x, layer, chunk));
    }
    trace?.residual.at(-1).set(x, start * D);
    cache.length = start + T;
    return this.norm("final_norm", x, this.scratch.normed);
  }

  embed(x, chunk) {
    const { config, scratch, D } = this;
    const { tokens, cache, start, T, trace } = chunk;
    x.fill(0);
    const addTable = (part, weight, idsOf) => {
      const rows = scratch.added.subarray(0, T * D).fill(0);
      for (let t = 0; t < T; t++) for (const id of idsOf(t)) addTo(row(rows, t, D), row(weight, id, D));
      replace(rows, D, part, chunk);
      if (trace) (trace.tables[part] ??= new Float32Array(trace.embeddings.length)).set(rows, start * D);
      addTo(x, rows);
    };
    addTable("token embedding", this.weight("token_embedding"), (t) => [tokens[t]]);
    if (config.ngram_sizes.length)
      addTable("n-gram tables", this.weight("ngram_embedding"), (t) => ngramRows(config, cache.tokens, start + t));
    if (config.position === "learned") addTable("positions", this.weight("position_embedding"), (t) => [start + t]);
    trace?.embeddings.set(x, start * D);
    if (config.embedding_norm) this.norm("embedding_norm", x, x);
  }

  // (T, D) -> (T, D). A LayerNorm has a weight, and may have a bias; without a weight it is an RMSNorm.
  norm(name, x, out) {
    const { D } = this;
    const [weight, bias] = [this.weight(name), this.weights.get(`${name}.bias`)];
    for (let t = 0; t < x.length / D; t++) normalise(row(x, t, D), row(out, t, D), weight, bias);
    return out.subarray(0, x.length);
  }

  // Multiplies x (T, inputs) by a matrix and adds its bias, if any: (T, outputs).
  linear(name, x, out, inputs, outputs) {
    const T = x.length / inputs;
    this.products.into(out, x, this.weight(name), T, inputs, outputs);
    const bias = this.weights.get(`${name}.bias`);
    if (bias) for (let t = 0; t < T; t++) for (let i = 0; i < outputs; i++) out[t * outputs + i] += bias[i];
    return out.subarray(0, T * outputs);
  }

  attention(x, layer, chunk) {
    const { config, D, H, kv, K, scratch, qkvWidth } = this;
    const { cache, start, T, trace } = chunk;
    const block = `blocks.${layer}.attention`;
    const normed = this.norm(`${block}_norm`, x, scratch.normed);
    const qkv = this.linear(`${block}.qkv_proj`, normed, scratch.qkv, D, qkvWidth);
    if (hasValues(config, layer)) this.addValues(qkv, layer, chunk);
    for (let t = 0; t < T; t++) {
      const line = row(qkv, t, qkvWidth);
      for (let head = 0; head < H + kv; head++) {
        const vector = row(line, head, K);
        if (config.qk_norm) normalise(vector, vector);
        if (this.rotary) applyRotary(vector, start + t, this.rotary);
      }
      trace?.queries[layer].set(line.subarray(0, D), (start + t) * D);
      cache.keys[layer].set(line.subarray(H * K, (H + kv) * K), (start + t) * kv * K);
      cache.values[layer].set(line.subarray((H + kv) * K), (start + t) * kv * K);
    }
    const merged = scratch.merged.subarray(0, T * D);
    const weights = new Float32Array(start + T);
    const oldest = Array.from({ length: T }, (_, t) => oldestSeen(config, cache.tokens, start + t));
    for (let head = 0; head < H; head++) {
      const first = this.groupOf(head) * K;
      const rows = { keys: cache.keys[layer], values: cache.values[layer], first, stride: kv * K };
      for (let t = 0; t < T; t++) {
        const [query, out] = [row(row(qkv, t, qkvWidth), head, K), row(merged, t * H + head, K)];
        attend(query, rows, start + t, oldest[t], weights, out);
        trace?.weights[layer * H + head].set(weights.subarray(0, start + t + 1), triangle(start + t));
      }
    }
    for (let head = 0; head < H; head++) replace(merged, D, `head ${layer}.${head}`, chunk, head * K);
    trace?.heads[layer].set(merged, start * D);
    return this.linear(`${block}.output_proj`, merged, scratch.added, D, D);
  }

  // Adds each token's value embedding to its values, the last columns of qkv.
  addValues(qkv, layer, chunk) {
    const { tokens, T } = chunk;
    const width = this.kv * this.K;
    const table = this.weight(`value_embeddings.${layer}`);
    const rows = new Float32Array(T * width);
    for (let t = 0; t < T; t++) rows.set(row(table, tokens[t], width), t * width);
    replace(rows, width, `value embeddings ${layer}`, chunk);
    for (let t = 0; t < T; t++)
      for (let i = 0; i < width; i++) qkv[(t + 1) * this.qkvWidth - width + i] += rows[t * width + i];
  }

  feedForward(x, layer, chunk) {
    const { config, scratch, D } = this;
    const hidden = config.feed_forward_dim;
    const block = `blocks.${layer}.feed_forward`;
    const normed = this.norm(`${block}_norm`, x, scratch.normed);
    const up = this.linear(`${block}.up_proj`, normed, scratch.hidden, D, hidden);
    const activation = ACTIVATIONS[config.activation];
    const gated = this.weight(`${block}.gate_proj`);
    const gate = gated && this.linear(`${block}.gate_proj`, normed, scratch.gate, D, hidden);
    for (let i = 0; i < up.length; i++) up[i] = gated ? up[i] * activation(gate[i]) : activation(up[i]);
    const added = this.linear(`${block}.down_proj`, up, scratch.added, hidden, D);
    replace(added, D, `feed-forward ${layer}`, chunk);
    chunk.trace?.feedForwards[layer].set(added, chunk.start * D);
    return added;
  }

  // Features (T, D) -> logits (T, V), valid until the next call.
  unembed(features) {
    const { D, V, config: { logit_soft_cap: cap } } = this;
    const T = features.length / D;
    const out = this.scratch.logits.subarray(0, T * V);
    const x = this.scratch.x.subarray(0, T * D);
    x.set(features); // `products` only reads its own memory
    this.products.into(out, x, this.weight("lm_head"), T, D, V);
    // This is cap * tanh(z / cap); Math.tanh takes twice as long.
    if (cap) for (let i = 0; i < out.length; i++) out[i] = cap - (2 * cap) / (1 + Math.exp((2 / cap) * out[i]));
    return out;
  }
}

function addTo(x, added) {
  for (let i = 0; i < x.length; i++) x[i] += added[i];
}

// Applies the edits of one part: writes their vectors into its rows, from column `first` on.
function replace(rows, stride, part, { edits, start, T }, first = 0) {
  for (const edit of edits)
    if (edit.part === part)
      for (let t = 0; t < T; t++)
        if (edit.position === undefined || edit.position === start + t) rows.set(edit.vector, t * stride + first);
}
