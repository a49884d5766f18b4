// The scores of the chosen head as bars, each with a tick at the value of uniform attention, and what they mean.

import { $, element, track } from "browser/elements.js";
import { downloadCsv } from "browser/export.js";
import { markOf } from "browser/heads.js";
import { addView, shown } from "browser/render.js";
import {
  ALL_HEADS, data, formation, headName, placeOf, RUNS, SCORES, shortName, tellsSince,
} from "browser/state.js";
import { decimal } from "browser/words.js";

addView(function drawCard() {
  const names = shown.sides.map(({ head }) => (shown.other ? shortName(head) : headName(head)));
  $("card-title").textContent = `Scores of ${names.join(" and ")}`;
  $("card").replaceChildren(...Object.entries(SCORES).flatMap(([score, { is_pattern, label, meaning }]) => [
    element("dt", {}, is_pattern ? markOf(score) : "", ` ${label}`),
    ...shown.sides.map((side) => rowOf(side, score)),
    element("dd", { className: "soft" }, [meaning, ...shown.sides.flatMap((side) => formedIn(side, score))].join("; ")),
  ]));
});

function rowOf({ name, run, capture, head }, score) {
  const value = capture.scores[score].flat()[head];
  return element("dd", { className: `row ${name}` },
    shown.other ? element("span", {}, name) : "",
    track([value], RUNS[run].uniform[score]),
    element("span", {}, decimal(value, 3)));
}

function formedIn({ name, run, head }, score) {
  const step = formation(run, score, head);
  return step < Infinity && tellsSince(run) ? [`${shown.other ? `${name} ` : ""}since\u00a0step\u00a0${step}`] : [];
}

// Every score of every head at every capture.
$("scores-csv").addEventListener("click", () => {
  const rows = RUNS.flatMap(({ name: run, captures }) => captures.flatMap(({ step, scores, copying }) =>
    ALL_HEADS.map((number) => {
      const [layer, head] = placeOf(number);
      const found = Object.entries({ ...scores, copying }).map(([name, values]) => [name, values[layer][head]]);
      return { run, step, layer, head, ...Object.fromEntries(found) };
    })));
  downloadCsv("scores.csv", data.columns.scores, rows);
});
