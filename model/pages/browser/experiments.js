// The experiments that hold for this model (see experiments.py): each has a text and one change, and shows what PyTorch
// predicted beside what the page measures. They do only what a person can do: type, choose a head, switch it off.

import { $, button, closest, element } from "browser/elements.js";
import { ofHead, weightAt } from "browser/maps.js";
import { addView, change, shown } from "browser/render.js";
import { choosing, data, headNumber, headPart, holdsWeights, mapped, PLAIN, RUN, state } from "browser/state.js";
import { box, keepText, showInBox } from "browser/text.js";
import { engine, tokensOf } from "browser/typed-text.js";
import { percent, quote } from "browser/words.js";
import { stopWriting } from "browser/writing.js";

const OPENING = $("experiment").textContent;
const { effects, tried } = data.experiments ?? { effects: [], tried: {} };
export const TRIED_AT = [...mapped.keys()].findLast(holdsWeights); // the step at which they were tried
let chosen = null; // { effect, before, after }: what the page measured before the change and after it, by step
let answer = null; // the nodes that answer REPEATS

// The text and the parts that are off, before the change and after it.
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
  $("experiment").replaceChildren(...(before ? lookAt(effect) : after ? compare(effect) : answer ?? [OPENING]));
});

const paragraph = (...nodes) => element("p", {}, ...nodes);
const likeliestOnes = () => `the ${shown.sides[0].next.length} likeliest`;
const rightGets = ({ trial: { right, answer } }) =>
  right.length > 1
    ? `those of ${likeliestOnes()} tokens that begin with ${quote(answer)} together get`
    : `${quote(answer)} gets`;
const whenTried = () => `at step ${mapped[TRIED_AT].step}`;
const usually = ({ usual, texts: [halved, right] }) =>
  `${whenTried()} on ${halved} of ${right} texts that the model got right, it fell to half or less (medians ` +
  `${fromTo(usual)}; a token not among ${likeliestOnes()} counts as 0%)`;

function headOf({ head, weight, trial: { source }, texts: [, right] }) {
  if (!weight) return "";
  const [{ weights, labels }] = shown.sides;
  const number = headNumber(head);
  const here = percent(weightAt(ofHead(weights, number, labels.length), labels.length - 1, source));
  return `Look at the last row of its map: ${headPart(number)} gives ${here} of its attention to ` +
    `${quote(labels[source])}, which tells what comes next (mean of ${right} texts: ${percent(weight)}).`;
}

const lookAt = (effect) => [
  paragraph(`${effect.look} What should come next: ${rightGets(effect)} ${percent(chosen.before[shown.at])}. `,
    headOf(effect)),
  paragraph(`Expected after the change: half of that or less; ${usually(effect)}. `,
    button(`▶ ${effect.change}`, () => show(effect, 1))),
];

function compare(effect) {
  const share = (pair) => element("b", {}, fromTo(pair));
  return [
    element("p", { id: "predicted" },
      `Before → after the change, ${rightGets(effect)} `, share(effect.shares), " as PyTorch predicted ",
      `${whenTried()}, `, share([chosen.before[shown.at], chosen.after[shown.at]]),
      ` as measured here at step ${shown.snapshot.step}; ${usually(effect)}.`),
    paragraph(`${effect.question} `, button("◀ undo the change", () => show(effect, 0))),
  ];
}

// If the experiment of this name does not hold, the page measures it on what the model writes.
const REPEATS = "Why does it repeat itself?";
const [WRITTEN, IN_A_ROW, SHARP] = [400, 5, 0.5]; // tokens to write, tokens of a repeat, temperature
const copiers = Object.keys(RUN.formation.induction ?? {}).map((name) => `head ${name}`);

// Writes on after the text: the share of tokens that end a repeat, and all tokens as nodes, those marked.
async function writeOn(off) {
  const written = [];
  const request = { snapshot: mapped[TRIED_AT].weights, tokens: tokensOf(box.value).tokens, off, count: WRITTEN };
  await engine.ask("write", { ...request, temperature: SHARP }, { onValue: (token) => written.push(token) });
  const rows = written.map((_, i) => String(written.slice(Math.max(0, i + 1 - IN_A_ROW), i + 1)));
  const repeats = rows.map((row, i) => rows.indexOf(row) < i);
  const share = percent(repeats.filter(Boolean).length / (WRITTEN - IN_A_ROW + 1));
  const label = engine.tokenizer.label;
  return { share, nodes: written.map((token, i) => element(repeats[i] ? "mark" : "span", {}, label(token))) };
}

async function tellWhy() {
  await stopWriting();
  const copier = closest(copiers, (part) => -mapped[TRIED_AT].ablation.repeated[part][0]);
  const [whole, without] = [await writeOn([]), await writeOn([copier])];
  chosen = null;
  const text = (name, { share, nodes }) =>
    element("div", {}, element("b", {}, `${name}, ${share} repeats:`), element("pre", {}, ...nodes));
  answer = [
    paragraph(`Written after ${quote(box.value.slice(-20))}, twice, at temperature ${SHARP}. A token is marked if it ` +
      `ends ${IN_A_ROW} in a row that were written before. One pair of texts may be chance: press again for another.`),
    element("div", { className: "both" }, text(`With ${copier}`, whole), text("Without it", without)),
    paragraph("This head finds what followed the same token before (induction), so what was written once is written " +
      "again. At a higher temperature it repeats itself less, too. ",
      button(`▶ write in the box without ${copier}, at temperature ${SHARP}`, async () => {
        await stopWriting();
        change({ off: [copier], temperature: SHARP });
        $("write").click();
      })),
  ];
  change({ at: TRIED_AT, ...choosing(copier), off: [] });
}

// Typing another text ends an experiment and undoes its change.
box.addEventListener("input", () => {
  if (chosen && String(state.off) === String(chosen.effect.off)) state.off = [];
  chosen = answer = null;
}, true); // captured, so that it runs before the text is read
$("experiment").hidden = !effects.length;
$("tries").append(...effects.map((effect) => button(effect.title, () => show(effect, 0))));
if (copiers.length && REPEATS in tried) $("tries").append(button(REPEATS, tellWhy));
if (data.experiments && !effects.length) {
  const reasons = Object.entries(tried).map(([title, why]) => `${title} (${why})`);
  $("tries").textContent = `None of these experiments holds for this model: ${reasons.join(", ")}.`;
}
