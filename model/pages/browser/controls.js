// The header, the sliders of the steps, the keys, and a line that says what is switched off, with a button for the end.

import { $, clamp, element } from "browser/elements.js";
import { thumbs } from "browser/heads.js";
import { addView, change, shown } from "browser/render.js";
import { data, HELD, LAST, PLAIN, SCORES, state, TEXTS } from "browser/state.js";
import { listed } from "browser/words.js";

const openManual = () => $("manual").showModal();

// For each side the elements of its slider, and the field of the state that holds its step.
const slides = [["slide-a", "at"], ["slide-b", "other"]].map(([id, field]) => {
  const [slider, output] = ["input", "output"].map((part) => $(id).querySelector(part));
  return { root: $(id), slider, output, field };
});

addView(function drawSteps() {
  slides.forEach(({ root, slider, output }, i) => {
    const side = shown.sides[i];
    root.hidden = !side;
    if (!side) return;
    const step = (output.textContent = side.title);
    Object.assign(slider, { max: LAST, value: side.at, ariaValueText: step });
  });
  $("compare").ariaPressed = shown.other !== null;
});

addView(function drawChanged() {
  const { typing, off } = shown;
  $("changed").hidden = !typing || !off.length;
  $("what-changed").textContent = `Switched off: ${listed(off)}. What is off gives its mean, the same at every token.`;
});

// Compares with the first step, or while a person types with the first that can read what they type.
const earliest = () => (shown.typing ? HELD[0] : 0);
const toggleCompare = () => change({ other: state.other === null ? earliest() : null });

// What each key does while no input has the focus. A view may add its own keys.
export const keys = {
  ArrowLeft: () => change({ at: clamp(state.at - 1, LAST) }),
  ArrowRight: () => change({ at: clamp(state.at + 1, LAST) }),
  ArrowUp: () => change({ head: clamp(state.head - 1, thumbs.length - 1), part: null }),
  ArrowDown: () => change({ head: clamp(state.head + 1, thumbs.length - 1), part: null }),
  c: () => LAST > 0 && toggleCompare(),
  p: () => change({ probe: (state.probe + 1) % TEXTS.length }),
  Escape: () => change({ token: null, square: null }),
  "?": openManual,
};

document.addEventListener("keydown", (event) => {
  const { target, key, ctrlKey, metaKey, altKey } = event;
  if (ctrlKey || metaKey || altKey || !shown) return;
  if (document.querySelector("dialog[open]") || target.matches("select, input, textarea")) return;
  if (!keys[key]) return;
  keys[key]();
  event.preventDefault();
});

// A word that the help explains opens the help there, also by touch or with enter.
function openAtWord(event) {
  const { target, key = "Enter" } = event;
  if (target.localName !== "dfn" || key !== "Enter") return;
  event.preventDefault(); // else the key also presses the button of the help that gets the focus
  openManual();
  const word = target.textContent.toLowerCase();
  [...$("words").children].find(({ textContent }) => textContent === word)?.scrollIntoView();
}
for (const event of ["click", "keydown"]) document.addEventListener(event, openAtWord);

document.title = $("title").textContent = data.title;
for (const { label, glossary } of Object.values(SCORES))
  if (glossary) $("glossary").append(element("dt", {}, label), element("dd", {}, glossary));
$("controls").hidden = LAST < 1;
for (const { slider, field } of slides)
  slider.addEventListener("input", () => change({ [field]: Number(slider.value) }));
$("compare").addEventListener("click", toggleCompare);
$("as-trained").addEventListener("click", () => change({ off: [], ...PLAIN }));
$("theme").addEventListener("click", () => change({ theme: state.theme === "dark" ? "light" : "dark" }));
for (const opener of document.querySelectorAll("[aria-haspopup=dialog]")) opener.addEventListener("click", openManual);
