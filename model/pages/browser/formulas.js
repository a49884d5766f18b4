// The formulas of the network, on single vectors: norms, rotary positions, attention and activations, with the names of
// gpt.py, rotary.py and attention.py. K head width.

const LAYER_NORM_EPSILON = 1e-5;
const RMS_EPSILON = 1e-6;

// The mean that a norm subtracts from a vector (0 without a weight), and the number by which it then divides.
export function moments(x, weight) {
  const D = x.length;
  let [sum, squares] = [0, 0];
  if (weight) for (let i = 0; i < D; i++) sum += x[i];
  const mean = sum / D;
  for (let i = 0; i < D; i++) squares += (x[i] - mean) ** 2;
  return [mean, Math.sqrt(squares / D + (weight ? LAYER_NORM_EPSILON : RMS_EPSILON))];
}

// Normalises one vector: see Network.norm.
export function normalise(x, out, weight, bias) {
  const [mean, divisor] = moments(x, weight);
  for (let i = 0; i < x.length; i++) {
    const value = (x[i] - mean) / divisor;
    out[i] = weight ? value * weight[i] + (bias ? bias[i] : 0) : value;
  }
}

// The cosine and the sine of each pair's angle at each position, (positions, K); see rotary.py.
export function rotaryAngles(positions, K) {
  const table = new Float32Array(positions * K);
  for (let position = 0; position < positions; position++)
    for (let i = 0; i < K / 2; i++) {
      const angle = Math.fround(position * Math.fround(10000 ** -((2 * i) / K))); // float32, as in PyTorch
      table[position * K + i] = Math.cos(angle);
      table[position * K + K / 2 + i] = Math.sin(angle);
    }
  return table;
}

// Turns the pairs (x[i], x[i + K/2]) of a vector by the angles of its position; with the sign -1, turns them back.
export function applyRotary(vector, position, table, sign = 1) {
  const half = vector.length / 2;
  const start = position * vector.length;
  for (let i = 0; i < half; i++) {
    const [cos, sin] = [table[start + i], sign * table[start + half + i]];
    const [a, b] = [vector[i], vector[i + half]];
    vector[i] = a * cos - b * sin;
    vector[i + half] = b * cos + a * sin;
  }
}

// Fills `weights` with one query's weights of the keys oldest..position, and `out` with the sum of the values times
// these weights. A row of keys or values has `stride` numbers; those of this head begin at `first`.
export function attend(query, { keys, values, first, stride }, position, oldest, weights, out) {
  const K = query.length;
  const scale = 1 / Math.sqrt(K);
  let largest = -Infinity;
  for (let key = oldest; key <= position; key++) {
    const start = key * stride + first;
    let score = 0;
    for (let i = 0; i < K; i++) score += query[i] * keys[start + i];
    weights[key] = score * scale;
    if (weights[key] > largest) largest = weights[key];
  }
  let total = 0;
  for (let key = oldest; key <= position; key++) total += weights[key] = Math.exp(weights[key] - largest);
  weights.fill(0, 0, oldest);
  out.fill(0);
  for (let key = oldest; key <= position; key++) {
    const weight = (weights[key] /= total);
    const start = key * stride + first;
    for (let i = 0; i < K; i++) out[i] += weight * values[start + i];
  }
}

const SQRT_2_OVER_PI = Math.sqrt(2 / Math.PI);
export const ACTIVATIONS = {
  gelu: (x) => 0.5 * x * (1 + Math.tanh(SQRT_2_OVER_PI * (x + 0.044715 * x ** 3))),
  gelu_exact: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  relu2: (x) => (x > 0 ? x * x : 0),
  swiglu: (x) => x / (1 + Math.exp(-x)),
};

// The error function to within 1.5e-7 (Abramowitz and Stegun 1964, formula 7.1.26).
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const polynomial = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return Math.sign(x) * (1 - polynomial * Math.exp(-x * x));
}
