// The header, the controls of the steps, and the keys.

import { $, clamp, element } from "browser/elements.js";
import { thumbs } from "browser/heads.js";
import { addView, change, changeOther, rendered, shown } from "browser/render.js";
import {
  ALL_HEADS, comparable, data, headPart, lastOf, mapped, PROBES, RUNS, SCORES, secondRun, shortName, state,
} from "browser/state.js";

const hasSteps = (run) => lastOf(run) > 0;
const openManual = () => $("manual").showModal();

// Of each side the parts of its control, and what sets its step and run.
const slides = [["slide-a", change], ["slide-b", changeOther]].map(([id, set]) => {
  const [slider, run, output] = ["input", ".run", "output"].map((part) => $(id).querySelector(part));
  return { root: $(id), slider, run, output, set };
});

let playing = null; // the timer of the next step

addView(function drawSteps() {
  slides.forEach(({ root, slider, run, output }, i) => {
    const side = shown.sides[i];
    root.hidden = !side || (RUNS.length < 2 && !hasSteps(side.run));
    if (!side) return;
    const step = (output.textContent = `step ${side.snapshot.step}`);
    Object.assign(slider, { max: lastOf(side.run), value: side.at, hidden: !hasSteps(side.run), ariaValueText: step });
    run.value = side.run;
  });
  $("play").hidden = !hasSteps(shown.run);
  $("compare").ariaPressed = Boolean(shown.other);
  if (!shown.other) return;
  $("link").hidden = !hasSteps(shown.run) || !hasSteps(shown.other.run);
  $("link").ariaPressed = shown.linked;
  $("other-head").value = shown.other.head ?? "same";
  const matching = shown.other.head === "match" ? `: ${shortName(shown.sides[1].head)}` : "";
  $("other-head").options[1].textContent = `nearest match${matching}`;
});

const toggleCompare = () => change({ other: state.other ? null : secondRun ?? { run: 0, at: 0, head: null } });

// Milliseconds a step: a few steps are shown for as long as they take to look at.
const pause = () => Math.max(140, Math.min(800, 5000 / mapped[state.run].length));

async function playNext() {
  await rendered;
  if (!playing) return;
  if (state.at === lastOf(state.run)) return play();
  change({ at: state.at + 1 });
  playing = setTimeout(playNext, pause());
}

function play() {
  if (!playing && state.at === lastOf(state.run)) change({ at: 0 });
  playing = playing ? clearTimeout(playing) : setTimeout(playNext, pause());
  Object.assign($("play"), { textContent: playing ? "❚❚" : "▶", ariaPressed: Boolean(playing) });
}

const goBySteps = (by) => change({ at: clamp(state.at + by, lastOf(state.run)) });

function goByHeads(by) {
  const order = [...$("grid").querySelectorAll(".thumb")].map((thumb) => thumbs.indexOf(thumb));
  change({ head: order[clamp(order.indexOf(state.head) + by, order.length - 1)] });
}

// What each key does outside of a box; a view may add its own.
export const keys = {
  ArrowLeft: () => goBySteps(-1),
  ArrowRight: () => goBySteps(1),
  ArrowUp: () => goByHeads(-1),
  ArrowDown: () => goByHeads(1),
  s: () => change({ scale: state.scale === "sqrt" ? "linear" : "sqrt" }),
  c: () => comparable && toggleCompare(),
  p: () => change({ probe: (state.probe + 1) % PROBES.length }),
  Escape: () => change({ token: null }),
  "?": openManual,
};

document.addEventListener("keydown", (event) => {
  const { target, key, ctrlKey, metaKey, altKey } = event;
  if (ctrlKey || metaKey || altKey || $("manual").open || target.matches("select, input, textarea")) return;
  const action = key === " " ? !target.matches("button") && hasSteps(state.run) && play : keys[key];
  if (!action) return;
  action();
  event.preventDefault();
});

document.title = $("title").textContent = data.title;
for (const { label, glossary } of Object.values(SCORES))
  if (glossary) $("glossary").append(element("dt", {}, label), element("dd", {}, glossary));
$("sort").append(...Object.entries(SCORES).map(([score, { label }]) => new Option(`by ${label}`, score)));
$("sort").addEventListener("change", ({ target: { value: order } }) =>
  change({ order, score: order === "layer" ? state.score : order }));
$("controls").hidden = !comparable;
for (const { slider, run, set } of slides) {
  run.hidden = RUNS.length < 2;
  run.append(...RUNS.map(({ name }, i) => new Option(name, i)));
  run.addEventListener("change", () => set({ run: Number(run.value), at: lastOf(run.value) }));
  slider.addEventListener("input", () => set({ at: Number(slider.value) }));
}
$("other-head").append(...ALL_HEADS.map((head) => new Option(headPart(head), head)));
$("other-head").addEventListener("change", ({ target: { value } }) =>
  changeOther({ head: value === "match" ? value : value === "same" ? null : Number(value) }));
$("link").addEventListener("click", () => change({ linked: !state.linked }));
$("play").addEventListener("click", play);
$("compare").addEventListener("click", toggleCompare);
$("theme").addEventListener("click", () => change({ theme: state.theme === "dark" ? "light" : "dark" }));
addEventListener("theme", ({ detail }) => change({ theme: detail })); // from a report that holds this page
for (const opener of document.querySelectorAll("[aria-haspopup=dialog]")) opener.addEventListener("click", openManual);
