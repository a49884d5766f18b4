// A function that gives what `make` gives for a key, and keeps it for the `most` keys that were asked for last.
export function recent(most, kept = new Map()) {
  return (key, make) => {
    const value = kept.has(key) ? kept.get(key) : make();
    kept.delete(key); // and added again at the end, to keep the order of last use
    kept.set(key, value);
    if (kept.size > most) kept.delete(kept.keys().next().value);
    return value;
  };
}
