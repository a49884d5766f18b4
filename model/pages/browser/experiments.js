// The experiments that hold for this model (see experiments.py): each has a text and one change, and shows what PyTorch
// predicted beside what the page measures. They do only what a person can do: type, choose a head, switch it off.

import { $, button, element } from "browser/elements.js";
import { weightOf } from "browser/maps.js";
import { addView, change, shown } from "browser/render.js";
import { data, headNumber, headPart, HELD, holdsWeights, PLAIN, snapshots, state } from "browser/state.js";
import { box, keepText, showInBox } from "browser/text.js";
import { engine, tokensOf } from "browser/typed-text.js";
import { percent, quote } from "browser/words.js";
import { stopWriting } from "browser/writing.js";

const OPENING = $("experiment").textContent;
const { effects, tried } = data.experiments ?? { effects: [], tried: {} };
export const TRIED_AT = HELD.at(-1); // the step at which they were tried
let chosen = null; // { effect, before, after }: what the page measured before the change and after it, by step

// The text and the parts that are off, before the change and after it.
const stages = ({ trial, off }) => [{ typed: trial.text, off: [] }, { typed: trial.changed, off }];
const isShown = ({ typed, off }) => shown.typing && shown.typed === typed && String(shown.off) === String(off);

async function show(effect, stage) {
  await stopWriting();
  if (chosen?.effect !== effect) chosen = { effect, before: {}, after: {} };
  const { typed, off } = stages(effect)[stage];
  if (typed !== box.value) keepText();
  showInBox(typed);
  const token = tokensOf(typed).tokens.length - 1;
  const head = effect.head === null ? {} : { head: headNumber(effect.head) };
  const at = stage && holdsWeights(state.at) ? state.at : TRIED_AT;
  change({ typed, off, token, probe: 0, at, other: null, square: null, ...PLAIN, ...head });
}

// The probability of the right tokens, as far as they are among the likeliest.
const rightShare = ({ trial: { right } }) =>
  shown.sides[0].next.reduce((sum, [id, probability]) => sum + (right.includes(id) ? probability : 0), 0);

const fromTo = (pair) => pair.map((share) => (share ? percent(share) : "about 0%")).join(" → ");

addView(function drawExperiment() {
  const { effect } = chosen ?? {};
  const [before, after] = effect ? stages(effect).map(isShown) : [];
  [...$("tries").children].forEach((button, i) => (button.ariaPressed = effects[i] === effect && (before || after)));
  if (before) chosen.before[shown.at] = rightShare(effect);
  if (after) chosen.after[shown.at] = rightShare(effect);
  $("experiment").replaceChildren(...(before ? lookAt(effect) : after ? compare(effect) : [OPENING]));
});

const paragraph = (...nodes) => element("p", {}, ...nodes);
const likeliestOnes = () => `the ${shown.sides[0].next.length} likeliest`;
const rightGets = ({ trial: { right, answer } }) =>
  right.length > 1
    ? `those of ${likeliestOnes()} tokens that begin with ${quote(answer)} together get`
    : `${quote(answer)} gets`;
const whenTried = () => `at step ${snapshots[TRIED_AT].step}`;
const usually = ({ means, texts }) =>
  `${whenTried()} it got ${fromTo(means)} on average over all ${texts} texts that were tried (a token not among ` +
  `${likeliestOnes()} counts as 0%)`;

function headOf({ head, weight, trial: { source }, texts }) {
  if (!weight) return "";
  const { labels, sides: [side] } = shown;
  const number = headNumber(head);
  const here = percent(weightOf(side, number, labels.length - 1, source));
  return `Look at the last row of its map: ${headPart(number)} gives ${here} of its attention to ` +
    `${quote(labels[source])}, which tells what comes next (mean of all ${texts} texts: ${percent(weight)}).`;
}

// The change first: on a small screen the rest needs scrolling.
const lookAt = (effect) => [
  paragraph(`${effect.look} Now: `, button(`▶ ${effect.change}`, () => show(effect, 1))),
  paragraph(`What should come next: ${rightGets(effect)} ${percent(chosen.before[shown.at])}. `, headOf(effect)),
  paragraph(`Expected after the change: half of that or less; ${usually(effect)}.`),
];

function compare(effect) {
  const share = (pair) => element("b", {}, fromTo(pair));
  return [
    paragraph(`${effect.question} `, button("◀ undo the change", () => show(effect, 0))),
    element("p", { id: "predicted" },
      `Before → after the change, ${rightGets(effect)} `, share(effect.shares), " as PyTorch predicted ",
      `${whenTried()}, `, share([chosen.before[shown.at], chosen.after[shown.at]]),
      ` as measured here at step ${shown.snapshot.step}; ${usually(effect)}.`),
  ];
}

// Typing another text ends an experiment and undoes its change.
box.addEventListener("input", () => {
  if (chosen && String(state.off) === String(chosen.effect.off)) state.off = [];
  chosen = null;
}, true); // captured, so that it runs before the text is read
$("experiment").hidden = !effects.length;
$("tries").append(...effects.map((effect) => button(effect.title, () => show(effect, 0))));
if (data.experiments && !effects.length) {
  const reasons = Object.entries(tried).map(([title, why]) => `${title} (${why})`);
  $("tries").textContent = `None of these experiments holds for this model: ${reasons.join(", ")}.`;
}
