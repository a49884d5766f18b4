// Draws the next token from logits, as `sample` in model/generation.py does, but by temperature and top_k only.

export function sample(logits, options) {
  const chances = options.temperature === 0 ? [] : probabilities(logits, options);
  let left = Math.random();
  for (let id = 0; id < chances.length; id++) if ((left -= chances[id]) < 0) return id;
  return likeliest(logits, 1)[0]; // at temperature 0, or if rounding leaves the sum below 1
}

// The probability with which `sample` draws each token. temperature: divides the logits; 0 takes the likeliest token.
// topK: draws from this many of the likeliest tokens; null draws from all.
export function probabilities(logits, { temperature = 1, topK = null }) {
  const ids = temperature === 0 ? likeliest(logits, 1) : topK ? likeliest(logits, topK) : logits.keys();
  const weights = new Float64Array(logits.length);
  let [largest, total] = [-Infinity, 0];
  for (let id = 0; id < logits.length; id++) if (logits[id] > largest) largest = logits[id];
  for (const id of ids) total += weights[id] = Math.exp((logits[id] - largest) / (temperature || 1));
  for (let id = 0; id < weights.length; id++) weights[id] /= total;
  return weights;
}

// The ids of the `count` largest logits, largest first; of equal logits, the lower id first.
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
