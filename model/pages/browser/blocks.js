// What was recorded, from the elements of the file: one gzip block of maps a probe and step, one of other measurements
// a step, each decoded when it is first shown.

import { $ } from "browser/elements.js";
import { keep } from "browser/recent.js";
import { mapped, PROBES } from "browser/state.js";
import { bytesOf } from "browser/weights.js";

const KEPT = 120;
const blocks = new Map();

// What `render` shows of a capture.
export async function recorded({ probe }, at, run) {
  const capture = mapped[run][at];
  const [weights, details] = await Promise.all([kept(capture.blocks[probe], unpack), detailsOf(capture)]);
  return { weights, details, descriptions: details.descriptions, labels: PROBES[probe].labels };
}

// What else was measured at a step.
const detailsOf = ({ details: id }) => kept(id, async () => JSON.parse(new TextDecoder().decode(await unpack(id))));

const kept = (id, unpacked) => keep(blocks, id, blocks.get(id) ?? unpacked(id), KEPT);

// Whether two blocks of maps are equal; not those of a page that holds none.
export const sameBlocks = (one, two) =>
  one !== undefined && $(`block-${one}`).textContent === $(`block-${two}`).textContent;

async function unpack(id) {
  const bytes = bytesOf(JSON.parse($(`block-${id}`).textContent));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
