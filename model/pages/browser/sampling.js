// Drawing the next token from logits, as model/generation.py does.

// temperature divides the logits, 0 takes the likeliest token; topK draws from so many of the likeliest, null from all.
export function sample(logits, { temperature = 1, topK = null }) {
  if (temperature === 0) return likeliest(logits, 1)[0];
  const ids = topK ? likeliest(logits, topK) : [...logits.keys()];
  const largest = ids.reduce((most, id) => Math.max(most, logits[id]), -Infinity);
  const weights = ids.map((id) => Math.exp((logits[id] - largest) / temperature));
  const drawn = Math.random() * weights.reduce((sum, weight) => sum + weight);
  let below = 0;
  return ids.find((_, place) => drawn < (below += weights[place]));
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
