// The likeliest next tokens, each a button that writes it: of one side, or of both that are compared. Where parts are
// switched off, a mark shows what the whole model gives.

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

// What is shown: { id, shares, before }: the probabilities on each side as the model is switched, and with all parts on the
// first; `before` is undefined where all are on. A token that is not among the listed ones has less than the last: null.
function likeliest([first, second]) {
  const [known, whole] = [first.next, first.intact.next].map((next) => new Map(next));
  const other = new Map(second?.next);
  const always = (first.edits.length ? first.intact.next.slice(0, EXPECTED) : []).concat(second?.next.slice(0, EXPECTED) ?? []).map(([id]) => id);
  const ids = [...new Set([...always, ...known.keys()])].slice(0, SHOWN);
  return ids.map((id) => ({
    id, shares: [known, ...(second ? [other] : [])].map((shares) => shares.get(id) ?? null),
    before: first.edits.length ? whole.get(id) ?? null : undefined,
  })).sort((one, two) => two.shares[0] - one.shares[0]);
}

function row({ id, shares, before }, sides) {
  const label = engine.tokenizer.label(id);
  const inWords = shares.map((probability, i) => (probability === null ? `<${share(sides[i].next.at(-1)[1])}` : share(probability)));
  const bar = element("span", { className: "track" }, ...shares.map((probability) => element("i", { style: { width: `${100 * probability}%` } })));
  if (before !== undefined) bar.append(element("u", { style: { left: `calc(${100 * before}% - 1px)` } }));
  const name = element("bdi", { textContent: visible(label, 24) || "∅" });
  const button = element("button", { disabled: textOf(id) === null }, ...inWords.map((textContent) => element("span", { textContent })), bar, name);
  const whole = before === undefined ? "" : `, with all parts ${before === null ? "less" : share(before)}`;
  button.setAttribute("aria-label", `${quote(label)}, probability ${inWords.join(" in A and ")}${sides.length > 1 ? " in B" : ""}${whole}; write it`);
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
  const { sides } = shown;
  const steps = sides.map(({ name, capture }) => `${name}: step ${capture.step}`).join(", ");
  $("coming-note").textContent = sides.length > 1 ? steps : sides[0].edits.length ? "mark: with all parts" : "click one to write it";
  $("next").classList.toggle("both", sides.length > 1);
  $("next").replaceChildren(...likeliest(sides).map((one) => row(one, sides)));
}

addView(drawNext);
