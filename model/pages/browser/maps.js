// Reads packed weights, and draws them as maps on a canvas. Nothing here depends on the step or head that is shown.

import { css } from "browser/elements.js";
import { triangle } from "browser/weights.js";
import { visible } from "browser/words.js";

const MAX_CELL = 56; // pixels
const LABEL_PITCH = 12; // pixels from one label to the next: closer labels would touch
const FONT = "11px ui-monospace, 'DejaVu Sans Mono', monospace";
export const PAD = 6; // pixels above a map: the first label may be taller than its row

// Weights are lower triangles of bytes 255 sqrt(p), one head after another.
export const ofHead = (weights, head, length) =>
  weights.subarray(head * triangle(length), (head + 1) * triangle(length));
export const byteAt = (map, query, key) => (key > query ? 0 : map[triangle(query) + key]);
// The weight that a head gives in a reading. exact: the weights of one query, if the running model read the text.
export const weightOf = ({ weights, labels, exact }, head, query, key) => (exact?.query === query
  ? exact.weights[head][key] ?? 0
  : (byteAt(ofHead(weights, head, labels.length), query, key) / 255) ** 2);

// `count` colours along a ramp, as numbers for the Uint32Array of an ImageData.
function ramp(stops, count) {
  const channels = stops.map((stop) => [1, 3, 5].map((i) => parseInt(stop.slice(i, i + 2), 16)));
  return Uint32Array.from({ length: count }, (_, i) => {
    const place = (i / (count - 1)) * (stops.length - 1);
    const left = Math.min(Math.floor(place), stops.length - 2);
    const [r, g, b] = channels[left].map((c, j) => Math.round(c + (channels[left + 1][j] - c) * (place - left)));
    return (255 << 24) | (b << 16) | (g << 8) | r;
  });
}

// stops: { weights: colours from 0 to 1, differences: colours from -1 to 1 }. A colour depends on the square root of a
// weight, because most of a head's weights are below 0.1. `weights` is indexed by the bytes of a map, 255 sqrt(p).
export function palette(stops) {
  const spread = ramp(stops.differences, 511);
  const difference = (d) => spread[255 + Math.round(255 * Math.sign(d) * Math.sqrt(Math.abs(d)))];
  return { weights: ramp(stops.weights, 256), difference };
}

const channelsOf = (colour) => [0, 8, 16].map((bits) => (colour >> bits) & 255);
export const rgb = (colour) => `#${channelsOf(colour).map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;

// White or black, for text on a colour: at this relative luminance, both have a contrast of 4.6.
export function inkOn(colour) {
  const [r, g, b] = channelsOf(colour).map((byte) => (byte / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b < 0.18 ? "#ffffff" : "#000000";
}

export function fitCanvas(canvas, width, height) {
  const [wide, high] = [Math.round(width * devicePixelRatio), Math.round(height * devicePixelRatio)];
  if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d");
  context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

export function layout(context, width, height, labels) {
  context.font = FONT;
  const texts = labels.map((label) => visible(label, 8));
  const room = Math.min(Math.ceil(Math.max(...texts.map((text) => context.measureText(text).width))) + 6, width / 3);
  const fit = Math.min(MAX_CELL, Math.max(40, Math.min(width - room - 2, height - room - PAD)) / labels.length);
  // Squares have whole pixels, unless that makes the map more than 15% smaller.
  const whole = Math.floor(fit * devicePixelRatio) / devicePixelRatio;
  const cell = whole > 0.85 * fit ? whole : fit;
  const side = cell * labels.length;
  const size = { side, wide: room + side + 1, high: PAD + side + room };
  return { texts, room, cell, ...size, stride: Math.ceil(LABEL_PITCH / cell), length: labels.length };
}

// Draws a map into a canvas of the geometry's size, wide x high. colourOf: function of (query, key).
export function drawMap(context, geometry, colourOf) {
  const { texts, room, cell, side, stride, length } = geometry;
  const squares = new OffscreenCanvas(length, length);
  const image = new ImageData(length, length);
  const pixels = new Uint32Array(image.data.buffer);
  for (let query = 0; query < length; query++)
    for (let key = 0; key < length; key++) pixels[query * length + key] = colourOf(query, key);
  squares.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = cell * devicePixelRatio < 1;
  context.drawImage(squares, room, PAD, side, side);
  context.strokeStyle = css("line");
  context.lineWidth = 1;
  context.strokeRect(room + 0.5, PAD + 0.5, side - 1, side - 1);
  context.fillStyle = css("ink");
  for (let i = 0; i < length; i += stride)
    for (const axis of ["query", "key"]) drawLabel(context, geometry, axis, i, texts[i]);
}

// Draws a token's label beside its row, or turned below its column. A background, { back, ink }, makes it stand out and
// hides what is behind it.
export function drawLabel(context, { room, cell, side }, axis, index, text, background) {
  const middle = (index + 0.5) * cell;
  context.save();
  context.font = FONT;
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.translate(...(axis === "query" ? [room - 4, PAD + middle] : [room + middle, PAD + side + 4]));
  if (axis === "key") context.rotate(-Math.PI / 2);
  if (background) {
    const wide = Math.min(context.measureText(text).width, room - 5) + 6;
    for (const [colour, width] of [[css("panel"), room - 1], [background.back, wide]]) {
      context.fillStyle = colour;
      context.fillRect(3 - width, -7.5, width, 15);
    }
    context.fillStyle = background.ink;
  }
  context.fillText(text, 0, 0.5, room - 5);
  context.restore();
}

// Shrinks a map of many tokens: each pixel shows the largest of its weights, because a mean would fade thin diagonals.
export function shrink(map, length, factor, colours, image) {
  const pixels = new Uint32Array(image.data.buffer);
  const strongest = new Uint8Array(pixels.length);
  for (let query = 0, i = 0; query < length; query++) {
    const row = Math.floor(query / factor) * image.width;
    for (let key = 0; key <= query; key++, i++) {
      const place = row + Math.floor(key / factor);
      if (map[i] > strongest[place]) strongest[place] = map[i];
    }
  }
  for (let i = 0; i < pixels.length; i++) pixels[i] = colours[strongest[i]];
}
