// Reads what was recorded from elements of the file. Each step has gzip blocks: the maps of each text, its figures, and
// the sentences about heads. A block is unpacked when it is first shown.

import { $ } from "browser/elements.js";
import { recent } from "browser/recent.js";
import { keepInHistory, RUN, stepOf } from "browser/state.js";
import { bytesOf } from "browser/weights.js";

// Blocks by their packed text. A reloaded page finds those that were shown last here, so its first frame is complete.
const blocks = new Map(history.state?.blocks);
const cached = recent(120, blocks);

function unpacked(kind, at, form) {
  const packed = $(`block-${kind}-${stepOf(at)}`).textContent;
  return cached(packed, async () => {
    const stream = new Blob([bytesOf(packed)]).stream().pipeThrough(new DecompressionStream("gzip"));
    const block = await new Response(stream)[form]();
    blocks.set(packed, block);
    return block;
  });
}

addEventListener("beforeunload", () => // six blocks: those of two steps
  keepInHistory({ blocks: [...blocks].filter(([, block]) => !(block instanceof Promise)).slice(-6) }));

// The descriptions of all heads; see describe.py.
export const descriptionsOf = (at) => unpacked("descriptions", at, "json");

// The figures of a text at a step: see `Reading.figures`, and film.py for those of the word.
export const figuresOf = (name, at) => unpacked(`${name}-figures`, at, "json");

// Reads what `render` shows of a recorded text.
export async function readRecorded({ textName }, at) {
  const { labels } = RUN.probes.find(({ name }) => name === textName);
  const requests = [unpacked(textName, at, "arrayBuffer"), figuresOf(textName, at), descriptionsOf(at)];
  const [maps, figures, descriptions] = await Promise.all(requests);
  return { weights: new Uint8Array(maps), figures, descriptions, labels };
}
