// The header with its badges, the controls, and the keys.

import { $, choices, clamp, element, press } from "browser/elements.js";
import { thumbs } from "browser/heads.js";
import { addView, change, rendered, shown } from "browser/render.js";
import { savePicture } from "browser/stage.js";
import { data, hasSteps, lastOf, mapped, PROBES, RUNS, SCORES, secondRun, state } from "browser/state.js";

let playing = null; // the timer of the next step

function drawHeader() {
  const { fidelity, causality, faithful, causal, precision } = shown.capture;
  const badge = (id, good, textContent) => Object.assign($(id), { textContent, className: `badge ${good ? "good" : "bad"}` });
  const number = (x) => (x === null ? "not a number" : x === 0 ? "0" : x.toExponential(1));
  badge("fidelity", faithful, `${faithful ? "✓" : "✗"} fidelity ${number(fidelity)} in ${precision}`);
  badge("causality", causal, causal ? "✓ causality 0" : `✗ the future leaks: ${number(causality)}`);
  for (const [id, run, at] of [["slide-a", shown.run, shown.at], ["slide-b", shown.other?.run, shown.other?.at]]) {
    $(id).hidden = run === undefined || !hasSteps;
    if (run === undefined) continue;
    const step = `step ${mapped[run][at].step}`;
    const slider = $(id).querySelector("input");
    Object.assign(slider, { max: lastOf(run), value: at, disabled: lastOf(run) < 1 });
    slider.setAttribute("aria-valuetext", step);
    $(id).querySelector("output").textContent = step;
    $(id).querySelector("select").value = run;
  }
  $("compare").setAttribute("aria-pressed", Boolean(shown.other));
  $("sort").value = shown.order;
  press($("probes"), shown.probe);
  press($("scales"), shown.scale);
}

function buildControls() {
  document.title = $("title").textContent = data.title;
  for (const note of data.notes) $("notes").append(element("p", { textContent: note }));
  choices($("probes"), PROBES.map(({ name, period }, i) => [i, name, period ? `${period} random tokens, repeated once` : "the probe text"]), (probe) => change({ probe }));
  choices($("scales"), [["sqrt", "√ scale", "colour grows with the square root of the weight"], ["linear", "linear"]], (scale) => change({ scale }));
  $("sort").append(new Option("by layer", "layer"), ...Object.entries(SCORES).map(([score, { label }]) => new Option(`by ${label}`, score)));
  $("sort").addEventListener("change", ({ target: { value } }) => change(value === "layer" ? { order: value } : { order: value, score: value }));
  $("compare").hidden = !hasSteps;
  for (const [id, set] of [["slide-a", change], ["slide-b", (patch) => change({ other: { ...state.other, ...patch } })]]) {
    const [slider, run] = [$(id).querySelector("input"), $(id).querySelector("select")];
    run.hidden = RUNS.length < 2;
    run.append(...RUNS.map(({ name }, i) => new Option(name, i)));
    run.addEventListener("change", () => set({ run: Number(run.value), at: lastOf(run.value) }));
    slider.addEventListener("input", () => set({ at: Number(slider.value) }));
  }
  $("play").addEventListener("click", play);
  $("compare").addEventListener("click", toggleCompare);
  $("picture").addEventListener("click", savePicture);
  $("theme").addEventListener("click", () => change({ theme: state.theme === "dark" ? "light" : "dark" }));
  addEventListener("theme", ({ detail }) => change({ theme: detail })); // from a report that holds this page
  $("help").addEventListener("click", () => $("manual").showModal());
}

const toggleCompare = () => change({ other: state.other ? null : secondRun ?? { run: 0, at: 0 } });

function play() {
  const next = async () => {
    await rendered;
    if (state.at === lastOf(state.run)) return play();
    change({ at: state.at + 1 });
    playing = setTimeout(next, 140);
  };
  if (playing) playing = clearTimeout(playing);
  else {
    if (state.at === lastOf(state.run)) change({ at: 0 });
    playing = setTimeout(next, 140);
  }
  $("play").textContent = playing ? "❚❚" : "▶";
  $("play").setAttribute("aria-pressed", Boolean(playing));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("manual").open || event.target.matches("select, input")) return;
  const step = (by) => change({ at: clamp(state.at + by, lastOf(state.run)) });
  const order = [...$("grid").querySelectorAll(".thumb")].map((thumb) => thumbs.indexOf(thumb));
  const head = (by) => change({ head: order[clamp(order.indexOf(state.head) + by, order.length - 1)] });
  const actions = {
    ArrowLeft: () => step(-1), ArrowRight: () => step(1), ArrowUp: () => head(-1), ArrowDown: () => head(1),
    s: () => change({ scale: state.scale === "sqrt" ? "linear" : "sqrt" }), c: () => $("compare").hidden || toggleCompare(),
    p: () => change({ probe: (state.probe + 1) % PROBES.length }), Escape: () => change({ token: null }),
  };
  if (!event.target.matches("button") && !$("slide-a").hidden) actions[" "] = play;
  if (!actions[event.key]) return;
  actions[event.key]();
  event.preventDefault();
});

buildControls();
addView(drawHeader);
