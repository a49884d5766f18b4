// Maps that hold what was used last.

// Sets a key of a map to a value, and returns that. Of more than `most` keys the one that was set longest ago goes.
export function keep(map, key, value, most) {
  map.delete(key); // and added again at the end, to keep the order of last use
  map.set(key, value);
  if (map.size > most) map.delete(map.keys().next().value);
  return value;
}
