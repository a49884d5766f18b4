// The header, the slider of the steps, and the keys.

import { $, clamp, element } from "browser/elements.js";
import { thumbs } from "browser/heads.js";
import { addView, change, rendered, shown } from "browser/render.js";
import { data, LAST, SCORES, state, TEXTS } from "browser/state.js";

const openManual = () => $("manual").showModal();

// Of each side the parts of its control, and the field of the state that is its step.
const slides = [["slide-a", "at"], ["slide-b", "other"]].map(([id, field]) => {
  const [slider, output] = ["input", "output"].map((part) => $(id).querySelector(part));
  return { root: $(id), slider, output, field };
});

let playing = null; // the timer of the next step

addView(function drawSteps() {
  slides.forEach(({ root, slider, output }, i) => {
    const side = shown.sides[i];
    root.hidden = !side;
    if (!side) return;
    const step = (output.textContent = `step ${side.snapshot.step.toLocaleString("en")}`);
    Object.assign(slider, { max: LAST, value: side.at, ariaValueText: step });
  });
  $("compare").ariaPressed = shown.other !== null;
});

const toggleCompare = () => change({ other: state.other === null ? 0 : null });

// Milliseconds a step: a few steps are shown for as long as they take to look at.
const PAUSE = Math.max(140, Math.min(800, 5000 / (LAST + 1)));

async function playNext() {
  await rendered;
  if (!playing) return;
  if (state.at === LAST) return play();
  change({ at: state.at + 1 });
  playing = setTimeout(playNext, PAUSE);
}

function play() {
  if (!playing && state.at === LAST) change({ at: 0 });
  playing = playing ? clearTimeout(playing) : setTimeout(playNext, PAUSE);
  Object.assign($("play"), { textContent: playing ? "❚❚" : "▶", ariaPressed: Boolean(playing) });
}

const goBySteps = (by) => change({ at: clamp(state.at + by, LAST) });

function goByHeads(by) {
  change({ head: clamp(state.head + by, thumbs.length - 1), part: null });
}

// What each key does outside of a box; a view may add its own.
export const keys = {
  ArrowLeft: () => goBySteps(-1),
  ArrowRight: () => goBySteps(1),
  ArrowUp: () => goByHeads(-1),
  ArrowDown: () => goByHeads(1),
  c: () => LAST > 0 && toggleCompare(),
  p: () => change({ probe: (state.probe + 1) % TEXTS.length }),
  Escape: () => change({ token: null, square: null }),
  "?": openManual,
};

document.addEventListener("keydown", (event) => {
  const { target, key, ctrlKey, metaKey, altKey } = event;
  if (ctrlKey || metaKey || altKey || !shown) return;
  if (document.querySelector("dialog[open]") || target.matches("select, input, textarea")) return;
  const action = key === " " ? !target.matches("button, summary") && LAST > 0 && play : keys[key];
  if (!action) return;
  action();
  event.preventDefault();
});

document.title = $("title").textContent = data.title;
for (const { label, glossary } of Object.values(SCORES))
  if (glossary) $("glossary").append(element("dt", {}, label), element("dd", {}, glossary));
$("controls").hidden = LAST < 1;
for (const { slider, field } of slides)
  slider.addEventListener("input", () => change({ [field]: Number(slider.value) }));
$("play").addEventListener("click", play);
$("compare").addEventListener("click", toggleCompare);
$("theme").addEventListener("click", () => change({ theme: state.theme === "dark" ? "light" : "dark" }));
for (const opener of document.querySelectorAll("[aria-haspopup=dialog]")) opener.addEventListener("click", openManual);
