// Shows two whole runs side by side (see runs.js), on a page that has two.

import { $, element } from "browser/elements.js";
import { chartColumns } from "browser/charts.js";
import { csv, download } from "browser/export.js";
import { addView, change } from "browser/render.js";
import { BEST_HEADER, bestCurves, bestRows, drawBest, drawChart, drawOptions, LOSS_HEADER, lossRows } from "browser/runs.js";
import { againstRun, alone, data, headNumber, openRun, SCORES, state } from "browser/state.js";

const WIDE = 250; // pixels of a small chart
const { runs, losses, options } = data;
const charts = runs.length < 2 ? [] : Object.entries(SCORES)
  .map(([score, { label, forms }]) => ({ box: element("div"), title: label, small: true, low: 0, high: 1, curves: bestCurves(runs, score, forms) }))
  .filter(({ curves }) => curves.length); // runs of earlier versions do not have every score

// Shows a head: of the run that is shown, on the other side, or on the page of the other run.
function choose(run, name) {
  const head = headNumber(name);
  if (run === (alone ?? state.run)) change({ head });
  else if (data.apart) openRun(run, name);
  else change({ other: { ...(state.other?.run === run ? state.other : againstRun(run)), head } });
}

let drawn = 0; // the width for which the charts are drawn

function drawRuns() {
  const width = $("runs").clientWidth;
  if (width === drawn) return;
  drawn = width;
  if (losses) drawChart($("losses"), runs, losses);
  $("best-charts").style.gridTemplateColumns = `repeat(${chartColumns(charts.length, width, WIDE)}, minmax(0, 1fr))`;
  for (const chart of charts) drawChart(chart.box, runs, chart);
}

function build() {
  $("runs").hidden = false;
  drawBest($("best"), runs, SCORES, choose);
  $("best-csv").addEventListener("click", () => download("best-heads.csv", csv([BEST_HEADER, ...bestRows(runs, SCORES)]), "text/csv"));
  $("best-charts").append(...charts.map(({ box }) => box));
  for (const id of ["losses", "losses-bar", "losses-note"]) $(id).hidden = !losses;
  if (losses) {
    $("losses-title").textContent = losses.title;
    $("losses-note").textContent = losses.note;
    $("losses-csv").addEventListener("click", () => download("losses.csv", csv([LOSS_HEADER, ...lossRows(runs, losses.curves)]), "text/csv"));
  }
  for (const id of ["options", "options-title", "options-note"]) $(id).hidden = !options;
  if (options) {
    $("options-note").textContent = options.note;
    if (options.differences.length) drawOptions($("options"), runs, options.differences);
  }
}

if (runs.length > 1) {
  build();
  addView(drawRuns);
}
