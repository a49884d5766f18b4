// What can be taken away: numbers as CSV, and pictures as PNG.

// Rows of cells as CSV (RFC 4180). null and undefined become empty cells.
export function csv(rows) {
  const cell = (value) => (/[",\r\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
  return rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

// The squares on and below the diagonal. panes: [{ name, value(query, key) }].
export function mapRows(labels, panes) {
  const rows = [["query", "query_token", "key", "key_token", ...panes.map(({ name }) => name)]];
  for (let query = 0; query < labels.length; query++)
    for (let key = 0; key <= query; key++)
      rows.push([query, labels[query], key, labels[key], ...panes.map(({ value }) => Number(value(query, key).toFixed(4)))]);
  return rows;
}

// Every score of every head at every capture. runs: [{ name, captures: [{ step, scores: { name: layers x heads } }] }].
export function scoreRows(runs, names) {
  const rows = [["run", "step", "layer", "head", ...names]];
  for (const { name, captures } of runs)
    for (const { step, scores } of captures)
      scores[names[0]].forEach((heads, layer) =>
        heads.forEach((_, head) => rows.push([name, step, layer, head, ...names.map((one) => scores[one][layer][head])])));
  return rows;
}

export const download = (name, content, type) => downloadBlob(name, new Blob([content], { type }));

export const downloadPng = (name, canvas) => canvas.toBlob((blob) => downloadBlob(name, blob), "image/png");

function downloadBlob(name, blob) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
