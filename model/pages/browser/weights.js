// The weights of the model: base64 text -> bytes -> the tensors that make a Network, in the format of weights.py.

// The number of weights that the first n queries of a map have: each query sees itself and what comes before it.
export const triangle = (n) => (n * (n + 1)) / 2;

export function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// list: [{ name, shape, kind, start }] from weights.py. Returns a Map: name -> { size, fill(array) }, size in numbers.
export function tensorsOf(list, bytes) {
  const sizeOf = (shape) => shape.reduce((a, b) => a * b, 1);
  return new Map(list.map(({ name, shape, kind, start }) =>
    [name, { size: sizeOf(shape), fill: (array) => READERS[kind](array, shape, bytes.buffer, start) }]));
}

const READERS = {
  float32: (array, shape, buffer, start) => array.set(new Float32Array(buffer, start, array.length)),
  // A bfloat16 is the upper half of a float32.
  bfloat16: (array, shape, buffer, start) => {
    const halves = new Uint16Array(buffer, start, array.length);
    const bits = new Uint32Array(array.buffer, array.byteOffset, array.length);
    for (let i = 0; i < bits.length; i++) bits[i] = halves[i] << 16;
  },
  // The scale of each row, then all rows as small integers.
  int8: (array, [rows, width], buffer, start) => {
    const scales = new Float32Array(buffer, start, rows);
    const integers = new Int8Array(buffer, start + 4 * rows, rows * width);
    for (let row = 0; row < rows; row++)
      for (let i = row * width; i < (row + 1) * width; i++) array[i] = integers[i] * scales[row];
  },
};
