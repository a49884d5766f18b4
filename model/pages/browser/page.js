// The page of attention maps. Each of the first imports adds a view (see render.js).

import "browser/controls.js";
import "browser/badges.js";
import "browser/heads.js";
import "browser/large-map.js";
import "browser/shaded-text.js";
import "browser/sentences.js";
import "browser/score-card.js";
import "browser/curves.js";
import "browser/measurements.js";
import "browser/ablation.js";
import { recorded } from "browser/blocks.js";
import { $, element } from "browser/elements.js";
import { start } from "browser/render.js";
import { data } from "browser/state.js";

const BROWSERS = $("browsers").textContent; // that can show this page

if (typeof DecompressionStream === "undefined") {
  $("notes").textContent = `This browser is too old to show the maps. ${BROWSERS} can.`;
} else {
  $("notes").replaceChildren(...data.notes.map((textContent) => element("p", { textContent })));
  start(recorded);
}
