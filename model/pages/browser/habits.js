// What a head does on one text, from its map alone: for a text that a person has typed. (What a head does on many texts
// is measured when the page is made, see describe.py.)

import { triangle, weightAt } from "browser/maps.js";
import { listed, percent } from "browser/words.js";

export const LEAST_TOKENS = 32; // of a text that is long enough to tell
const CLEAR = 0.2; // the smallest mean share of its attention that a sentence names
const QUERIES = 8; // the fewest that a share is a mean of
const UNEVEN = 1.5; // times more in one half of the text than in the other, from which on both are named

// How the keys of a habit are named, and whether a query has such a key: (query, key, labels) -> boolean.
const HABITS = [
  ["the token just before", (query, key) => key === query - 1],
  ["the token itself", (query, key) => key === query],
  ["the first token", (query, key) => key === 0 && query > 1],
  [
    "what followed the same token earlier",
    (query, key, labels) => key > 0 && key < query && labels[key - 1] === labels[query],
  ],
  ["the same token earlier", (query, key, labels) => key < query && labels[key] === labels[query]],
];
const backBy = (distance) => [`exactly ${distance} tokens back`, (query, key) => key === query - distance];

// Null of too few.
const mean = (values) => (values.length < QUERIES ? null : values.reduce((sum, one) => sum + one) / values.length);

// map: bytes of a head (see maps.js). Its habits that are clear, clearest first: { name, share, halves }, each the mean
// weight that a query gives to such keys, over the queries that have one.
function habitsOf(map, labels) {
  const length = labels.length;
  const distances = Array.from({ length: Math.floor(length / 2) - 1 }, (_, i) => backBy(i + 2));
  const found = [...HABITS, ...distances].map(([name, fits]) => {
    const [uniform, first, second] = [[], [], []]; // of the queries that have such keys, and of those in each half
    for (let query = 1; query < length; query++) {
      const keys = Array.from({ length: query + 1 }, (_, key) => key).filter((key) => fits(query, key, labels));
      if (!keys.length) continue;
      uniform.push(keys.length / (query + 1));
      (query < length / 2 ? first : second).push(keys.reduce((sum, key) => sum + weightAt(map, query, key), 0));
    }
    return { name, uniform: mean(uniform), share: mean([...first, ...second]), halves: [mean(first), mean(second)] };
  });
  const clear = found.filter(({ share, uniform }) => share >= CLEAR && share > 2 * uniform);
  return clear.sort((one, two) => two.share - two.uniform - (one.share - one.uniform)).slice(0, 2);
}

// Over how many tokens a query's attention is spread: the exponential of its entropy, and the mean over the queries.
function spread(map, length) {
  let sum = 0;
  for (let query = 0; query < length; query++) {
    const weights = Array.from(map.subarray(triangle(query), triangle(query + 1)), (byte) => (byte / 255) ** 2);
    sum += Math.exp(-weights.reduce((total, weight) => total + (weight && weight * Math.log(weight)), 0));
  }
  return sum / length;
}

function habitInWords({ name, share, halves: [first, second] }) {
  const uneven = first !== null && second !== null && Math.max(first, second) > UNEVEN * Math.min(first, second);
  const halves = ` (${percent(first)} in the first half of the text, ${percent(second)} in the second)`;
  return `${percent(share)} to ${name}${uneven ? halves : ""}`;
}

export function habitsInWords(map, labels) {
  const habits = habitsOf(map, labels);
  if (habits.length) return `gives ${listed(habits.map(habitInWords))}`;
  return `spreads its attention over about ${Math.round(spread(map, labels.length))} tokens`;
}
