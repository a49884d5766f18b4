// Axes, places and shapes of charts.

// Adds an SVG element.
export function shape(parent, name, attributes, textContent = "") {
  const node = Object.assign(document.createElementNS("http://www.w3.org/2000/svg", name), { textContent });
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  parent.append(node);
  return node;
}

// Round numbers, about `count` of them, from `low` to `high`.
export function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.7);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}

// The number of columns for `count` charts in `width` pixels, so that none is alone in the last row unless all are.
export function chartColumns(count, width, wide = 300, narrow = 190) {
  const fits = (columns, least) => columns <= count && width / columns >= least;
  const even = (columns) => count % columns !== 1;
  for (let columns = count; columns > 1; columns--) if (fits(columns, wide) && even(columns)) return columns;
  for (let columns = 2; columns <= count; columns++) if (fits(columns, narrow) && even(columns) && width >= 2 * wide) return columns;
  return 1;
}
