// The panel "What comes next": the likeliest next tokens, on one side or on both that are compared. If a person types,
// each is a button that writes its token. If parts are switched off, a tick shows the probability with all parts on.

import { $, element, track } from "browser/elements.js";
import { addView, shown } from "browser/render.js";
import { likeliest, probabilities } from "browser/sampling.js";
import { box, keepText, readBox, showInBox } from "browser/text.js";
import { decoded } from "browser/tokenizer.js";
import { data } from "browser/state.js";
import { engine } from "browser/typed-text.js";
import { percent, quote, visible } from "browser/words.js";

const SHOWN = 8;
const EXPECTED = 3; // likeliest of the whole model, and of the other side, that are shown in any case

// The text that a token adds; null for the end of the text, and for a token that is only part of a character.
const textOf = (id) =>
  (shown.typing && id !== engine.tokenizer.endOfText ? decoded(engine.tokenizer.bytes(id)) : null);
const labelOf = (id, { measured }) => (shown.typing ? engine.tokenizer.label(id) : measured.tokens[id]);
// The token whose next one is predicted: the chosen token, or else the last.
const current = () => shown.token ?? shown.labels.length - 1;
const isEnd = () => current() === shown.labels.length - 1;
const RIGHT = 0; // the number that film.py gives the right token
// The token that comes next, as far as it is known: a text has it, and the film's word goes on as its first copy does.
const trueNext = () => (isEnd() && shown.isWord ? data.film.right : shown.labels[current() + 1]);

// Probabilities of the next token, by id. For typed text: of all tokens, as drawn with the temperature and top-k. For a
// recorded text: of the few likeliest tokens, which were recorded.
function sharesOf(side, logits) {
  if (shown.typing) return probabilities(logits, shown);
  const { top, top_probability: recorded, chance } = side.measured;
  const shares = Object.fromEntries(top[current()].map((id, place) => [id, recorded[current()][place]]));
  return isEnd() && shown.isWord ? { ...shares, [RIGHT]: chance } : shares;
}

// The tokens to show, as { id, shares, before }. shares: the probability on each side, with the parts that are off.
// before: that on the first side with all parts on; undefined if no part is off.
function likeliestNext(sides) {
  const all = sides.map((side) => sharesOf(side, side.exact?.logits));
  const [first] = sides;
  const whole = first.off?.length ? sharesOf(first, first.whole) : null;
  const rank = (shares, count) => (shown.typing
    ? likeliest(shares, count).filter((id) => shares[id] > 0)
    : Object.keys(shares).map(Number).sort((a, b) => shares[b] - shares[a]).slice(0, count));
  const always = [whole, all[1]].flatMap((shares) => (shares ? rank(shares, EXPECTED) : []));
  const isRight = shown.isWord && isEnd();
  const truth = first.typed?.tokens[isRight ? data.film.source : current() + 1] ?? (isRight ? RIGHT : undefined);
  const wanted = [truth, ...always, ...rank(all[0], SHOWN)].filter((id) => id !== undefined);
  const ids = [...new Set(wanted)].slice(0, SHOWN);
  const found = ids.map((id) => ({ id, shares: all.map((shares) => shares[id] ?? null), before: whole?.[id] }));
  return found.sort((a, b) => b.shares[0] - a.shares[0]);
}

function row({ id, shares, before }, sides) {
  const label = labelOf(id, sides[shares[0] === null && sides.length > 1 ? 1 : 0]);
  const inWords = shares.map(percent);
  const name = element("bdi", { textContent: visible(label, 24) || "∅" });
  const isTrue = trueNext() === label;
  const numbers = inWords.map((textContent) => element("span", { textContent }));
  const disabled = textOf(id) === null || !isEnd();
  const className = isTrue ? "true" : "";
  const button = element("button", { disabled, className }, ...numbers, track(shares, before), name);
  const both = sides.length > 1 ? " in B" : "";
  const whole = before === undefined ? "" : `, with all parts ${percent(before)}`;
  const does = isTrue ? ", the true next token" : disabled ? "" : "; write it";
  button.ariaLabel = `${quote(label)}, probability ${inWords.join(" in A and ")}${both}${whole}${does}`;
  button.addEventListener("click", () => {
    if (box.readOnly) return; // the model is writing
    keepText();
    showInBox(box.value + textOf(id));
    readBox();
  });
  return element("li", {}, button);
}

addView(function drawNext() {
  const { sides, labels, typing, temperature, topK } = shown;
  const isLast = isEnd();
  $("coming-title").textContent = `Next after “${isLast ? "…" : ""}${visible(labels[current()], 8)}”`;
  const found = likeliestNext(sides);
  $("next").classList.toggle("both", sides.length > 1);
  $("next").replaceChildren(...found.map((next) => row(next, sides)));
  const rest = 1 - found.reduce((sum, { shares: [share] }) => sum + share, 0);
  $("coming-note").textContent = sides.length > 1 ? sides.map(({ title }) => title).join(", ") : [
    sides[0].off?.length && "tick: all on",
    typing && (temperature !== 1 || topK) && `at temperature ${temperature}${topK ? `, top ${topK}` : ""}`,
    isLast ? typing && "click to write" : `token ${current()}`,
    $("next").querySelector(".true") && "frame: right token",
    `others ${percent(rest)}`,
  ].filter(Boolean).join("; ");
});
