// What was recorded, from the elements of the file: for each step gzip blocks of the maps of each text, of other
// measurements, and of what the heads do; each is unpacked when it is first shown.

import { $ } from "browser/elements.js";
import { recent } from "browser/recent.js";
import { keepInHistory, RUN, stepOf } from "browser/state.js";
import { bytesOf } from "browser/weights.js";

// By their packed text. A page that is loaded again has those that were shown last at once, and so a whole first frame.
const blocks = new Map(history.state?.blocks);
const known = recent(120, blocks);

function unpacked(kind, at, form) {
  const packed = $(`block-${kind}-${stepOf(at)}`).textContent;
  return known(packed, async () => {
    const stream = new Blob([bytesOf(packed)]).stream().pipeThrough(new DecompressionStream("gzip"));
    const block = await new Response(stream)[form]();
    blocks.set(packed, block);
    return block;
  });
}

addEventListener("beforeunload", () => // six are those of two steps
  keepInHistory({ blocks: [...blocks].filter(([, block]) => !(block instanceof Promise)).slice(-6) }));

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
