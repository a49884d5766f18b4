// What can be taken away: maps as SVG or PNG, numbers as CSV. Nothing here reads the page; colours and texts are given.

const LABEL_PITCH = 10; // pixels from one token label to the next, as in images.py
const FONT = 9; // pixels
const PNG_SCALE = 3; // pixels of the picture for each of the drawing
const MAX_PIXELS = 12_000; // of a side of a picture: browsers refuse much more

const escapeXml = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
const text = (x, y, content, more = "") => `<text x="${x}" y="${y}" ${more}>${escapeXml(content)}</text>`;

// One picture of the panes side by side, each with its tokens, axis names and colour bar.
// panes: [{ title, colour(query, key): a CSS colour, or null to leave the square white, ramp: { colours, ticks: [[place in 0..1, text]] } }].
export function mapsSvg(title, labels, panes) {
  const length = labels.length;
  const cell = Math.max(LABEL_PITCH, Math.min(40, Math.floor(400 / length)));
  const side = cell * length;
  const room = Math.ceil(Math.max(...labels.map((label) => label.length)) * 0.61 * FONT) + 8;
  const [left, top, pane] = [room + 24, 64, room + side + 110];
  const [wide, high] = [Math.max(panes.length * pane + 20, 9 * title.length + 40), top + side + room + 30];
  const drawn = panes.map((one, i) => `<g transform="translate(${i * pane + left} ${top})">${map(one, labels, cell, side, room)}</g>`);
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${wide}" height="${high}" viewBox="0 0 ${wide} ${high}"`,
    'font-family="system-ui, sans-serif" fill="#191d23">',
    `<rect width="${wide}" height="${high}" fill="#ffffff"/>`,
    text(16, 28, title, 'font-size="15" font-weight="600"'),
    ...drawn,
    "</svg>",
  ].join("\n");
}

function map({ title, colour, ramp }, labels, cell, side, room) {
  const parts = [text(0, -10, title, 'font-size="12" fill="#444444"'), '<g shape-rendering="crispEdges">'];
  for (let query = 0; query < labels.length; query++)
    for (let key = 0; key <= query; key++) {
      const fill = colour(query, key);
      if (fill) parts.push(`<rect x="${key * cell}" y="${query * cell}" width="${cell}" height="${cell}" fill="${fill}"/>`);
    }
  parts.push("</g>", `<rect width="${side}" height="${side}" fill="none" stroke="#b8bcc4"/>`);
  parts.push(`<g font-family="'DejaVu Sans Mono', monospace" font-size="${FONT}" text-anchor="end">`);
  labels.forEach((label, i) => {
    const middle = (i + 0.5) * cell + FONT / 3;
    parts.push(text(-4, middle, label), text(-4, 0, label, `transform="translate(${middle} ${side}) rotate(-90)"`));
  });
  const name = 'font-size="11" text-anchor="middle" fill="#444444"';
  parts.push("</g>", text(side / 2, side + room + 16, "key: the token that is read", name));
  parts.push(text(0, 0, "query: the token that reads", `transform="translate(${-room - 8} ${side / 2}) rotate(-90)" ${name}`));
  parts.push(`<g transform="translate(${side + 18} 0)">${bar(ramp, Math.min(side, 220))}</g>`);
  return parts.join("\n");
}

function bar({ colours, ticks }, high) {
  const slice = high / colours.length;
  const slices = colours.map((fill, i) => `<rect y="${high - (i + 1) * slice}" width="12" height="${slice + 0.5}" fill="${fill}"/>`);
  const marks = ticks.map(([place, label]) => text(17, (1 - place) * high + 4, label, 'font-size="10"'));
  return [...slices, `<rect width="12" height="${high}" fill="none" stroke="#b8bcc4"/>`, ...marks].join("");
}

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

export async function downloadPng(name, svg) {
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  await image.decode();
  const scale = Math.min(PNG_SCALE, MAX_PIXELS / Math.max(image.width, image.height));
  const canvas = Object.assign(document.createElement("canvas"), { width: image.width * scale, height: image.height * scale });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  downloadBlob(name, await new Promise((done) => canvas.toBlob(done, "image/png")));
}

function downloadBlob(name, blob) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
