// A cache: returns a function (key, make) that keeps the results of `make` for the `most` keys used last.
export function recent(most, kept = new Map()) {
  return (key, make) => {
    const value = kept.has(key) ? kept.get(key) : make();
    kept.delete(key); // then set it again at the end: a Map keeps its order
    kept.set(key, value);
    if (kept.size > most) kept.delete(kept.keys().next().value);
    return value;
  };
}
