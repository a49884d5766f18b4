// A page's model: reads and writes text, without some of its parts if it is asked to. Runs in a worker (worker.js) or in
// node. What takes long is a generator, so that it can be stopped where it yields.

import { Cache, CHUNK, Network } from "browser/network.js";
import { Reading } from "browser/reading.js";
import { randomNumbers, sample } from "browser/sampling.js";
import { bytesOf, tensorsOf } from "browser/weights.js";

const KEPT_READINGS = 3; // with different edits: switching a part off and on again does not read the text anew

export class LiveModel {
  // manifest: see live.py; texts: the weights of each snapshot in base64.
  constructor(manifest, texts) {
    this.manifest = manifest;
    this.config = manifest.config;
    this.snapshots = texts.map(bytesOf);
    this.use(this.snapshots.length - 1);
  }

  // Another snapshot answers from now on.
  use(snapshot) {
    const { tensors, means, reference } = this.manifest;
    const bytes = this.snapshots[snapshot];
    if (this.network) this.network.fill(tensorsOf(tensors, bytes));
    else this.network = new Network(this.config, tensorsOf(tensors, bytes));
    this.means = loaded(tensorsOf(means, bytes));
    this.reference = loaded(tensorsOf([reference], bytes)).get(reference.name);
    this.readings = new Map();
    this.snapshot = snapshot;
  }

  // How far the logits of the recorded probe are from PyTorch's, and what quantisation costs in bits per token.
  *parity() {
    const { probe, positions, bits } = this.manifest.parity;
    const reading = this.reading([]);
    yield* reading.read(probe, false);
    const { embed_dim: D, vocab_size: V } = this.config;
    const error = positions.map((position, row) => {
      const logits = this.network.logits(reading.trace.features.subarray(position * D, (position + 1) * D));
      return logits.reduce((most, logit, id) => Math.max(most, Math.abs(logit - this.reference[row * V + id])), 0);
    });
    return { error: Math.max(...error), bits: bits[this.snapshot] };
  }

  reading(edits) {
    const name = JSON.stringify(edits);
    const reading = this.readings.get(name) ?? new Reading(this.network, this.vectors(edits));
    this.readings.delete(name); // and added again, at the end
    this.readings.set(name, reading);
    if (this.readings.size > KEPT_READINGS) this.readings.delete(this.readings.keys().next().value);
    return reading;
  }

  // edits: [{ part, with: "zero" or "mean" }], as a person chooses them -> as Network.read takes them.
  vectors(edits) {
    return edits.map(({ part, with: value }) => {
      const mean = this.means.get(part);
      if (!mean) throw new Error(`the model has no part ${part}`);
      return { part, vector: value === "mean" ? mean : new Float32Array(mean.length) };
    });
  }

  *read({ tokens, edits = [], details = true }) {
    if (!tokens.length) return { block: new Uint8Array(0), details: null, loss: null, next: [] };
    const reading = this.reading(edits);
    yield* reading.read(tokens, details);
    return { block: reading.block(), details: reading.details(details), loss: reading.loss(), next: reading.columns.at(-1).next };
  }

  // Yields each new token. As model/generation.py: of a long text only the end is read, and when the context is full, its
  // last half is read again.
  *write({ tokens, edits = [], count = 200, seed = 0, temperature = 1, topK = null, stop = null }) {
    const context = this.config.context_length;
    const options = { edits: this.vectors(edits) };
    const random = randomNumbers(seed);
    const cache = new Cache(this.config, context);
    let unread = tokens.slice(-context);
    for (let written = 0; written < count; written++) {
      if (cache.length + unread.length > context) {
        const kept = Math.max(1, Math.floor(context / 2));
        unread = [...cache.tokens.subarray(context - kept + 1), ...unread];
        cache.cut(0);
      }
      let features;
      for (let at = 0; at < unread.length; at += CHUNK) features = this.network.read(unread.slice(at, at + CHUNK), cache, options);
      const logits = this.network.logits(features.subarray(-this.config.embed_dim));
      const token = sample(logits, { temperature, topK }, random);
      yield token;
      if (token === stop) return;
      unread = [token];
    }
  }

  // The logit of `target` after the tokens, plainly and with one head's output at a position replaced by what that head
  // gives at another position of another text.
  *patch({ tokens, other, layer, head, position, from, target }) {
    const [reading, source] = yield* this.bothRead(tokens, other);
    const vector = outputOf(source.trace, this.network, layer, head, from);
    const plain = this.logitAfter(reading.trace.features, tokens.length - 1, target);
    return { plain, patched: this.patched(reading, layer, head, position, vector, target) };
  }

  // The same for every head and position, each head's output from the same position of the other text: yields a row of
  // T changes for each head. Where the other text has no such position, nothing changes.
  *patchAll({ tokens, other, target }) {
    const [reading, source] = yield* this.bothRead(tokens, other);
    const { num_layers: L, num_heads: H } = this.config;
    const plain = this.logitAfter(reading.trace.features, tokens.length - 1, target);
    const matrix = [];
    for (let number = 0; number < L * H; number++) {
      const [layer, head] = [Math.floor(number / H), number % H];
      const row = Array(tokens.length).fill(0);
      for (let position = 0; position < Math.min(tokens.length, other.length); position++) {
        const vector = outputOf(source.trace, this.network, layer, head, position);
        row[position] = this.patched(reading, layer, head, position, vector, target) - plain;
        yield;
      }
      matrix.push(row);
      yield { number, row };
    }
    return matrix;
  }

  *bothRead(tokens, other) {
    const readings = [];
    for (const text of [tokens, other]) {
      const reading = new Reading(this.network);
      yield* reading.read(text, false);
      readings.push(reading);
    }
    return readings;
  }

  // Only what the replaced vector can change is computed anew: this layer and those after it, from this position on.
  patched(reading, layer, head, position, vector, target) {
    const { config, network } = this;
    const T = reading.cache.length;
    const last = layer === config.num_layers - 1 && position < T - 1;
    if (last) return this.logitAfter(reading.trace.features, T - 1, target); // nothing reads it there
    this.spare ??= new Cache(config, config.context_length);
    this.spare.copy(reading.cache, T);
    this.spare.cut(position);
    const options = { edits: [{ part: `head ${layer}.${head}`, vector, position }], from: { layer, residual: reading.trace.residual[2 * layer] } };
    let features;
    for (let at = position; at < T; at += CHUNK)
      features = network.read(Array.from(reading.cache.tokens.subarray(at, Math.min(T, at + CHUNK))), this.spare, options);
    return this.logitAfter(features, features.length / config.embed_dim - 1, target);
  }

  logitAfter(features, position, target) {
    const D = this.config.embed_dim;
    return this.network.logits(features.subarray(position * D, (position + 1) * D))[target];
  }
}

const loaded = (tensors) =>
  new Map([...tensors].map(([name, { size, fill }]) => {
    const array = new Float32Array(size);
    fill(array);
    return [name, array];
  }));

function outputOf(trace, { K, config }, layer, head, position) {
  const start = position * config.embed_dim + head * K;
  return trace.heads[layer].slice(start, start + K);
}
