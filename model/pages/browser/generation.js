// Writes on from the end of the text: each token is drawn from what the model expects, until a person stops it.

import { $ } from "browser/elements.js";
import { box, readBox, showInBox } from "browser/editor.js";
import { addView, change, shown } from "browser/render.js";
import { addField, state } from "browser/state.js";
import { ask, editsOf, engine, tokensOf } from "browser/typed-text.js";

const COUNT = 200; // tokens at most
const TOP_K = [1, 5, 20, 50]; // besides all
const TEMPERATURE = 0.8; // with which the page opens

Object.assign(state, { temperature: TEMPERATURE, topK: null });
let running = null;

async function write() {
  const { tokenizer } = engine;
  const decoder = new TextDecoder();
  const start = performance.now();
  let text = box.value;
  let count = 0;
  let waiting = false; // for the next frame, to show the text so far
  const show = () => {
    waiting = false;
    if (running) showInBox(text);
  };
  const onToken = (token) => {
    if (token === tokenizer.endOfText) return running.stop();
    text += decoder.decode(tokenizer.bytes(token), { stream: true });
    count++;
    if (!waiting) requestAnimationFrame(show);
    waiting = true;
  };
  const { temperature, topK } = state;
  const options = { temperature, topK, count: COUNT, seed: Math.floor(2 ** 32 * Math.random()), edits: editsOf(state) };
  let stopped = false;
  running = { stop: () => (stopped = true) };
  box.readOnly = true;
  press();
  try {
    await ask(state.at);
    if (!stopped) running = engine.write(tokensOf(text).tokens, options, onToken);
    await running.done;
  } finally {
    running = null;
    box.readOnly = false;
    press();
  }
  const speed = Math.round((1000 * count) / (performance.now() - start));
  $("speed").textContent = `wrote ${count} at ${speed}/s`;
  showInBox(text);
  readBox();
}

function press() {
  $("write").textContent = running ? "■ stop" : "▶ write on";
  $("write").setAttribute("aria-pressed", Boolean(running));
}

function drawChoices() {
  $("temperature").value = shown.temperature;
  $("temperature-value").textContent = shown.temperature.toFixed(1);
  $("top-k").value = shown.topK ?? "all";
}

$("top-k").append(new Option("all", "all"), ...TOP_K.map((count) => new Option(count, count)));
$("write").addEventListener("click", () => (running ? running.stop() : write()));
$("temperature").addEventListener("input", ({ target }) => change({ temperature: Number(target.value) }));
$("top-k").addEventListener("change", ({ target: { value } }) => change({ topK: value === "all" ? null : Number(value) }));
addField("temperature", () => (state.temperature === TEMPERATURE ? undefined : state.temperature), (text) => {
  const wanted = Number(text ?? NaN);
  state.temperature = wanted >= 0 && wanted <= Number($("temperature").max) ? wanted : TEMPERATURE;
});
addField("top_k", () => state.topK ?? undefined, (text) => (state.topK = TOP_K.includes(Number(text)) ? Number(text) : null));
addView(drawChoices);
press();
