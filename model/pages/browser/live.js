// The page that holds the model, which answers from a worker. Each of the first imports adds a view (see render.js).

import "browser/controls.js";
import "browser/writing.js";
import "browser/heads.js";
import "browser/large-map.js";
import "browser/shaded-text.js";
import "browser/sentences.js";
import "browser/switches.js";
import "browser/patching.js";
import "browser/measurements.js";
import "browser/experiments.js";
import { box } from "browser/editor.js";
import { $ } from "browser/elements.js";
import { startEngine } from "browser/engine.js";
import { addView, shown, start } from "browser/render.js";
import { data, state } from "browser/state.js";
import { engine, readTyped, tokensOf, useEngine } from "browser/typed-text.js";
import { decimal } from "browser/words.js";

const LARGEST_ERROR = 1e-3; // of a logit
const STOPPED = "The model has stopped, and this page with it. Reload the page to start it again.";
const BROWSERS = $("browsers").textContent; // that can show this page

const tell = (sentence) => ($("notes").textContent = sentence);

// What the file holds of the model: { manifest, texts: the weights of each snapshot in base64 }; null if it is cut.
function model() {
  try {
    const manifest = JSON.parse($("manifest").textContent);
    const texts = manifest.steps.map((_, i) => $(`weights-${i}`).textContent);
    const complete = texts.every(({ length }) => length === 4 * Math.ceil(manifest.bytes / 3));
    return complete ? { manifest, texts } : null;
  } catch {
    return null;
  }
}

// Of both sides, the worse.
async function drawParity() {
  const now = shown;
  const parities = await Promise.all(now.sides.map(({ at }) => engine.parity(at)));
  if (now !== shown) return;
  const { error, bits } = parities.reduce((worse, one) => (one.error > worse.error ? one : worse));
  const good = error <= LARGEST_ERROR && !engine.note;
  const weights = engine.kind === "int8" ? ", with int8 weights" : "";
  const textContent = good ? `✓ as PyTorch computes it${weights}` : "✗ not what PyTorch computes";
  const figures = `the largest difference of a logit is ${error.toExponential(1)}`;
  Object.assign($("parity"), { textContent, className: `badge ${good ? "good" : "bad"}` });
  $("parity").ariaLabel = `${textContent}: ${engine.note || figures}; opens the help`;
  const stored = `Weights are stored as ${engine.kind} to make the file small, which costs`;
  $("parity-figures").textContent = `Here ${figures}. ${stored} ${decimal(bits, 4)} bits per token. ${engine.note}`;
}

async function open() {
  const held = model();
  if (!held) return tell("This file has been cut short: copy or download it again.");
  const onWaiting = (count) => ($("main").ariaBusy = count > 0);
  useEngine(await startEngine(held.manifest, held.texts, { onWaiting, onStop: () => tell(STOPPED) }));
  addView(drawParity);
  tell(engine.note);
  for (const id of ["parity", "main"]) $(id).hidden = false;
  box.value = data.opening;
  state.typed = box.value; // where all line breaks are alike
  state.token = Math.max(0, tokensOf(state.typed).tokens.length - 2); // the last of which the next one is known
  addEventListener("unhandledrejection", ({ reason }) => tell(`This could not be shown: ${reason.message}.`));
  start(readTyped);
}

open().catch(({ message, answered }) => tell(answered
  ? `This page cannot run this model: ${message}.`
  : `This browser cannot run the model. ${BROWSERS} can. (${message})`));
