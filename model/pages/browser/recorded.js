// What was recorded, from the elements of the file: for each step gzip blocks of the maps of each text, of other
// measurements, and of what the heads do; each is decoded when it is first shown.

import { $ } from "browser/elements.js";
import { recent } from "browser/recent.js";
import { RUN, stepOf } from "browser/state.js";
import { bytesOf } from "browser/weights.js";

const known = recent(120); // blocks by their name

const unpacked = (kind, at, form) => known(`${kind}-${stepOf(at)}`, () => {
  const bytes = bytesOf(JSON.parse($(`block-${kind}-${stepOf(at)}`).textContent));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")))[form]();
});

// What each head does, see describe.py: [L][H].
export const descriptionsOf = (at) => unpacked("descriptions", at, "json");

// What `render` shows of a recorded text.
export async function readRecorded({ textName }, at) {
  const { labels } = RUN.probes.find(({ name }) => name === textName);
  const asked = [unpacked(textName, at, "arrayBuffer"), unpacked("details", at, "json"), descriptionsOf(at)];
  const [maps, readings, descriptions] = await Promise.all(asked);
  const { parts, sublayers, tokens } = readings[textName];
  const details = { parts, sublayers, tokens, probes: readings };
  return { weights: new Uint8Array(maps), details, descriptions, labels };
}
