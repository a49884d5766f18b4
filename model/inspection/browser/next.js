// The likeliest next tokens, each a button that writes it. Where parts are switched off, a mark shows what the whole
// model gives.

import { $, element } from "browser/elements.js";
import { readBox, showInBox } from "browser/editor.js";
import { addView, rendered, shown } from "browser/render.js";
import { share } from "browser/surprise.js";
import { box, engine } from "browser/typed.js";
import { quote, visible } from "browser/words.js";

const SHOWN = 8;
const EXPECTED = 3; // of the whole model's, which are shown in any case

// The text of a token, null for one that is only a part of a character, and for the end of the text.
function textOf(id) {
  if (id === engine.tokenizer.endOfText) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(engine.tokenizer.bytes(id));
  } catch {
    return null;
  }
}

// [id, probability] of what is shown. Those that are not among the listed ones get less than the last of them.
function likeliest({ next, intact, edits }) {
  if (!edits.length) return next.slice(0, SHOWN);
  const known = new Map(next);
  const expected = intact.next.slice(0, EXPECTED).map(([id]) => id);
  const others = next.map(([id]) => id).filter((id) => !expected.includes(id));
  return [...expected, ...others.slice(0, SHOWN - EXPECTED)].map((id) => [id, known.get(id) ?? 0]).sort(([, one], [, two]) => two - one);
}

function row([id, probability], before) {
  const label = engine.tokenizer.label(id);
  const bar = element("span", { className: "track" }, element("i", { style: { width: `${100 * probability}%` } }));
  if (before !== null) bar.append(element("u", { style: { left: `calc(${100 * before}% - 1px)` } }));
  const name = element("bdi", { textContent: visible(label, 24) || "∅" });
  const button = element("button", { disabled: textOf(id) === null }, element("span", { textContent: share(probability) }), bar, name);
  const told = before === null ? "" : `, with all parts ${share(before)}`;
  button.setAttribute("aria-label", `${quote(label)}, probability ${share(probability)}${told}; write it`);
  button.addEventListener("click", async () => {
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
  const { intact, edits } = side;
  const before = new Map(intact.next);
  const list = likeliest(side).map((one) => row(one, edits.length ? before.get(one[0]) ?? 0 : null));
  $("coming-note").textContent = edits.length ? "mark: with all parts" : "click one to write it";
  $("next").replaceChildren(...list);
}

addView(drawNext);
