// What can be taken away: numbers as CSV, and pictures as PNG.

// Rows as CSV (RFC 4180). rows: objects with the columns as names; what is null or absent becomes an empty cell.
export function csv(columns, rows) {
  const cell = (value) => (/[",\r\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
  const lines = [columns, ...rows.map((row) => columns.map((column) => row[column]))];
  return lines.map((cells) => `${cells.map(cell).join(",")}\r\n`).join("");
}

// The squares on and below the diagonal. values: { column: its function of (query, key) }.
export function mapRows(labels, values) {
  const rows = [];
  for (let query = 0; query < labels.length; query++)
    for (let key = 0; key <= query; key++) {
      const row = { query, query_token: labels[query], key, key_token: labels[key] };
      for (const [column, value] of Object.entries(values)) row[column] = Number(value(query, key).toFixed(4));
      rows.push(row);
    }
  return rows;
}

// Every score of every head at every capture.
export const scoreRows = (runs, names) =>
  runs.flatMap(({ name: run, captures }) => captures.flatMap(({ step, scores, copying }) =>
    scores[names[0]].flatMap((heads, layer) => heads.map((_, head) => {
      const ofHead = Object.fromEntries(names.map((name) => [name, scores[name][layer][head]]));
      return { run, step, layer, head, copying: copying?.[layer][head], ...ofHead };
    }))));

export const downloadCsv = (name, columns, rows) =>
  downloadBlob(name, new Blob([csv(columns, rows)], { type: "text/csv" }));

export const downloadPng = (name, canvas) => canvas.toBlob((blob) => downloadBlob(name, blob), "image/png");

function downloadBlob(name, blob) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
