// The likeliest next tokens, each a button that writes it. Where parts are switched off, a mark shows what the whole
// model gives.

import { $, element } from "browser/elements.js";
import { readBox, showInBox } from "browser/editor.js";
import { addView, rendered, shown } from "browser/render.js";
import { share } from "browser/surprise.js";
import { box, engine } from "browser/typed.js";
import { quote, visible } from "browser/words.js";

const SHOWN = 8;

// The text of a token, null for one that is only a part of a character, and for the end of the text.
function textOf(id) {
  if (id === engine.tokenizer.endOfText) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(engine.tokenizer.bytes(id));
  } catch {
    return null;
  }
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
  const [{ next, intact, edits }] = shown.sides;
  const before = new Map(intact.next);
  const list = next.slice(0, SHOWN).map((one) => row(one, edits.length ? before.get(one[0]) ?? 0 : null));
  $("coming-note").textContent = edits.length ? "mark: with all parts" : "click one to write it";
  $("next").replaceChildren(...list);
}

addView(drawNext);
