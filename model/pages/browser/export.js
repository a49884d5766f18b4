// What can be taken away: numbers as CSV, and pictures as PNG.

// Rows as CSV (RFC 4180). rows: objects with the columns as names; what is null or absent becomes an empty cell.
export function csv(columns, rows) {
  const cell = (value) => (/[",\r\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
  const lines = [columns, ...rows.map((row) => columns.map((column) => row[column]))];
  return lines.map((cells) => `${cells.map(cell).join(",")}\r\n`).join("");
}

export const downloadCsv = (name, columns, rows) =>
  download(name, new Blob([csv(columns, rows)], { type: "text/csv" }));

export function download(name, blob) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
