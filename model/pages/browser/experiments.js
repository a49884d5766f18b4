// Experiments that hold for this model (see experiments.py): a text, one change, and what was predicted beside what the
// page shows. They use what a person can do as well: type, choose a head, switch it off.

import { $, button, closest, element } from "browser/elements.js";
import { ofHead, weightAt } from "browser/maps.js";
import { addView, change, shown } from "browser/render.js";
import { data, headName, headNumber, headPart, holdsWeights, mapped, RUN, state } from "browser/state.js";
import { box, keepText, showInBox } from "browser/text.js";
import { engine, tokensOf } from "browser/typed-text.js";
import { percent, quote } from "browser/words.js";
import { stopWriting } from "browser/writing.js";

const OPENING = $("experiment").textContent;
const { effects, tried } = data.experiments ?? { effects: [], tried: {} };
export const TRIED_AT = [...mapped.keys()].findLast(holdsWeights); // the step at which they were tried
// An experiment, and what the page has shown of its right tokens before the change and after it, by step.
let chosen = null; // { effect, before, after }
let answer = null; // to why it repeats itself, in nodes

export const PLAIN = { temperature: 1, topK: null }; // the model's own probabilities

// What is typed and switched off before the change and after it.
const stages = ({ trial, off }) => [{ typed: trial.text, off: [] }, { typed: trial.changed, off }];
const isShown = ({ typed, off }) =>
  shown.typing && shown.typed === typed && String(shown.off) === String(off);

async function show(effect, stage) {
  await stopWriting();
  if (chosen?.effect !== effect) chosen = { effect, before: {}, after: {} };
  answer = null;
  const { typed, off } = stages(effect)[stage];
  if (typed !== box.value) keepText();
  showInBox(typed);
  const token = tokensOf(typed).tokens.length - 1;
  const head = effect.head === null ? {} : { head: headNumber(effect.head) };
  const at = stage && holdsWeights(state.at) ? state.at : TRIED_AT;
  change({ typed, off, token, probe: 0, at, other: null, square: null, ...PLAIN, ...head });
}

// What the right tokens get of the probability, as far as they are listed.
const rightShare = ({ trial: { right } }) =>
  shown.sides[0].next.reduce((sum, [id, probability]) => sum + (right.includes(id) ? probability : 0), 0);

const fromTo = ([before, after]) => `${percent(before)} → ${percent(after)}`;

addView(function drawExperiment() {
  const { effect } = chosen ?? {};
  const [before, after] = effect ? stages(effect).map(isShown) : [];
  [...$("tries").children].forEach((button, i) => (button.ariaPressed = effects[i] === effect && (before || after)));
  if (before) chosen.before[shown.at] = rightShare(effect);
  if (after) chosen.after[shown.at] = rightShare(effect);
  $("experiment").replaceChildren(...(before ? lookAt(effect) : after ? compare(effect) : answer ?? [OPENING]));
});

const paragraph = (...nodes) => element("p", {}, ...nodes);
const listedOnes = () => `the ${shown.sides[0].next.length} likeliest`;
const gets = ({ trial: { right, answer } }) =>
  right.length > 1
    ? `together, those of ${listedOnes()} that begin with ${quote(answer)} get`
    : `${quote(answer)} gets`;
const whenTried = () => `at step ${mapped[TRIED_AT].step}`;
const usually = ({ usual, texts: [halved, right] }) =>
  `${whenTried()} on ${halved} of ${right} such texts the share fell to half or less (typically ${fromTo(usual)}; ` +
  `a token that is not among ${listedOnes()} counts as 0%)`;

function headOf({ head, weight, trial: { source }, texts: [, right] }) {
  if (!weight) return "";
  const [{ weights, labels }] = shown.sides;
  const number = headNumber(head);
  const place = `Look at the last row of ${headPart(number)} (${headName(number)}) on the map`;
  const here = percent(weightAt(ofHead(weights, number, labels.length), labels.length - 1, source));
  const gives = `it gives here ${here} of its attention, on average over ${right} texts ${whenTried()} ` +
    `${percent(weight)}`;
  return `${place}: to ${quote(labels[source])}, which tells what comes next, ${gives}.`;
}

const lookAt = (effect) => [
  paragraph(`${effect.look} What should come next: ${gets(effect)} ${percent(chosen.before[shown.at])}. `,
    headOf(effect)),
  paragraph(`Expected after the change: half of that or less; ${usually(effect)}. `,
    button(`▶ ${effect.change}`, () => show(effect, 1))),
];

function compare(effect) {
  const share = (pair) => element("b", {}, fromTo(pair));
  return [
    element("p", { id: "predicted" },
      `Before → after the change, ${gets(effect)}: PyTorch, ${whenTried()}, `, share(effect.shares),
      ` · this page, at step ${shown.snapshot.step}, `, share([chosen.before[shown.at], chosen.after[shown.at]]),
      `; ${usually(effect)}.`),
    paragraph(`${effect.question} `, button("◀ undo the change", () => show(effect, 0))),
  ];
}

// Why it repeats itself: where that experiment does not hold, the page measures it on what the model writes.
const REPEATS = "Why does it repeat itself?";
const [WRITTEN, IN_A_ROW, SHARP] = [400, 5, 0.5]; // tokens, and a temperature
const copiers = Object.keys(RUN.formation.induction ?? {}).map((name) => `head ${name}`);

// How much of what the model writes it wrote before.
async function repeated(off) {
  const written = [];
  const request = { snapshot: mapped[TRIED_AT].weights, tokens: tokensOf(box.value).tokens, off, count: WRITTEN };
  await engine.ask("write", { ...request, temperature: SHARP }, { onValue: (token) => written.push(token) });
  const rows = written.slice(IN_A_ROW - 1).map((_, i) => String(written.slice(i, i + IN_A_ROW)));
  return percent(1 - new Set(rows).size / rows.length);
}

async function tellWhy() {
  await stopWriting();
  const copier = closest(copiers, (part) => -mapped[TRIED_AT].ablation.repeated[part][0]);
  const found = `${await repeated([])} of it repeats, and without ${copier} ${await repeated([copier])}`;
  chosen = null;
  answer = [
    paragraph(element("b", {}, `Written at temperature ${SHARP}, ${found}`), ` (${IN_A_ROW} tokens in a row as ` +
      `before, of ${WRITTEN} just written after your text). That head finds what followed the same token before ` +
      "(induction), so what was written once is written again. What stops it: a higher temperature, or ",
      button(`▶ switch ${copier} off`, () => change({ off: [copier], temperature: SHARP }))),
    paragraph(`It is no experiment with a prediction here, because ${tried[REPEATS]}.`),
  ];
  change({ at: TRIED_AT, head: headNumber(copier.replace("head ", "")), part: null, off: [] });
}

// A text of one's own ends an experiment, and what it changed.
box.addEventListener("input", () => {
  if (chosen && String(state.off) === String(chosen.effect.off)) state.off = [];
  chosen = answer = null;
}, true); // before it is read
$("experiment").hidden = !effects.length;
$("tries").append(...effects.map((effect) => button(effect.title, () => show(effect, 0))));
if (copiers.length && REPEATS in tried) $("tries").append(button(REPEATS, tellWhy));
if (data.experiments && !effects.length) {
  const found = Object.entries(tried).map(([title, why]) => `${title} (${why})`);
  $("tries").textContent = `None of these was found in this model: ${found.join(", ")}.`;
}
