// What the model is without a part, as it was measured at each step: numbers on the thumbnails, and a table.

import { ablationRows, drawAblation, withoutHead } from "browser/ablation.js";
import { $, element } from "browser/elements.js";
import { thumbs } from "browser/heads.js";
import { probeName, save, titleOf } from "browser/measurements.js";
import { addView, shown } from "browser/render.js";
import { placeOf } from "browser/state.js";
import { signed } from "browser/words.js";

for (const thumb of thumbs) thumb.append(element("span", { className: "without" }));

function drawNumbers() {
  $("number-note").hidden = !shown.capture.ablation;
  for (const [head, thumb] of thumbs.entries()) {
    const change = withoutHead(shown.capture, probeName(), placeOf(head));
    const number = thumb.lastChild;
    number.hidden = change === null;
    if (change === null) continue;
    number.textContent = signed(change);
    thumb.setAttribute("aria-label", `${thumb.getAttribute("aria-label")}, loss without it ${signed(change)} nats per token`);
  }
}

function drawTable() {
  const found = shown.sides;
  $("ablation").hidden = !found.some(({ capture }) => capture.ablation || capture.copying);
  if (!$("ablation").hidden) drawAblation($("ablations"), found.map(({ capture }) => capture), found.map(titleOf), placeOf(shown.head));
}

$("ablation-csv").addEventListener("click", () => save("ablation", ({ capture }) => ablationRows(capture)));
addView(drawNumbers);
addView(drawTable);
