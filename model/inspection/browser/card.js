// What the chosen head does: its scores as bars, each with a tick at the value of uniform attention.

import { $, element } from "browser/elements.js";
import { addView, shown } from "browser/render.js";
import { formation, SCORES, written } from "browser/state.js";

function drawCard() {
  const rows = Object.entries(SCORES).flatMap(([score, { label, meaning, uniform }]) => {
    const value = shown.capture.scores[score].flat()[shown.head];
    const filled = element("span", { style: { width: `${100 * value}%` } });
    const tick = element("u", { style: { left: `calc(${100 * uniform}% - 1px)` } });
    const step = formation(shown.run, score, shown.head);
    return [
      element("span", { textContent: label, title: meaning }),
      element("span", { className: "track", title: `${meaning}; uniform attention: ${uniform.toFixed(3)}` }, filled, tick),
      element("span", { textContent: written(value, 3) }),
      element("span", { className: "soft", textContent: step < Infinity ? `formed at ${step}` : "" }),
    ];
  });
  $("card").replaceChildren(...rows);
}

addView(drawCard);
