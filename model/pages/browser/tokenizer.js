// Text <-> token ids, the same as data/tokenizers.py gives: bytes, and byte-pair encodings as tiktoken has them.

const KEPT_PIECES = 10000;

// stored: { pattern, tokens, special_tokens } as Tokenizer.to_dict gives them, tokens in base64. Bytes are kept as
// strings of characters below 256 here, because they can be keys of a Map.
export function createTokenizer({ pattern, tokens, special_tokens: special }) {
  const packed = atob(tokens);
  const byId = [];
  const ranks = new Map(); // a token's bytes -> its id
  for (let at = 0; at < packed.length; ) {
    const length = packed.charCodeAt(at) + 256 * packed.charCodeAt(at + 1);
    const token = packed.slice(at + 2, at + 2 + length);
    if (length) ranks.set(token, byId.length);
    byId.push(length ? token : undefined); // an id that no token has
    at += 2 + length;
  }
  const utf8 = new TextEncoder(); // gives a lone surrogate the bytes of U+FFFD, as tiktoken does
  const binary = (text) => Array.from(utf8.encode(text), (byte) => String.fromCharCode(byte)).join("");
  for (const [name, id] of Object.entries(special)) byId[id] = binary(name);
  const split = new RegExp(translated(pattern), "gu");
  const known = new Map(); // pieces and their ids, so that a text that is typed on is not merged anew
  const idsOf = (piece) => {
    if (known.size > KEPT_PIECES) known.clear();
    if (!known.has(piece)) known.set(piece, merged(binary(piece), ranks));
    return known.get(piece);
  };
  const bytes = (id) => Uint8Array.from(byId[id] ?? binary("\ufffd"), (character) => character.charCodeAt(0));

  return {
    vocabSize: byId.length,
    endOfText: special["<|endoftext|>"],
    bytes, // of an id that no token has, those of U+FFFD, as Tokenizer.decode
    encode: (text) => (text.match(split) ?? []).flatMap(idsOf),
    label: (id) => (byId[id] === undefined ? `<${id}>` : escaped(bytes(id))),
  };
}

const NONE = 2 ** 31 - 1; // the rank of two neighbours that are no token together

// The ids of one piece's bytes. Of all neighbours that are a token together, those with the lowest id become it, the
// first of them first, again and again. One pass merges all of the same id, or until there is a lower one.
function merged(text, ranks) {
  const whole = ranks.get(text);
  if (whole !== undefined) return [whole];
  let count = text.length; // of tokens so far
  const starts = Int32Array.from({ length: count + 1 }, (_, i) => i);
  const rank = (start, end) => ranks.get(text.slice(start, end)) ?? NONE;
  const pairs = Int32Array.from({ length: count }, (_, i) => (i + 1 < count ? rank(i, i + 2) : NONE)); // with the next
  for (;;) {
    const lowest = pairs.subarray(0, count).reduce((least, one) => Math.min(least, one), NONE);
    if (lowest === NONE) break;
    let [kept, merging] = [0, true];
    for (let i = 0; i < count; kept++) {
      starts[kept] = starts[i];
      if (!merging || pairs[i] !== lowest) {
        pairs[kept] = pairs[i++];
        continue;
      }
      pairs[kept] = i + 2 < count ? rank(starts[i], starts[i + 3]) : NONE;
      if (kept) pairs[kept - 1] = rank(starts[kept - 1], starts[i + 2]);
      merging = pairs[kept] > lowest && (!kept || pairs[kept - 1] > lowest);
      i += 2;
    }
    starts[kept] = text.length;
    count = kept;
  }
  return Array.from({ length: count }, (_, i) => ranks.get(text.slice(starts[i], starts[i + 1])));
}

// A pattern of Rust's regular expressions as one of JavaScript's.
function translated(pattern) {
  const bothCases = (letter) => `${letter}${letter.toUpperCase()}${letter === "s" ? "\u017f" : ""}`;
  const eitherCase = (one, set = one) => `[${set.replace(/[a-z]/g, bothCases)}]`;
  return pattern
    .replace(/\(\?i:([^)]*)\)/g, (_, body) => `(?:${body.replace(/\[([a-z]+)\]|[a-z]/g, eitherCase)})`)
    // A quantifier that never gives back what it took: in the patterns of tokenizers what follows could not use it
    // anyway.
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
export function decoded(bytes) {
  try {
    return decoder.decode(bytes);
  } catch {
    return null;
  }
}
