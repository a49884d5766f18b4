// What comes next: the likeliest next tokens, of one side or of both that are compared, each a button that writes it;
// where parts are switched off, a mark shows what the whole model gives. Or the model writes on from the end of the
// text, each token drawn from what it expects, until a person stops it.

import { $, element, track } from "browser/elements.js";
import { box, readBox, showInBox } from "browser/editor.js";
import { addView, change, rendered, shown } from "browser/render.js";
import { addField, state } from "browser/state.js";
import { decoded } from "browser/tokenizer.js";
import { editsOf, engine, tokensOf } from "browser/typed-text.js";
import { percent, quote, visible } from "browser/words.js";

const SHOWN = 8;
const EXPECTED = 3; // of the whole model's, which are shown in any case
const LEAST = 0.001; // probability that is written as such

// The text of a token, null for one that is only a part of a character, and for the end of the text.
const textOf = (id) => (id === engine.tokenizer.endOfText ? null : decoded(engine.tokenizer.bytes(id)));

// What is shown: { id, shares, before }: the probabilities on each side as the model is switched, and with all parts on
// the first; `before` is undefined where all are on. A token that is not listed has less than the last one: null.
function likeliest([first, second]) {
  const intact = first.edits.length ? first.intact : null;
  const [known, other, whole] = [first, second, intact].map((one) => one && new Map(one.next));
  const always = [intact, second].flatMap((one) => one?.next.slice(0, EXPECTED) ?? []);
  const ids = new Set([...always.map(([id]) => id), ...known.keys()]);
  const found = [...ids].slice(0, SHOWN).map((id) => ({
    id, shares: (other ? [known, other] : [known]).map((shares) => shares.get(id) ?? null),
    before: whole ? whole.get(id) ?? null : undefined,
  }));
  return found.sort((one, two) => two.shares[0] - one.shares[0]);
}

function row({ id, shares, before }, sides) {
  const label = engine.tokenizer.label(id);
  const least = (i) => Math.max(LEAST, sides[i].next.at(-1)[1]);
  const inWords = shares.map((one, i) => (one === null ? `<${percent(least(i))}` : percent(one)));
  const name = element("bdi", { textContent: visible(label, 24) || "∅" });
  const numbers = inWords.map((textContent) => element("span", { textContent }));
  const button = element("button", { disabled: textOf(id) === null }, ...numbers, track(shares, before), name);
  const both = sides.length > 1 ? " in B" : "";
  const whole = before === undefined ? "" : `, with all parts ${before === null ? "less" : percent(before)}`;
  button.ariaLabel = `${quote(label)}, probability ${inWords.join(" in A and ")}${both}${whole}; write it`;
  button.addEventListener("click", async () => {
    if (box.readOnly) return; // it writes
    const place = [...$("next").children].findIndex((item) => item.contains(document.activeElement));
    showInBox(box.value + textOf(id));
    readBox();
    await rendered;
    $("next").children[place]?.firstChild.focus(); // the list has been made anew
  });
  return element("li", {}, button);
}

addView(function drawNext() {
  const { sides } = shown;
  const steps = sides.map(({ title }) => title).join(", ");
  const note = sides[0].edits.length ? "mark: with all parts" : "click one to write it";
  $("coming-note").textContent = sides.length > 1 ? steps : note;
  $("next").classList.toggle("both", sides.length > 1);
  $("next").replaceChildren(...likeliest(sides).map((one) => row(one, sides)));
});

// ---- writing on

const COUNT = 200; // tokens at most
const TEMPERATURE = 0.8; // with which the page opens

Object.assign(state, { temperature: TEMPERATURE, topK: null });
let running = null; // the AbortController of what writes
let written = null; // { text, words }: what was written last, and how fast

async function write() {
  const { tokenizer } = engine;
  const decoder = new TextDecoder();
  const start = performance.now();
  let text = box.value;
  let count = 0;
  const onValue = (token) => {
    if (token === tokenizer.endOfText) return;
    text += decoder.decode(tokenizer.bytes(token), { stream: true });
    count++;
  };
  const { at: snapshot, temperature, topK } = state;
  const options = { temperature, topK, count: COUNT, stop: tokenizer.endOfText, edits: editsOf(state) };
  running = new AbortController();
  box.readOnly = true;
  press();
  follow(running, () => text);
  try {
    const request = { snapshot, tokens: tokensOf(text).tokens, ...options };
    await engine.ask("write", request, { onValue, signal: running.signal });
  } finally {
    running = null;
    box.readOnly = false;
    press();
  }
  showInBox(text);
  readBox();
  const perSecond = Math.round((1000 * count) / (performance.now() - start));
  written = { text: state.typed, words: `wrote ${count} at ${perSecond}/s` };
}

// While it writes, the box shows the text so far. The rest of the page follows as often as the worker has time to read.
async function follow(writer, textSoFar) {
  let free = true; // the last text that was asked for is drawn
  while (running === writer) {
    if (box.value !== textSoFar()) {
      showInBox(textSoFar());
      if (free) {
        free = false;
        readBox();
        rendered.then(() => (free = true));
      }
    }
    await new Promise(requestAnimationFrame);
  }
}

function press() {
  Object.assign($("write"), { textContent: running ? "■ stop" : "▶ write on", ariaPressed: Boolean(running) });
}

addView(function drawChoices() {
  $("speed").textContent = shown.typed === written?.text ? written.words : "";
  $("temperature").value = shown.temperature;
  $("temperature-value").textContent = shown.temperature.toFixed(1);
  $("top-k").value = shown.topK ?? 0;
});

$("write").addEventListener("click", () => (running ? running.abort() : write()));
$("temperature").addEventListener("input", ({ target }) => change({ temperature: Number(target.value) }));
$("top-k").addEventListener("change", ({ target }) => change({ topK: Number(target.value) || null }));
addField("temperature", () => (state.temperature === TEMPERATURE ? null : state.temperature), (text) => {
  const wanted = Number(text ?? NaN);
  state.temperature = wanted >= 0 && wanted <= Number($("temperature").max) ? wanted : TEMPERATURE;
});
addField("top_k", () => state.topK, (text) => {
  $("top-k").value = text; // which takes one of its options only
  state.topK = Number($("top-k").value) || null;
});
press();
