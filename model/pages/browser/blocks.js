// What was recorded, from the elements of the file: one gzip block of maps a probe and step, one of other measurements
// a step, each decoded when it is first shown.

import { $ } from "browser/elements.js";
import { keep } from "browser/recent.js";
import { mapped, PROBES } from "browser/state.js";
import { bytesOf } from "browser/weights.js";

const KEPT = 120;
const known = new Map(); // blocks by their number

// What `render` shows of a capture.
export async function recorded({ probe }, at, run) {
  const { blocks, details: number } = mapped[run][at];
  const [weights, details] = await Promise.all([kept(blocks[probe], mapsOf), kept(number, detailsOf)]);
  return { weights, details, descriptions: details.descriptions, labels: PROBES[probe].labels };
}

const kept = (number, read) => keep(known, number, known.get(number) ?? read(unpacked(number)), KEPT);
const mapsOf = async (block) => new Uint8Array(await block.arrayBuffer());
const detailsOf = (block) => block.json();

function unpacked(number) {
  const bytes = bytesOf(JSON.parse($(`block-${number}`).textContent));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
}

// Whether two blocks of maps are equal; not those of a page that holds none.
export const sameBlocks = (one, two) =>
  one !== undefined && $(`block-${one}`).textContent === $(`block-${two}`).textContent;
