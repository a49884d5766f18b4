// Text <-> token ids, the same as data/tokenizers.py gives: bytes, and byte-pair encodings as tiktoken has them.

// stored: { pattern, tokens, special_tokens } of Tokenizer.to_dict, where tokens are bytes.
export function createTokenizer({ pattern, tokens, special_tokens: special }) {
  const byId = [];
  const ranks = new Map(); // a token's bytes, as a string of characters below 256 -> its id
  for (let at = 0; at < tokens.length; ) {
    const length = tokens[at] + 256 * tokens[at + 1];
    const piece = tokens.subarray(at + 2, at + 2 + length);
    if (length) {
      ranks.set(binary(piece), byId.length);
      byId[byId.length] = piece;
    } else byId.length++;
    at += 2 + length;
  }
  for (const [name, id] of Object.entries(special)) byId[id] = new TextEncoder().encode(name);
  const split = new RegExp(translated(pattern), "gu");
  const encoder = new TextEncoder(); // gives a lone surrogate the bytes of U+FFFD, as tiktoken does

  return {
    vocabSize: byId.length,
    endOfText: special["<|endoftext|>"],
    bytes: (id) => byId[id],
    encode: (text) => (text.match(split) ?? []).flatMap((piece) => merged(encoder.encode(piece), ranks)),
    label: (id) => (byId[id] ? escaped(byId[id]) : `<${id}>`),
  };
}

const binary = (bytes) => Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");

// The ids of one piece's bytes: of all neighbours that together are a token, those with the lowest id become it, again and again.
function merged(bytes, ranks) {
  const text = binary(bytes);
  const whole = ranks.get(text);
  if (whole !== undefined) return [whole];
  const starts = Array.from({ length: bytes.length + 1 }, (_, i) => i);
  const rankAt = (i) => (i + 2 < starts.length ? ranks.get(text.slice(starts[i], starts[i + 2])) ?? Infinity : Infinity);
  const pairs = starts.map((_, i) => rankAt(i));
  for (;;) {
    let best = 0;
    for (let i = 1; i < pairs.length; i++) if (pairs[i] < pairs[best]) best = i;
    if (pairs[best] === Infinity) break;
    starts.splice(best + 1, 1);
    pairs.splice(best + 1, 1);
    pairs[best] = rankAt(best);
    if (best) pairs[best - 1] = rankAt(best - 1);
  }
  return starts.slice(1).map((end, i) => ranks.get(text.slice(starts[i], end)));
}

// A pattern of Rust's regular expressions as one of JavaScript's.
function translated(pattern) {
  const eitherCase = (letters) => letters.replace(/[a-z]/g, (letter) => `[${letter}${letter.toUpperCase()}${letter === "s" ? "\u017f" : ""}]`);
  return pattern
    .replace(/\(\?i:([^)]*)\)/g, (_, body) => `(?:${body.replace(/\[([a-z]+)\]|[a-z]/g, (one, set) => eitherCase(set ?? one).replaceAll("][", ""))})`)
    // A quantifier that never gives back what it took: in the patterns of tokenizers what follows could not use it anyway.
    .replace(/([+?*]|\{\d+(?:,\d*)?\})\+/g, "$1")
    .replaceAll("\\s", "\\p{White_Space}") // JavaScript's own has U+FEFF but not U+0085
    .replaceAll("\\S", "\\P{White_Space}");
}

// Bytes as text for people to read; what is only part of a character is escaped, such as \xe2.
function escaped(bytes) {
  const whole = decoded(bytes);
  if (whole !== null) return whole;
  let text = "";
  for (let at = 0; at < bytes.length; ) {
    const length = [1, 2, 3, 4].find((n) => at + n <= bytes.length && decoded(bytes.subarray(at, at + n)) !== null);
    text += length ? decoded(bytes.subarray(at, at + length)) : `\\x${bytes[at].toString(16).padStart(2, "0")}`;
    at += length ?? 1;
  }
  return text;
}

const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

// Bytes as UTF-8, null if they are not.
function decoded(bytes) {
  try {
    return decoder.decode(bytes);
  } catch {
    return null;
  }
}
