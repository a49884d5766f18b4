// Text <-> token ids, the same as data/tokenizers.py gives: bytes, and byte-pair encodings as tiktoken has them.

import { recent } from "browser/recent.js";

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
  const known = recent(KEPT_PIECES); // so that a text that is typed on is not merged anew
  const idsOf = (piece) => known(piece, () => merged(binary(piece), ranks));
  const bytes = (id) => Uint8Array.from(byId[id] ?? binary("\ufffd"), (character) => character.charCodeAt(0));

  return {
    endOfText: special["<|endoftext|>"],
    bytes, // of an id that no token has, those of U+FFFD, as Tokenizer.decode
    encode: (text) => (text.match(split) ?? []).flatMap(idsOf),
    label: (id) => (byId[id] === undefined ? `<${id}>` : escaped(bytes(id))),
  };
}

// The ids of one piece's bytes. Of all neighbours that are a token together, those with the lowest id become it, the
// first of them first, again and again.
function merged(text, ranks) {
  if (ranks.has(text)) return [ranks.get(text)];
  const parts = [...text];
  const rank = (i) => (i + 1 < parts.length ? ranks.get(parts[i] + parts[i + 1]) : undefined) ?? Infinity;
  const pairs = parts.map((_, i) => rank(i)); // of each part with the next
  for (;;) {
    const lowest = pairs.reduce((least, one) => Math.min(least, one));
    if (lowest === Infinity) return parts.map((part) => ranks.get(part));
    // One search for the lowest serves all pairs of this id, or until there is a lower one or the same before them.
    for (let i = pairs.indexOf(lowest); i >= 0; i = pairs.indexOf(lowest, i)) {
      parts.splice(i, 2, parts[i] + parts[i + 1]);
      pairs.splice(i, 1);
      pairs[i] = rank(i);
      if (i) pairs[i - 1] = rank(i - 1);
      if (Math.min(pairs[i], pairs[i - 1] ?? Infinity) <= lowest) break;
    }
  }
}

// A pattern of Rust's regular expressions as one of JavaScript's.
function translated(pattern) {
  const bothCases = (letter) => `${letter}${letter.toUpperCase()}${letter === "s" ? "\u017f" : ""}`;
  const eitherCase = (one, set = one) => `[${set.replace(/[a-z]/g, bothCases)}]`;
  return pattern
    .replace(/\(\?i:([^)]*)\)/g, (_, body) => `(?:${body.replace(/\[([a-z]+)\]|[a-z]/g, eitherCase)})`)
    // A quantifier that never gives back what it took: in tokenizers' patterns what follows could not use it anyway.
    .replace(/([+?*]|\{\d+(?:,\d*)?\})\+/g, "$1")
    .replaceAll("\\s", "\\p{White_Space}") // JavaScript's own has U+FEFF but not U+0085
    .replaceAll("\\S", "\\P{White_Space}");
}

// Bytes as text for people to read; what is only part of a character is escaped, such as \xe2.
function escaped(bytes) {
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
