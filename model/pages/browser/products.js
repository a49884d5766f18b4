// Products of a matrix with vectors. A network spends nearly all of its time here.
//
// products.into(out, x, weight, T, I, O): out[t, o] = x[t] . weight[o], for x (T, I), weight (O, I) and out (T, O), all
// with one row after the other. All three are arrays from products.floats(count), which start as zeros.
//
// If the browser has WebAssembly with SIMD, the loop of its instructions below is ten times as fast as JavaScript.

const PAGE = 65536; // bytes, the unit of WebAssembly's memory

// room: how many floats the caller will ask for in all.
export function createProducts(room) {
  const bytes = 4 * room + 16 * 4096; // room for 4096 arrays, each at a multiple of 16 bytes
  try {
    const memory = new WebAssembly.Memory({ initial: Math.ceil(bytes / PAGE) });
    const module = new WebAssembly.Module(program());
    const { rows } = new WebAssembly.Instance(module, { page: { memory } }).exports;
    let used = 0;
    const floats = (count) => {
      const array = new Float32Array(memory.buffer, used, count);
      used += Math.ceil(count / 4) * 16;
      return array;
    };
    const into = (out, x, weight, T, I, O) => {
      if (I % 4) return plainly(out, x, weight, T, I, O);
      const fours = Math.floor(O / 4);
      if (fours && T) rows(out.byteOffset, x.byteOffset, weight.byteOffset, fours, T, 4 * I, 4 * O);
      plainly(out, x, weight, T, I, O, 4 * fours);
    };
    return { floats, into, simd: true };
  } catch {
    // The browser has no SIMD, or a policy forbids WebAssembly.
    return { floats: (count) => new Float32Array(count), into: plainly, simd: false };
  }
}

// Computes the outputs from `first` on, one at a time.
function plainly(out, x, weight, T, I, O, first = 0) {
  for (let o = first; o < O; o++)
    for (let t = 0; t < T; t++) {
      let sum = 0;
      for (let i = 0; i < I; i++) sum += x[t * I + i] * weight[o * I + i];
      out[t * O + o] = sum;
    }
}

// ---- the same in WebAssembly: webassembly.github.io/spec/core/binary
//
// rows(out, x, weight, fours, T, width, stride) takes addresses and sizes in bytes: width is 4 I, and stride 4 O. Its
// three loops are over groups of four rows of the matrix, over the vectors, and over groups of four columns.

function program() {
  const [out, x, weight, fours, T, width, stride] = [0, 1, 2, 3, 4, 5, 6]; // parameters; the variables follow
  const [xT, outT, t, end] = [7, 8, 9, 10];
  const rows = [11, 12, 13, 14];
  const sums = [15, 16, 17, 18];
  const v = 19;
  const [I32, V128] = [0x7f, 0x7b];

  const get = (local) => [0x20, local];
  const set = (local, ...value) => [...value.flat(), 0x21, local];
  const int = (value) => [0x41, ...signed(value)];
  const add = (a, b) => [...a, ...b, 0x6a];
  const scaled = (a, factor) => [...a, ...int(factor), 0x6c];
  const less = (a, b) => [...a, ...b, 0x49];
  const simd = (code, ...rest) => [0xfd, ...unsigned(code), ...rest];
  const fourFloats = (address) => [...address, ...simd(0x00, 2, 0)];
  const fourZeros = simd(0x0c, ...Array(16).fill(0));
  const timesFour = (a, b) => [...a, ...b, ...simd(0xe6)];
  const plusFour = (a, b) => [...a, ...b, ...simd(0xe4)];
  const lane = (local, number) => [...get(local), ...simd(0x1f, number)];
  const plus = (a, b) => [...a, ...b, 0x92];
  const total = (sum) => plus(plus(lane(sum, 0), lane(sum, 1)), plus(lane(sum, 2), lane(sum, 3)));
  const store = (address, offset, value) => [...address, ...value, 0x38, 2, offset];
  const repeat = (body, condition) => [0x03, 0x40, ...body.flat(), ...condition, 0x0d, 0, 0x0b];
  const forward = (local, bytes) => set(local, add(get(local), bytes));
  const countDown = (local) => [...add(get(local), int(-1)), 0x22, local];

  const columns = repeat([
    set(v, fourFloats(get(xT))),
    ...sums.map((sum, n) => set(sum, plusFour(get(sum), timesFour(get(v), fourFloats(get(rows[n])))))),
    ...[xT, ...rows].map((address) => forward(address, int(16))),
  ], less(get(xT), get(end)));
  const vectors = repeat([
    ...rows.map((row, n) => set(row, n ? add(get(rows[n - 1]), get(width)) : get(weight))),
    ...sums.map((sum) => set(sum, fourZeros)),
    set(end, add(get(xT), get(width))),
    columns,
    // The addresses of the rows have moved on by a row's width: the next vector starts at the first row again.
    ...sums.map((sum, n) => store(get(outT), 4 * n, total(sum))),
    forward(outT, get(stride)),
  ], countDown(t));
  const body = repeat([
    set(xT, get(x)), set(outT, get(out)), set(t, get(T)),
    vectors,
    forward(weight, scaled(get(width), 4)), forward(out, int(16)),
  ], countDown(fours));

  const locals = [2, 8, I32, 5, V128];
  return new Uint8Array([
    0x00, 0x61, 0x73, 0x6d, 1, 0, 0, 0, // "\0asm", version 1
    ...section(1, [1, 0x60, 7, ...Array(7).fill(I32), 0]), // one type: seven integers, no result
    ...section(2, [1, ...name("page"), ...name("memory"), 2, 0, 1]), // imports a memory of at least one page
    ...section(3, [1, 0]), // one function, of that type
    ...section(7, [1, ...name("rows"), 0, 0]), // exports it
    ...section(10, [1, ...sized([...locals, ...body, 0x0b])]),
  ]);
}

// WebAssembly writes integers in LEB128: seven bits a byte, the lowest first; all bytes but the last have the high bit.
const unsigned = (n) => (n < 128 ? [n] : [(n & 127) | 128, ...unsigned(n >>> 7)]);
const signed = (n) => (n >= -64 && n < 64 ? [n & 127] : [(n & 127) | 128, ...signed(n >> 7)]);
const sized = (bytes) => [...unsigned(bytes.length), ...bytes];
const section = (id, bytes) => [id, ...sized(bytes)];
const name = (text) => sized([...new TextEncoder().encode(text)]);
