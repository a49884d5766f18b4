// During a run: looks for a newer version of the page, and shows it with what a person has chosen.
//
// A page from a file may not read files, not even its own. But it may load its own file into a frame, where the page
// only reports when it was written (see template.py).

import { $, element } from "browser/elements.js";
import { change, rendered } from "browser/render.js";
import { data, keepInHistory, LAST, save, state } from "browser/state.js";

const EVERY = 4000; // milliseconds
const PATIENCE = [120, 4]; // seconds, and times the gap between the last two pages: after both, the run may have died

const inWords = (count) => (count < 100 ? `${Math.round(count)} s` : `${Math.round(count / 60)} minutes`);
const { state: going, written = 0, gap = 0 } = data.status ?? {};
const ADDRESS = location.href.split(/[?#]/)[0];
let frame = null;

function tell() {
  if (going === "ended") return "The run has ended.";
  if (going === "interrupted") return "The run was interrupted here: train.py --resume continues it.";
  const age = Math.max(0, Date.now() / 1000 - written);
  const late = age > Math.max(PATIENCE[0], PATIENCE[1] * gap);
  return late
    ? `No newer page for ${inWords(age)}: the run may have stopped or died.`
    : `Training: this page is ${inWords(age)} old, and updates itself.`;
}

// Loads the newer page, which opens with the state of this one; if the last step was chosen, with the new last step.
// While a person reads the help or the configuration, the page stays.
function renew() {
  if ($("manual").open || $("config").checkVisibility()) return;
  save();
  keepInHistory({ scroll: scrollY, follows: state.at === LAST });
  location.reload();
}

function look() {
  frame?.remove();
  frame = element("iframe", { hidden: true, title: "newer page", src: `${ADDRESS}?look=${Date.now()}` });
  document.body.append(frame);
}

export function watch() {
  if (!going) return;
  const draw = () => ($("status").textContent = tell());
  draw();
  const { scroll, follows } = history.state ?? {};
  if (scroll) rendered.then(() => scrollTo(0, scroll));
  if (follows) rendered.then(() => change({ at: LAST }));
  if (going !== "running") return;
  addEventListener("message", ({ data: message, source }) => {
    if (source === frame?.contentWindow && Number(message?.written) > written) renew();
  });
  setInterval(draw, 1000);
  setInterval(() => document.hidden || look(), EVERY);
}
