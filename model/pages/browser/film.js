// The film (see film.py): plays the steps of training on a made-up word that begins again. It draws an arrow into the
// head that finds how the word goes on, the finder, from each head that raises its score of that place; and says what
// happens, in one line. At the steps where the two heads begin to form it stops with a question.

import { shape } from "browser/chart.js";
import { $, button, closest, element } from "browser/elements.js";
import { thumbs } from "browser/heads.js";
import { ofHead, weightAt } from "browser/maps.js";
import { addView, change, shown } from "browser/render.js";
import { figuresOf } from "browser/recorded.js";
import { probabilities } from "browser/sampling.js";
import {
  ALL_HEADS, data, headNumber, headPart, LAST, nearest, PLAIN, snapshots, state, textNumber,
} from "browser/state.js";
import { box, keepText, showInBox } from "browser/text.js";
import { decimal, listed, percent, quote } from "browser/words.js";
import { stopWriting } from "browser/writing.js";

const SECONDS = 10; // from the first step to the last, without the questions
const LEAST = 0.5; // a head that raises the score by less has no arrow
const WIDEST = 6; // pixels of an arrow
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches; // then a person goes from step to step
const { film } = data;
const { right, source } = film ?? {};
export const [finder, writer] = [film?.finder, film?.writer].map(headNumber); // undefined if there is no such head
const capital = (head) => headPart(head).replace("h", "H");

// By stop of the slider: the role of the head that begins to form there. If both do, the finder's question covers both.
const roles = new Map(["writer", "finder"].flatMap((role) =>
  (film?.formed[role] ? [[nearest(film.formed[role]), role]] : [])));

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
  const head = finder ?? state.head;
  change({ ...word, off: [], film: "plays", head, part: null, ...(state.at === LAST && { at: 0 }) });
  goOn();
}

function pause() {
  clearTimeout(timer);
  change({ film: null });
}

// A person who wants no motion asks for each step.
function goOn() {
  clearTimeout(timer);
  if (state.film === "plays" && !calm) timer = setTimeout(next, (1000 * SECONDS) / Math.max(1, LAST));
}

// Shows the next step; after the last one, the word as text to type to.
function next() {
  if (state.at === LAST) return showWord();
  const at = state.at + 1;
  change({ at, film: roles.has(at) ? "asks" : "plays" });
  goOn();
}

// Each question and its answer are about what was recorded at that step.
function questionOf(role, { chance, raises }, weight) {
  const gets = `${quote(right)} gets ${percent(chance)}`;
  const best = closest(ALL_HEADS, (head) => -raises[head]);
  const gives = `${headPart(finder)} gives it ${percent(weight)} of its attention, and ${gets}`;
  if (role === "finder") {
    const found = raises[best] < LEAST
      ? `No earlier head raises its score of that place by ${LEAST} or more yet.`
      : `By what ${headPart(best)} has written there, of all earlier heads the most: it raises the score by ` +
        `${decimal(raises[best], 1)}.`;
    const begins = `${capital(finder)} begins to look at what followed ${quote(film.labels.at(-1))} before.`;
    return [`${begins} How does it find it?`, `${found} So ${gives}.`];
  }
  const score = decimal(snapshots[shown.at].scores.previous_token.flat()[writer]);
  const begins = `${capital(writer)} begins to look one token back (score ${score}).`;
  const place = `${quote(film.labels[source])} in ${headPart(finder)}`;
  const helps = `it raises the score of ${place} by ${decimal(raises[writer], 1)}`;
  return weight < 0.25
    ? [`${begins} Why does that not help yet?`, `Nothing uses it: ${helps}; ${gives}.`]
    : [`${begins} What does that add?`, `Now ${helps}; ${gives}.`];
}

function sentenceOf({ chance, raises }, weight) {
  const gets = `${quote(right)}, which is right, gets ${percent(chance)}.`;
  if (film.missing) return `${gets} At the last step, ${film.missing}.`;
  const first = `the first ${quote(film.labels[source])}`;
  return `${gets} ${capital(finder)} gives ${first} ${percent(weight)} of its attention; ${headPart(writer)} ` +
    `raises its score there by ${decimal(raises[writer], 1)}.`;
}

// At the end the reader switches the two heads off, in the live model.
function experiment() {
  const [{ typed, logits, whole, off }] = shown.sides;
  const id = typed.tokens[source];
  const chance = (of) => percent(probabilities(of, PLAIN)[id]);
  const told = off.length
    ? `Without ${listed(off)} ${quote(right)} gets ${chance(logits)} instead of ${chance(whole)}.`
    : `These letters are random: only their first copy tells that ${quote(right)} comes next (${chance(whole)}). ` +
      `${capital(finder)} looks there; arrows show which heads tell it where. Switch one off:`;
  const toggle = (head) => {
    const isOff = off.includes(headPart(head));
    const rest = off.filter((part) => part !== headPart(head));
    return Object.assign(button(headPart(head), () =>
      change({ off: isOff ? rest : [...off, headPart(head)], head: finder, part: null })),
    { className: "switch", ariaPressed: !isOff, title: "switch it off or on" });
  };
  return [told, " ", ...[writer, finder].map(toggle)];
}

addView(async function drawFilm() {
  const frame = shown;
  const isShown = film && frame.isWord && frame.other === null;
  if (state.film && !isShown) pause();
  $("film").hidden = !film || frame.other !== null;
  $("play").hidden = !film || LAST < 1;
  $("play").textContent = state.film ? "❚❚ pause" : "▶ film";
  const figures = isShown ? await figuresOf("word", frame.at) : null;
  if (frame !== shown) return;
  drawArrows(figures && !frame.off?.length ? figures.raises : null);
  if (!isShown) return $("film-says").replaceChildren(
    button("the made-up word", () => showWord({ at: LAST })),
    " Or type any letters twice: its heads look for copies.");
  const [{ weights, labels }] = frame.sides;
  const weight = finder === undefined ? 0 : weightAt(ofHead(weights, finder, labels.length), labels.length - 1, source);
  const role = roles.get(frame.at);
  const [question, found] = role && state.film ? questionOf(role, figures, weight) : [];
  const isLive = frame.typing && !film.missing && frame.token === labels.length - 1;
  const place = [...$("film-says").children].indexOf(document.activeElement);
  $("film-says").replaceChildren(...(
    state.film === "asks" ? [question, " ", button("answer", () => change({ film: "answers" }))]
      : state.film === "answers" ? [found, " ", button("go on", next)]
        : isLive ? experiment()
          : [sentenceOf(figures, weight), ...(calm && state.film ? [" ", button("next step", next)] : [])]));
  $("film-says").children[place]?.focus(); // the buttons are new
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

$("play").addEventListener("click", () => (state.film ? pause() : play()));
