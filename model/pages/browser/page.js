// The page of attention maps. Each of the first imports adds a view (see render.js).

import "browser/controls.js";
import "browser/heads.js";
import "browser/large-map.js";
import "browser/shaded-text.js";
import "browser/sentences.js";
import "browser/scores.js";
import "browser/curves.js";
import "browser/measurements.js";
import { $, element } from "browser/elements.js";
import { recent } from "browser/recent.js";
import { addView, shown, start } from "browser/render.js";
import { data, mapped, PROBES } from "browser/state.js";
import { bytesOf } from "browser/weights.js";

// ---- whether the maps can be trusted: two badges in the header

const BADGES = [
  ["fidelity", "faithful", "maps verified", "maps are not what the model computes"],
  ["causality", "causal", "cannot see the future", "the future leaks"],
];

addView(function drawBadges() {
  const number = (x) => (x === null ? "not a number" : x === 0 ? "0" : x.toExponential(1));
  for (const [error, verdict, good, bad] of BADGES) {
    const wrong = shown.sides.filter(({ snapshot }) => !snapshot[verdict]);
    const where = shown.other && wrong.length ? ` (${wrong.map(({ name }) => name).join(", ")})` : "";
    const problem = wrong.every(({ snapshot }) => snapshot.repeatable) ? bad : "random in eval mode";
    const textContent = wrong.length ? `✗ ${problem}${where}` : `✓ ${good}`;
    const figureOf = ({ label, snapshot: { checks } }) => `${label}${number(checks[error])} in ${checks.precision}`;
    const figures = shown.sides.map(figureOf).join(", ");
    const ariaLabel = `${textContent}, ${error} ${figures}; opens the help`;
    Object.assign($(error), { textContent, ariaLabel, className: `badge ${wrong.length ? "bad" : "good"}` });
    $(`${error}-figures`).textContent = `Here: ${figures}.`;
  }
});

// ---- what was recorded, from the elements of the file: one gzip block of maps a probe and step, one of other
// measurements a step, each decoded when it is first shown

const known = recent(120); // blocks by their number

// What `render` shows of a snapshot.
async function recorded({ probe }, at, run) {
  const { blocks, details: number } = mapped[run][at];
  const [maps, details] = await Promise.all([unpacked(blocks[probe], "arrayBuffer"), unpacked(number, "json")]);
  const { descriptions } = details;
  return { weights: new Uint8Array(maps), details, descriptions, labels: PROBES[probe].labels };
}

const unpacked = (number, form) => known(number, () => {
  const bytes = bytesOf(JSON.parse($(`block-${number}`).textContent));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")))[form]();
});

if (typeof DecompressionStream === "undefined") {
  $("notes").textContent = `This browser is too old to show the maps. ${$("browsers").textContent} can.`;
} else {
  $("notes").replaceChildren(...data.notes.map((textContent) => element("p", { textContent })));
  start(recorded);
}
