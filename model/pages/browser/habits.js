// What a head does on a text that a person has typed, from its map alone: by the limits of describe.py, with those
// patterns of heads.py that need no more than the tokens.

import { weightAt } from "browser/maps.js";
import { percent } from "browser/words.js";

// The keys that a query would look at.
const copies = (tokens, query) => [...tokens.keys()].filter((key) => key < query && tokens[key] === tokens[query]);
const PATTERNS = {
  previous_token: (tokens, query) => [query - 1],
  current_token: (tokens, query) => [query],
  sink: () => [0],
  duplicate: copies,
  induction: (tokens, query) => copies(tokens, query).map((key) => key + 1).filter((key) => key < query),
};

const mean = (values) => values.reduce((sum, one) => sum + one, 0) / values.length; // NaN of none
const timesLog = (x, y) => (x > 0 ? x * Math.log(y) : 0);

// How much a head follows a pattern: the mean share of its weight, and what that says about where it looks, in nats (KL
// divergence from uniform attention); 0 where that is too little for a name.
function follow(map, tokens, keysOf, window) {
  const queries = [...tokens.keys()].map((query) => {
    const keys = keysOf(tokens, query).filter((key) => query - key < window);
    return { query, keys, seen: Math.min(query + 1, window) };
  });
  const choosing = queries.filter(({ keys, seen }) => keys.length && keys.length < seen);
  const uniform = mean(choosing.map(({ keys, seen }) => keys.length / seen));
  const weight = ({ query, keys }) => keys.reduce((sum, key) => sum + weightAt(map, query, key), 0);
  const share = Math.min(1, mean(choosing.map(weight)));
  const nats = timesLog(share, share / uniform) + timesLog(1 - share, (1 - share) / (1 - uniform));
  return { share, nats: share > uniform + (1 - uniform) / 3 ? nats : 0 };
}

// The pattern that says most, "" if there is none. map: bytes (see maps.js). scores: as the page has them, by their
// names. window: how many keys a query sees at most, null for all.
export function habitInWords(map, tokens, scores, window) {
  const patterns = Object.entries(PATTERNS).map(([name, keysOf]) =>
    ({ words: scores[name].meaning, ...follow(map, tokens, keysOf, window ?? Infinity) }));
  const { words, share, nats } = patterns.reduce((most, one) => (one.nats > most.nats ? one : most));
  return nats ? `${words} (${percent(share)} of its weight)` : "";
}
