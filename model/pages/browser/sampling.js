// Drawing the next token from logits, as model/generation.py does.

export function sample(logits, options) {
  const chances = probabilities(logits, options);
  const drawn = Math.random();
  let below = 0;
  const id = chances.findIndex((chance) => drawn < (below += chance));
  return id < 0 ? likeliest(logits, 1)[0] : id; // the sum is 1 but for rounding
}

// With what probability `sample` draws each token. temperature divides the logits, 0 takes the likeliest token; topK
// draws from so many of the likeliest, null from all.
export function probabilities(logits, { temperature = 1, topK = null }) {
  const ids = temperature === 0 ? likeliest(logits, 1) : topK && likeliest(logits, topK);
  const largest = logits.reduce((most, logit) => (logit > most ? logit : most), -Infinity);
  const weightOf = (logit) => Math.exp((logit - largest) / (temperature || 1));
  const weights = ids ? new Float64Array(logits.length) : Float64Array.from(logits, weightOf);
  for (const id of ids ?? []) weights[id] = weightOf(logits[id]);
  const total = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / total);
}

// The ids of the `count` largest logits, largest first; of equal ones the lower id.
export function likeliest(logits, count) {
  const best = [];
  for (let id = 0; id < logits.length; id++) {
    if (best.length === count && logits[id] <= logits[best[count - 1]]) continue;
    if (best.length === count) best.pop();
    let place = best.length;
    while (place && logits[id] > logits[best[place - 1]]) place--;
    best.splice(place, 0, id);
  }
  return best;
}
