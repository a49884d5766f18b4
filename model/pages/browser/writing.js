// The model writes on at the end of the text: it draws each token from its prediction, until a person stops it.

import { $ } from "browser/elements.js";
import { addView, change, rendered, shown } from "browser/render.js";
import { PLAIN, snapshots, state } from "browser/state.js";
import { box, canUndo, keepText, readBox, showInBox, undo } from "browser/text.js";
import { engine, tokensOf } from "browser/typed-text.js";

const COUNT = 200; // most tokens at a time
const PAUSE = 500; // milliseconds between two updates of the page

Object.assign(state, PLAIN);
let running = null; // the AbortController, while the model writes
let ended = null; // a promise that settles when the writing has ended
let written = null; // { text, note }: the text when the model ended, and a note on how fast it wrote

// Stops the writing. When the promise settles, the box may get another text.
export function stopWriting() {
  running?.abort();
  return ended;
}

async function write() {
  const { tokenizer } = engine;
  keepText();
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const start = performance.now();
  let text = box.value;
  let count = 0;
  let why = "stopped"; // the reason for the end
  const onValue = (token) => {
    if (token === tokenizer.endOfText) why = "it ended the document";
    if (token === tokenizer.endOfText) return;
    text += decoder.decode(tokenizer.bytes(token), { stream: true });
    count++;
  };
  const { at, temperature, topK, off } = state;
  const options = { temperature, topK, off, count: COUNT, stop: tokenizer.endOfText };
  running = new AbortController();
  box.readOnly = true;
  press();
  follow(running, () => text);
  try {
    const request = { snapshot: snapshots[at].weights, tokens: tokensOf(text).tokens, ...options };
    await engine.ask("write", request, { onValue, signal: running.signal });
  } finally {
    running = null;
    box.readOnly = false;
    press();
  }
  showInBox(text);
  readBox();
  const perSecond = Math.round((1000 * count) / (performance.now() - start));
  if (count === COUNT) why = "the most at a time";
  written = { text: state.typed, note: `wrote ${count} at ${perSecond} tokens/s: ${why}` };
}

// While the model writes, the box shows the text so far. The rest of the page follows every half second at most, after
// the worker has read the text, because reading and drawing take time too.
async function follow(writer, textSoFar) {
  let next = performance.now() + PAUSE; // when the rest of the page may follow; Infinity while it does
  while (running === writer) {
    if (box.value !== textSoFar()) showInBox(textSoFar());
    if (performance.now() > next) {
      next = Infinity;
      readBox();
      rendered.then(() => (next = performance.now() + PAUSE));
    }
    await new Promise(requestAnimationFrame);
  }
}

function press() {
  Object.assign($("write"), { textContent: running ? "■ stop" : "▶ write on", ariaPressed: Boolean(running) });
}

addView(function drawChoices() {
  $("speed").textContent = shown.typing && shown.typed === written?.text ? written.note : "";
  $("temperature").value = shown.temperature;
  $("temperature-value").textContent = shown.temperature.toFixed(1);
  $("top-k").value = shown.topK ?? 0;
  $("undo").disabled = !canUndo();
});

async function goBack() {
  await stopWriting();
  undo();
}

document.addEventListener("keydown", (event) => {
  const { target, key, ctrlKey, metaKey } = event;
  if (!(ctrlKey || metaKey) || key !== "z" || target === $("other-text")) return;
  event.preventDefault();
  goBack();
});
$("undo").addEventListener("click", goBack);

$("write").addEventListener("click", () => {
  if (running) running.abort();
  else ended = write();
});
$("temperature").addEventListener("input", ({ target }) => change({ temperature: Number(target.value) }));
$("top-k").addEventListener("change", ({ target }) => change({ topK: Number(target.value) || null }));
press();
