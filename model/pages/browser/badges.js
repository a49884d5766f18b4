// Whether the maps can be trusted: two badges in the header.

import { $ } from "browser/elements.js";
import { addView, shown } from "browser/render.js";

const BADGES = [
  ["fidelity", "faithful", "maps verified", "maps are not what the model computes"],
  ["causality", "causal", "cannot see the future", "the future leaks"],
];

addView(function drawBadges() {
  const number = (x) => (x === null ? "not a number" : x === 0 ? "0" : x.toExponential(1));
  for (const [error, verdict, good, bad] of BADGES) {
    const wrong = shown.sides.filter(({ capture }) => !capture[verdict]);
    const where = shown.other && wrong.length ? ` (${wrong.map(({ name }) => name).join(", ")})` : "";
    const textContent = wrong.length ? `✗ ${bad}${where}` : `✓ ${good}`;
    const figureOf = ({ label, capture }) => `${label}${number(capture[error])} in ${capture.precision}`;
    const figures = shown.sides.map(figureOf).join(", ");
    const ariaLabel = `${textContent}, ${error} ${figures}; opens the help`;
    Object.assign($(error), { textContent, ariaLabel, className: `badge ${wrong.length ? "bad" : "good"}` });
    $(`${error}-figures`).textContent = `Here: ${figures}.`;
  }
});
