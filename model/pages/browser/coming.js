// What comes next: the likeliest tokens after the text, on one side or both that are compared. Where a person types,
// each is a button that writes it; where parts are switched off, a mark shows what the whole model gives.

import { $, element, track } from "browser/elements.js";
import { addView, rendered, shown } from "browser/render.js";
import { likeliest, probabilities } from "browser/sampling.js";
import { box, keepText, readBox, showInBox } from "browser/text.js";
import { decoded } from "browser/tokenizer.js";
import { engine } from "browser/typed-text.js";
import { percent, quote, visible } from "browser/words.js";

const SHOWN = 8;
const EXPECTED = 3; // of the whole model's, and of the other side's, which are shown in any case

// The text that a token writes, null for one that is only a part of a character, and for the end of the text.
const textOf = (id) =>
  (shown.typing && id !== engine.tokenizer.endOfText ? decoded(engine.tokenizer.bytes(id)) : null);
const labelOf = (id, { measured }) => (shown.typing ? engine.tokenizer.label(id) : measured.tokens[id]);
// The token after which one looks: the current one, or else the last.
const current = () => shown.token ?? shown.labels.length - 1;

// By id what comes after the current token: of a text that the page's model reads, as it would be drawn with the
// temperature and top-k; of a recorded one the few that were recorded.
function sharesOf(side, logits) {
  if (shown.typing) return probabilities(logits, shown);
  const { top, top_probability: recorded } = side.measured;
  return Object.fromEntries(top[current()].map((id, place) => [id, recorded[current()][place]]));
}

// What is shown: { id, shares, before }: the probabilities on each side as the model is switched, and with all parts on
// the first; `before` is undefined where all are on.
function likeliestNext(sides) {
  const all = sides.map((side) => sharesOf(side, side.logits));
  const [first] = sides;
  const whole = first.off?.length ? sharesOf(first, first.whole) : null;
  const rank = (shares, count) => (shown.typing
    ? likeliest(shares, count).filter((id) => shares[id] > 0)
    : Object.keys(shares).map(Number).sort((one, two) => shares[two] - shares[one]).slice(0, count));
  const always = [whole, all[1]].flatMap((shares) => (shares ? rank(shares, EXPECTED) : []));
  const truth = shown.typing ? first.typed.tokens[current() + 1] : undefined;
  const wanted = [truth, ...always, ...rank(all[0], SHOWN)].filter((id) => id !== undefined);
  const ids = [...new Set(wanted)].slice(0, SHOWN);
  const found = ids.map((id) => ({ id, shares: all.map((shares) => shares[id] ?? null), before: whole?.[id] }));
  return found.sort((one, two) => two.shares[0] - one.shares[0]);
}

function row({ id, shares, before }, sides) {
  const label = labelOf(id, sides[shares[0] === null && sides.length > 1 ? 1 : 0]);
  const inWords = shares.map(percent);
  const name = element("bdi", { textContent: visible(label, 24) || "∅" });
  const isTrue = shown.labels[current() + 1] === label;
  const numbers = inWords.map((textContent) => element("span", { textContent }));
  const isLast = current() === shown.labels.length - 1;
  const disabled = textOf(id) === null || !isLast;
  const className = isTrue ? "true" : "";
  const button = element("button", { disabled, className }, ...numbers, track(shares, before), name);
  const both = sides.length > 1 ? " in B" : "";
  const whole = before === undefined ? "" : `, with all parts ${percent(before)}`;
  const does = isTrue ? ", the true next token" : disabled ? "" : "; write it";
  button.ariaLabel = `${quote(label)}, probability ${inWords.join(" in A and ")}${both}${whole}${does}`;
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
  const { sides, labels, typing, temperature, topK } = shown;
  const isLast = current() === labels.length - 1;
  $("coming-title").textContent = `Next after “${isLast ? "…" : ""}${visible(labels[current()], 8)}”`;
  const found = likeliestNext(sides);
  $("next").classList.toggle("both", sides.length > 1);
  $("next").replaceChildren(...found.map((one) => row(one, sides)));
  const rest = 1 - found.reduce((sum, { shares: [share] }) => sum + share, 0);
  $("coming-note").textContent = sides.length > 1 ? sides.map(({ title }) => title).join(", ") : [
    sides[0].off?.length && "mark: all on",
    typing && (temperature !== 1 || topK) && `at temperature ${temperature}${topK ? `, top ${topK}` : ""}`,
    isLast ? typing && "click to write" : `token ${current()}`,
    $("next").querySelector(".true") && "frame: the true one",
    `others ${percent(Math.max(0, rest))}`,
  ].filter(Boolean).join("; ");
});
