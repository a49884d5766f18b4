// What was recorded, from the elements of the file: for each step gzip blocks of the maps of each text, of other
// measurements, and of what the heads do; each is decoded when it is first shown.

import { $ } from "browser/elements.js";
import { recent } from "browser/recent.js";
import { mapped, RUN } from "browser/state.js";
import { bytesOf } from "browser/weights.js";

const known = recent(120); // blocks by their number

const unpacked = (number, form) => known(number, () => {
  const bytes = bytesOf(JSON.parse($(`block-${number}`).textContent));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")))[form]();
});

// What each head does, see describe.py: [L][H].
export const descriptionsOf = (at) => unpacked(mapped[at].descriptions, "json");

// What `render` shows of a recorded text.
export async function readRecorded({ textName }, at) {
  const number = RUN.probes.findIndex(({ name }) => name === textName);
  const { blocks, details: measured } = mapped[at];
  const asked = [unpacked(blocks[number], "arrayBuffer"), unpacked(measured, "json"), descriptionsOf(at)];
  const [maps, readings, descriptions] = await Promise.all(asked);
  const { parts, sublayers, tokens, top, top_probability: probabilities } = readings[textName];
  const details = { parts, sublayers, tokens, probes: readings };
  const next = top.at(-1).map((id, place) => [id, probabilities.at(-1)[place]]);
  return { weights: new Uint8Array(maps), details, descriptions, labels: RUN.probes[number].labels, next };
}
