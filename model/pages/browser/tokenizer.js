// Text <-> token ids, as in data/tokenizers.py: bytes, and byte-pair encodings as in tiktoken.

import { recent } from "browser/recent.js";

const KEPT_PIECES = 10000;

// stored: { pattern, tokens, special_tokens } from Tokenizer.to_dict. Bytes are strings of characters below 256 here,
// so that they can be keys of a Map.
export function createTokenizer({ pattern, tokens, special_tokens: special }) {
  const byId = tokens.split("\n").map((line) => (line ? atob(line) : undefined)); // undefined: no token has this id
  const ranks = new Map(); // a token's bytes -> its id
  byId.forEach((token, id) => token && ranks.set(token, id));
  const utf8 = new TextEncoder(); // writes a lone surrogate as U+FFFD, as tiktoken does
  const binary = (text) => Array.from(utf8.encode(text), (byte) => String.fromCharCode(byte)).join("");
  for (const [name, id] of Object.entries(special)) byId[id] = binary(name);
  const split = new RegExp(translated(pattern), "gu");
  const cached = recent(KEPT_PIECES); // so that a typed letter does not merge the whole text again
  const idsOf = (piece) => cached(piece, () => merged(binary(piece), ranks));
  const bytes = (id) => Uint8Array.from(byId[id] ?? binary("\ufffd"), (character) => character.charCodeAt(0));

  return {
    endOfText: special["<|endoftext|>"],
    bytes, // for an id that no token has, those of U+FFFD, as in Tokenizer.decode
    encode: (text) => (text.match(split) ?? []).flatMap(idsOf),
    label: (id) => (byId[id] === undefined ? `<${id}>` : escaped(bytes(id))),
  };
}

// The ids of one piece's bytes. Again and again, of all pairs of neighbours that are a token together, the pair with
// the lowest id becomes that token; of several such pairs, the first.
function merged(text, ranks) {
  if (ranks.has(text)) return [ranks.get(text)];
  const parts = [...text];
  const rank = (i) => (i + 1 < parts.length ? ranks.get(parts[i] + parts[i + 1]) : undefined) ?? Infinity;
  const pairs = parts.map((_, i) => rank(i)); // the id of each part together with the next
  for (;;) {
    const lowest = pairs.reduce((a, b) => Math.min(a, b));
    if (lowest === Infinity) return parts.map((part) => ranks.get(part));
    // One search for the lowest id serves all pairs with it, unless a merge makes a lower id, or the same further left.
    for (let i = pairs.indexOf(lowest); i >= 0; i = pairs.indexOf(lowest, i)) {
      parts.splice(i, 2, parts[i] + parts[i + 1]);
      pairs.splice(i, 1);
      pairs[i] = rank(i);
      if (i) pairs[i - 1] = rank(i - 1);
      if (Math.min(pairs[i], pairs[i - 1] ?? Infinity) <= lowest) break;
    }
  }
}

// Translates a pattern of Rust's regular expressions to JavaScript's.
function translated(pattern) {
  const bothCases = (letter) => `${letter}${letter.toUpperCase()}${letter === "s" ? "\u017f" : ""}`;
  const eitherCase = (letters, set = letters) => `[${set.replace(/[a-z]/g, bothCases)}]`;
  return pattern
    .replace(/\(\?i:([^)]*)\)/g, (_, body) => `(?:${body.replace(/\[([a-z]+)\]|[a-z]/g, eitherCase)})`)
    // Possessive quantifiers become greedy: in tokenizers' patterns, what follows could not use what they give back.
    .replace(/([+?*]|\{\d+(?:,\d*)?\})\+/g, "$1")
    .replaceAll("\\s", "\\p{White_Space}") // JavaScript's \s has U+FEFF but not U+0085
    .replaceAll("\\S", "\\P{White_Space}");
}

// Bytes as text for people; bytes that are only part of a character are escaped, such as \xe2.
function escaped(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; ) {
    const length = [1, 2, 3, 4].find((n) => i + n <= bytes.length && decoded(bytes.subarray(i, i + n)) !== null);
    text += length ? decoded(bytes.subarray(i, i + length)) : `\\x${bytes[i].toString(16).padStart(2, "0")}`;
    i += length ?? 1;
  }
  return text;
}

const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

// Bytes decoded as UTF-8, null if they are not valid.
export function decoded(bytes) {
  try {
    return decoder.decode(bytes);
  } catch {
    return null;
  }
}
