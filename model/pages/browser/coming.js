// What comes next: the likeliest tokens after the text, on one side or both that are compared. Where a person types,
// each is a button that writes it; where parts are switched off, a mark shows what the whole model gives.

import { $, element, track } from "browser/elements.js";
import { addView, rendered, shown } from "browser/render.js";
import { box, keepText, readBox, showInBox } from "browser/text.js";
import { decoded } from "browser/tokenizer.js";
import { engine } from "browser/typed-text.js";
import { percent, quote, visible } from "browser/words.js";

const SHOWN = 8;
const EXPECTED = 3; // of the whole model's, which are shown in any case
const LEAST = 0.001; // probability that is written as such

// The text that a token writes, null for one that is only a part of a character, and for the end of the text.
const textOf = (id) =>
  (shown.typing && id !== engine.tokenizer.endOfText ? decoded(engine.tokenizer.bytes(id)) : null);
const labelOf = (id, { details }) => (shown.typing ? engine.tokenizer.label(id) : details.tokens[id]);

// What is shown: { id, shares, before }: the probabilities on each side as the model is switched, and with all parts on
// the first; `before` is undefined where all are on. A token that is not listed has less than the last one: null.
function likeliest([first, second]) {
  const intact = first.off?.length ? first.intact : null;
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
  const label = labelOf(id, sides[shares[0] === null && sides.length > 1 ? 1 : 0]);
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
    keepText();
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
  $("coming-title").textContent = `Next after “…${visible(sides[0].labels.at(-1), 8)}”`;
  const note = sides[0].off?.length ? "mark: all on" : shown.typing ? "click to write" : "";
  const found = likeliest(sides);
  const rest = 1 - found.reduce((sum, { shares: [share] }) => sum + share, 0);
  $("coming-note").textContent = sides.length > 1 ? steps : `${note}${note && "; "}others ${percent(rest)}`;
  $("next").classList.toggle("both", sides.length > 1);
  $("next").replaceChildren(...found.map((one) => row(one, sides)));
});
