// The page's model: reads and writes text, with parts switched off on request. It runs in a worker (worker.js) or in
// node. Methods that take long are generators, so that they can be stopped where they yield.

import { square } from "browser/attribution.js";
import { Cache, CHUNK, Network, row } from "browser/network.js";
import { logTotal, Reading } from "browser/reading.js";
import { recent } from "browser/recent.js";
import { sample } from "browser/sampling.js";
import { bytesOf, tensorsOf, triangle } from "browser/weights.js";

const KEPT_READINGS = 6; // for each of two snapshots: text A with parts off, text A with all parts on, and text B

// Every request names its snapshot by its number in the manifest.
export class LiveModel {
  // manifest: see weights.py; texts: the weights of each snapshot in base64.
  constructor(manifest, texts) {
    Object.assign(this, { manifest, config: manifest.config, texts, snapshots: [], readings: recent(KEPT_READINGS) });
  }

  // The content of a block of weights, { network, means of parts, reference logits }, unpacked on first use.
  snapshot(number) {
    if (this.snapshots[number]) return this.snapshots[number];
    const { tensors, means, reference } = this.manifest;
    const bytes = bytesOf(this.texts[number]);
    const floats = ({ start, shape }) => new Float32Array(bytes.buffer, start, shape.reduce((a, b) => a * b)).slice();
    return (this.snapshots[number] = {
      network: new Network(this.config, tensorsOf(tensors, bytes)),
      means: new Map(means.map((mean) => [mean.name, floats(mean)])),
      reference: floats(reference),
    });
  }

  // The largest difference of the probe's last logits from PyTorch's, and what rounding costs in bits per token.
  *parity({ snapshot }) {
    const { probe, bits } = this.manifest.parity;
    const { network, reference } = this.snapshot(snapshot);
    const reading = new Reading(network);
    yield* reading.read(probe, false);
    const errors = reading.logits(probe.length - 1).map((logit, id) => Math.abs(logit - reference[id]));
    return { error: errors.reduce((a, b) => Math.max(a, b)), bits: bits[snapshot] };
  }

  // The reading of a text, kept so that a typed letter costs one token. off: parts that give their mean. text: A or B.
  reading(snapshot, off = [], text = "A") {
    const name = JSON.stringify([snapshot, off, text]);
    return this.readings(name, () => new Reading(this.snapshot(snapshot).network, this.edits(snapshot, off)));
  }

  // The edits for Network.read that switch parts off.
  edits(snapshot, off) {
    return off.map((part) => ({ part, vector: this.snapshot(snapshot).means.get(part) }));
  }

  *read({ snapshot, tokens, off, text, deep = true }) {
    const reading = this.reading(snapshot, off, text);
    yield* reading.read(tokens, deep);
    const { next } = reading.columns.at(-1);
    return { weights: reading.block(), figures: reading.figures(deep), next };
  }

  // What is exact at one token of a text: the logits (V,) of the next token, and the weights (token + 1,) of each head.
  *at({ snapshot, tokens, off, token }) {
    const reading = this.reading(snapshot, off);
    yield* reading.read(tokens, false);
    const weights = reading.trace.weights.map((map) => map.slice(triangle(token), triangle(token + 1)));
    return { logits: reading.logits(token).slice(), weights };
  }

  // See square in attribution.js.
  *square({ snapshot, tokens, off, ...place }) {
    const reading = this.reading(snapshot, off);
    yield* reading.read(tokens, false);
    return yield* square(reading, place);
  }

  // Yields each new token. As in model/generation.py, only the end of a long text is read, and the last half of the
  // context is read again when the context is full.
  *write({ snapshot, tokens, off = [], count = 200, temperature = 1, topK = null, stop = null }) {
    const context = this.config.context_length;
    const { network } = this.snapshot(snapshot);
    const options = { edits: this.edits(snapshot, off) };
    const cache = new Cache(this.config, context);
    let unread = tokens.slice(-context);
    for (let written = 0; written < count; written++) {
      if (cache.length + unread.length > context) {
        const kept = Math.max(1, Math.floor(context / 2));
        unread = [...cache.tokens.subarray(context - kept + 1), ...unread];
        cache.length = 0;
      }
      const token = sample(logitsAfter(network, unread, cache, options), { temperature, topK });
      yield token;
      if (token === stop) return;
      unread = [token];
    }
  }

  // What happens to the token `target` after the text if one head's output at one position is replaced by its output at
  // the same position of another text. Yields { plain, patched: [position] } for each head, with the positions that
  // both texts have. Each entry is [logit, probability] of the target.
  *patchAll({ snapshot, tokens, other, target }) {
    const { network } = this.snapshot(snapshot);
    // New readings, because requests that are answered in between change the kept ones.
    const [reading, source] = [new Reading(network), new Reading(network)];
    yield* reading.read(tokens, false);
    yield* source.read(other, false);
    const ofTarget = (logits) => [logits[target], Math.exp(logits[target] - logTotal(logits))];
    const plain = ofTarget(reading.logits(tokens.length - 1));
    const spare = new Cache(this.config, tokens.length);
    for (let layer = 0; layer < network.L; layer++)
      for (let head = 0; head < network.H; head++) {
        const patched = [];
        for (let position = 0; position < Math.min(tokens.length, other.length); position++) {
          patched.push(ofTarget(this.patched(reading, source, layer, head, position, spare)));
          yield;
        }
        yield { plain, patched };
      }
  }

  // The logits after the last token, with one patch. Only what the patch can change is computed: this layer and later
  // ones, from this position on.
  patched(reading, source, layer, head, position, spare) {
    const { cache, trace, network } = reading;
    const T = cache.length;
    if (layer === network.L - 1 && position < T - 1) return reading.logits(T - 1); // nothing later reads it
    spare.copy(cache, position);
    const vector = row(source.trace.heads[layer], position * network.H + head, network.K);
    const edits = [{ part: `head ${layer}.${head}`, vector, position }];
    const options = { edits, from: { layer, residual: trace.residual[2 * layer] } };
    return logitsAfter(network, cache.tokens.subarray(position, T), spare, options);
  }
}

// The logits after the last of these tokens, which follow the tokens of the cache.
function logitsAfter(network, tokens, cache, options) {
  let features;
  for (let first = 0; first < tokens.length; first += CHUNK)
    features = network.read(tokens.slice(first, first + CHUNK), cache, options);
  return network.unembed(features.subarray(-network.D));
}
