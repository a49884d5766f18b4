// The likeliest next tokens, each a button that writes it. Where parts are switched off, a mark shows what the whole
// model gives.

import { $, element } from "browser/elements.js";
import { box, readBox, showInBox } from "browser/editor.js";
import { addView, rendered, shown } from "browser/render.js";
import { share } from "browser/surprise.js";
import { decoded } from "browser/tokenizer.js";
import { engine } from "browser/typed-text.js";
import { quote, visible } from "browser/words.js";

const SHOWN = 8;
const EXPECTED = 3; // of the whole model's, which are shown in any case

// The text of a token, null for one that is only a part of a character, and for the end of the text.
const textOf = (id) => (id === engine.tokenizer.endOfText ? null : decoded(engine.tokenizer.bytes(id)));

// What is shown: { id, now, before }, probabilities as the model is switched and with all parts; `before` is undefined
// where all are on. A token that is not among the listed ones has less than the last of them: null.
function likeliest({ next, intact, edits }) {
  if (!edits.length) return next.slice(0, SHOWN).map(([id, now]) => ({ id, now }));
  const [known, whole] = [new Map(next), new Map(intact.next)];
  const expected = intact.next.slice(0, EXPECTED).map(([id]) => id);
  const others = next.map(([id]) => id).filter((id) => !expected.includes(id));
  const ids = [...expected, ...others.slice(0, SHOWN - EXPECTED)];
  return ids.map((id) => ({ id, now: known.get(id) ?? null, before: whole.get(id) ?? null })).sort((one, two) => two.now - one.now);
}

function row({ id, now, before }, least) {
  const label = engine.tokenizer.label(id);
  const told = now === null ? `<${share(least)}` : share(now);
  const bar = element("span", { className: "track" }, element("i", { style: { width: `${100 * now}%` } }));
  if (before !== undefined) bar.append(element("u", { style: { left: `calc(${100 * before}% - 1px)` } }));
  const name = element("bdi", { textContent: visible(label, 24) || "∅" });
  const button = element("button", { disabled: textOf(id) === null }, element("span", { textContent: told }), bar, name);
  const whole = before === undefined ? "" : `, with all parts ${before === null ? "less" : share(before)}`;
  button.setAttribute("aria-label", `${quote(label)}, probability ${told}${whole}; write it`);
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

function drawNext() {
  const [side] = shown.sides;
  $("coming-note").textContent = side.edits.length ? "mark: with all parts" : "click one to write it";
  $("next").replaceChildren(...likeliest(side).map((one) => row(one, side.next.at(-1)[1])));
}

addView(drawNext);
