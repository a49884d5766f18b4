// The film (see film.py): plays the steps of training on a made-up word that begins again. It draws an arrow into the
// head that finds how the word goes on, the finder, from each head that raises its score of that place; and says what
// happens, in one line. It stops with a question where heads look one token back, and where the word is learned.

import { shape } from "browser/chart.js";
import { $, button, element } from "browser/elements.js";
import { thumbs } from "browser/heads.js";
import { weightOf } from "browser/maps.js";
import { addView, change, shown } from "browser/render.js";
import { figuresOf } from "browser/recorded.js";
import { probabilities } from "browser/sampling.js";
import {
  ALL_HEADS, data, headNumber, headPart, LAST, nearest, PLAIN, state, stepOf, textNumber,
} from "browser/state.js";
import { box, keepText, showInBox } from "browser/text.js";
import { toggled } from "browser/typed-text.js";
import { capital, decimal, largestFirst, listed, percent, quote } from "browser/words.js";
import { stopWriting } from "browser/writing.js";

const SECONDS = 10; // from the first step to the last, without the questions
const HELPED = 0.25; // a smaller chance of the right token is none that a head has helped to
const LEAST = 0.5; // a head that raises the score by less has no arrow
const WIDEST = 6; // pixels of an arrow
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches; // then a person goes from step to step
const { film } = data;
const { right, source } = film ?? {};
export const finder = headNumber(film?.finder); // undefined if there is no such head
export const writers = (film?.writers ?? []).map(headNumber); // the one that helps most first
const first = `the first ${quote(film?.labels[source] ?? "")}`;

// Where the film stops, by place on the slider. If both happen there, it asks about the leap.
const stops = new Map(Object.entries(film?.stops ?? {}).map(([what, step]) => [nearest(step), what]));

let timer = null; // of the next step

export const word = { probe: textNumber("word"), token: film?.labels.length - 1, square: null, other: null };

// Shows the word: to type to, where the page holds the model; else as it was recorded.
export function showWord(patch = {}) {
  const isTyped = textNumber("typed") !== undefined;
  if (isTyped && box.value !== film.text) keepText();
  if (isTyped) showInBox(film.text);
  const typed = isTyped ? { typed: film.text, probe: 0 } : {};
  change({ ...word, ...typed, off: [], ...PLAIN, film: null, ...patch });
}

async function play() {
  await stopWriting();
  const start = state.at === LAST && { at: 0 };
  change({ ...word, off: [], film: "plays", head: finder ?? state.head, part: null, ...start });
  if (innerWidth < 700) $("controls").scrollIntoView(); // on a narrow screen the film is below the curves
  goOn();
}

function pause() {
  clearTimeout(timer);
  change({ film: null });
}

function goOn() {
  clearTimeout(timer);
  if (state.film === "plays" && !calm) timer = setTimeout(next, (1000 * SECONDS) / Math.max(1, LAST));
}

// Shows the next step; after the last one, the word as text to type to.
function next() {
  if (state.at === LAST) return showWord();
  const at = state.at + 1;
  change({ at, film: stops.has(at) ? "asks" : "plays" });
  goOn();
}

// What the film's button says and does. A person who wants no motion asks for each step.
const ACTIONS = {
  plays: calm ? ["▶ next step", next] : ["❚❚ pause", pause],
  asks: ["▶ answer", () => change({ film: "answers" })],
  answers: ["▶ go on", next],
};
const action = () => ACTIONS[state.film] ?? ["▶ film", play];

// Which heads raise the finder's score of that place, by how much: the three that do so most.
function helpOf(raises) {
  const heads = largestFirst(raises).slice(0, 3).filter((head) => raises[head] >= LEAST);
  if (!heads.length) return "no earlier head raises its attention score there yet";
  const named = listed(heads.map((head) => `${headPart(head)} (+${decimal(raises[head], 1)})`));
  return `${named} ${heads.length > 1 ? "raise" : "raises"} its attention score there`;
}

// Each question and its answer are about what was recorded at that step; `before`: the chance at the step before.
function questionOf(what, { chance, raises }, before, weight) {
  const gets = `${quote(right)} gets ${percent(chance)}`;
  const looks = `gives ${first} ${percent(weight)} of its attention`;
  if (what === "writers") {
    const heads = `${capital(listed(writers.map(headPart)))} now ${writers.length > 1 ? "look" : "looks"}`;
    const unsteady = before < HELPED ? "Not yet" : `Not steadily (${percent(before)} one step before)`;
    return [`${heads} one token back. Does that help already?`,
      `${chance < HELPED ? unsteady : "Yes"}: ${gets}. ${capital(headPart(finder))} ${looks}; ${helpOf(raises)}.`];
  }
  const since = `Since step ${stepOf(shown.at - 1)} ${quote(right)} has risen`;
  return [`${since} from ${percent(before)} to ${percent(chance)}. What does ${headPart(finder)} do now?`,
    `It ${looks}, because it followed ${quote(film.labels.at(-1))} before. How it finds it: ${helpOf(raises)}.`];
}

function sentenceOf({ chance, raises }, weight) {
  const gets = `${quote(right)}, which is right, gets ${percent(chance)}.`;
  if (film.missing) return `${gets} At the last step, ${film.missing}.`;
  return `${gets} ${capital(headPart(finder))} gives ${first} ${percent(weight)} of its attention; ${helpOf(raises)}.`;
}

// At the end the reader switches these heads off, in the live model.
function experiment(weight) {
  const [{ typed, exact: { logits }, whole, off }] = shown.sides;
  const chance = (of) => percent(probabilities(of, PLAIN)[typed.tokens[source]]);
  const told = off.length
    ? `Without ${listed(off)} ${quote(right)} gets ${chance(logits)} instead of ${chance(whole)}.`
    : `Random letters: only their first copy tells that ${quote(right)} comes next (${chance(whole)}). ` +
      `${capital(headPart(finder))} looks there (${percent(weight)}); arrows: who tells it where. ` +
      "Switch them off, one by one and together:";
  const switchOf = (part) => {
    const isOff = off.includes(part);
    const onclick = () => change({ off: toggled(part), head: finder, part: null });
    return element("button", { className: "switch", ariaPressed: !isOff, onclick }, isOff ? `${part}: off` : part);
  };
  return [told, " ", ...[...writers, finder].map(headPart).map(switchOf)];
}

addView(async function drawFilm() {
  const frame = shown;
  const isShown = film && frame.isWord && frame.other === null;
  if (state.film && !isShown) pause();
  $("film").hidden = !film || frame.other !== null;
  $("play").hidden = !film || LAST < 1;
  [$("play").textContent] = action();
  const stop = state.film && stops.get(frame.at);
  const steps = isShown ? [frame.at, ...(stop ? [Math.max(0, frame.at - 1)] : [])] : [];
  const [figures, before] = await Promise.all(steps.map((at) => figuresOf("word", at)));
  if (frame !== shown) return;
  drawArrows(frame.off?.length ? null : figures?.raises);
  if (!isShown) return $("film-says").replaceChildren(
    button("back to the made-up word", () => showWord({ at: LAST })),
    " Or type any letters twice, and see whether a head looks at their first copy.");
  const last = frame.labels.length - 1;
  const weight = finder === undefined ? 0 : weightOf(frame.sides[0], finder, last, source);
  const [asks, answers] = stop ? questionOf(stop, figures, before.chance, weight) : [];
  const told = { asks, answers }[state.film];
  const isLive = frame.typing && !film.missing && frame.token === last;
  $("film-says").replaceChildren(
    ...(told ? [told, " ", button(...action())] : isLive ? experiment(weight) : [sentenceOf(figures, weight)]));
});

// An arrow from each head that raises the finder's score, as thick as it does so.
function drawArrows(raises) {
  $("arrows").replaceChildren();
  if (!raises) return;
  const middle = ({ offsetLeft, offsetTop, offsetWidth }) => [offsetLeft + offsetWidth / 2, offsetTop];
  $("arrows").setAttribute("width", $("grid").scrollWidth);
  const [x, y] = middle(thumbs[finder]);
  for (const head of ALL_HEADS) {
    if (raises[head] < LEAST) continue;
    const [from, top] = middle(thumbs[head]);
    const height = top - 22;
    const d = `M${from} ${top}C${from} ${height} ${x} ${height} ${x} ${y}`;
    shape($("arrows"), "path", { d, class: "arc", "stroke-width": Math.min(WIDEST, raises[head]).toFixed(1) });
  }
  const tip = `M${x - 6} ${y - 8}L${x} ${y}L${x + 6} ${y - 8}z`;
  if ($("arrows").childElementCount) shape($("arrows"), "path", { d: tip });
}

$("play").addEventListener("click", () => action()[1]());
