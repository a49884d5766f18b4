// Drawing the next token from logits, as model/generation.py does.

// temperature divides the logits, 0 takes the likeliest token; topK draws from so many of the likeliest, null from all.
export function sample(logits, { temperature = 1, topK = null }) {
  if (temperature === 0) return likeliest(logits, 1)[0];
  const ids = topK && likeliest(logits, topK);
  const weights = ids ? Float32Array.from(ids, (id) => logits[id]) : logits.slice();
  const largest = weights.reduce((most, logit) => (logit > most ? logit : most), -Infinity);
  let total = 0;
  for (let i = 0; i < weights.length; i++) {
    weights[i] = Math.exp((weights[i] - largest) / temperature);
    total += weights[i];
  }
  const drawn = Math.random() * total;
  let below = 0;
  const place = weights.findIndex((weight) => drawn < (below += weight));
  return ids ? ids[place] : place;
}

// The probabilities with which `sample` draws each token.
export function probabilities(logits, { temperature = 1, topK = null }) {
  const ids = temperature === 0 ? likeliest(logits, 1) : topK ? likeliest(logits, topK) : [...logits.keys()];
  const largest = ids.reduce((most, id) => Math.max(most, logits[id]), -Infinity);
  const weights = new Float64Array(logits.length);
  for (const id of ids) weights[id] = Math.exp((logits[id] - largest) / (temperature || 1));
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
