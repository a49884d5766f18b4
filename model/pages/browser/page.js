// The program of the page. Each of the first imports adds a view, and those that it imports (see render.js).

import "browser/controls.js";
import { addFact } from "browser/learning.js";
import "browser/large-map.js";
import "browser/coming.js";
import "browser/writing.js";
import "browser/sentences.js";
import "browser/scores.js";
import "browser/switches.js";
import "browser/patching.js";
import "browser/measurements.js";
import "browser/experiments.js";
import "browser/square.js";
import "browser/tour.js";
import { $, element } from "browser/elements.js";
import { startEngine } from "browser/engine.js";
import { meaningOf } from "browser/heads.js";
import { addView, render, shown, start } from "browser/render.js";
import { data, isWhole, snapshots, state } from "browser/state.js";
import { box } from "browser/text.js";
import { engine, useEngine } from "browser/typed-text.js";
import { watch } from "browser/watching.js";
import { decimal, scientific } from "browser/words.js";

const LARGEST_ERROR = 1e-3; // difference of a logit from PyTorch's that rounding may explain
const STOPPED = "The model in this page has stopped. Reload the page to start it again.";
const BROWSERS = $("browsers").textContent; // that can show this page

const tell = (...sentences) => $("notes").replaceChildren(
  ...[...data.notes, ...sentences].filter(Boolean).map((textContent) => element("p", { textContent })));

const BADGES = [
  ["fidelity", "faithful", "maps verified", "maps are not what the model computes"],
  ["causality", "causal", "cannot see the future", "the future leaks"],
];

// verdict: the text of the badge. figures: for the help.
function showBadge(id, isGood, verdict, figures) {
  const textContent = `${isGood ? "✓" : "✗"} ${verdict}`;
  const ariaLabel = `${textContent}, ${figures}; opens the help`;
  const className = `badge ${isGood ? "good" : "bad"}`;
  Object.assign($(id), { textContent, ariaLabel, className, title: meaningOf(id), hidden: false });
  $(`${id}-figures`).textContent = `${figures}.`;
}

addView(function drawBadges() {
  const { snapshot } = shown;
  const { checks, problems } = snapshot;
  for (const [error, check, good, bad] of BADGES) {
    const isRandom = problems.includes("repeatable"); // then the other checks would judge noise
    const isGood = !isRandom && !problems.includes(check);
    const verdict = isGood ? good : isRandom ? "random in eval mode" : bad;
    showBadge(error, isGood, verdict, `${error} ${scientific(checks[error])} in ${checks.precision}`);
  }
});

async function drawParity() {
  const frame = shown;
  if (!frame.typing) return;
  const { error, bits } = await engine.parity(snapshots[frame.at].weights);
  if (frame !== shown) return;
  const good = error <= LARGEST_ERROR;
  const weights = engine.kind === "int8" ? ", with int8 weights" : "";
  const verdict = good ? `as PyTorch computes it${weights}` : "not what PyTorch computes";
  const stored = `weights are stored as ${engine.kind} to save space, which costs ${decimal(bits, 4)} bits per token`;
  showBadge("parity", good, verdict, `the largest difference of a logit is ${scientific(error)}; ${stored}`);
}

async function startModel() {
  const manifest = JSON.parse($("manifest").textContent);
  const texts = manifest.steps.map((_, i) => $(`weights-${i}`).textContent); // in base64
  const onWaiting = (count) => ($("main").ariaBusy = count > 0);
  onWaiting(1);
  useEngine(await startEngine(manifest, texts, onWaiting, () => tell(STOPPED)));
  state.off = state.off.filter((part) => engine.parts.includes(part));
  const [all, last] = ["model", "next token"].map((part) => engine.parameters[part].toLocaleString("en"));
  addFact(["parameters", all, `of which ${last} in “→ next token”`]);
  addView(drawParity);
  render();
}

if (typeof DecompressionStream === "undefined") {
  $("notes").textContent = `This browser is too old to show this page. ${BROWSERS} can.`;
} else {
  tell();
  addEventListener("unhandledrejection", ({ reason }) => tell(`This could not be shown: ${reason.message}.`));
  $("main").hidden = $("model").hidden = !snapshots.length;
  box.value = data.text ?? "";
  state.typed = box.value; // the box has made all line breaks alike
  start();
  watch();
  if (data.text !== undefined && isWhole)
    startModel().catch(({ message, answered }) => tell(answered
      ? `This page cannot run this model: ${message}.`
      : `This browser cannot run the model. ${BROWSERS} can. (${message})`));
}
