// Drawing the next token from logits, as model/generation.py does.

// Numbers in [0, 1) that a seed determines (the generator "mulberry32").
export function randomNumbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  };
}

// temperature divides the logits, 0 takes the likeliest token; topK draws from so many of the likeliest, null from all.
export function sample(logits, { temperature = 1, topK = null }, random) {
  if (temperature === 0) return logits.reduce((best, logit, id) => (logit > logits[best] ? id : best), 0);
  const ids = topK ? likeliest(logits, topK) : [...logits.keys()];
  const largest = ids.reduce((most, id) => Math.max(most, logits[id]), -Infinity);
  const shares = ids.map((id) => Math.exp((logits[id] - largest) / temperature));
  let left = random() * shares.reduce((sum, share) => sum + share, 0);
  const place = shares.findIndex((share) => (left -= share) < 0);
  return ids[place < 0 ? ids.length - 1 : place];
}

// The ids of the `count` largest logits, largest first; of equal ones the lower id.
export function likeliest(logits, count) {
  const best = [];
  for (let id = 0; id < logits.length; id++) {
    if (best.length === count && logits[id] <= logits[best.at(-1)]) continue;
    let place = best.length;
    while (place && logits[id] > logits[best[place - 1]]) place--;
    best.splice(place, 0, id);
    if (best.length > count) best.pop();
  }
  return best;
}
