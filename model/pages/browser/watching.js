// While a run goes on: looks for the page that it has written since, and shows that with what a person has chosen.
//
// A page from a file may not read files, not even its own. But it may hold itself in a frame, and the copy there tells
// when it was written (see page.html) before it does anything else.

import { $, element } from "browser/elements.js";
import { change, rendered } from "browser/render.js";
import { data, keepInHistory, LAST, save, state } from "browser/state.js";

const EVERY = 4000; // milliseconds
const PATIENCE = [120, 4]; // seconds, and times longer than the page before: then the run may have died

const inWords = (count) => (count < 100 ? `${Math.round(count)} s` : `${Math.round(count / 60)} minutes`);
const { state: going, written = 0, gap = 0 } = data.status ?? {};
const ADDRESS = location.href.split(/[?#]/)[0];
let frame = null;

function tell() {
  if (going === "ended") return "The run has ended.";
  if (going === "interrupted") return "The run was interrupted here: train.py --resume goes on.";
  const age = Math.max(0, Date.now() / 1000 - written);
  const late = age > Math.max(PATIENCE[0], PATIENCE[1] * gap);
  return late
    ? `No newer page for ${inWords(age)}: the run may have stopped or died.`
    : `Training: this page is ${inWords(age)} old, and follows by itself.`;
}

// Shows the newer page. It begins as this one is; who was at the last step then goes to the newer one's. Who reads the
// help or the configuration is not interrupted.
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
  addEventListener("message", ({ data: found, source }) => {
    if (source === frame?.contentWindow && Number(found?.written) > written) renew();
  });
  setInterval(draw, 1000);
  setInterval(() => document.hidden || look(), EVERY);
}
