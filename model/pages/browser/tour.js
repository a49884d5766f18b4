// A tour of what this model does. Each stop has one sentence and highlights one thing; what the model does not do has
// no stop. The tour begins by itself if a person can type, has never closed it, and came without a link to a view. Its
// button always begins it.

import { $, button, closest, element, onKeys, SIDEWAYS } from "browser/elements.js";
import { TRIED_AT } from "browser/experiments.js";
import { ofHead, PAD, weightAt } from "browser/maps.js";
import { addView, change, rendered, shown } from "browser/render.js";
import {
  ALL_HEADS, data, formation, formedBetween, headName, headPart, holdAddress, holdsWeights, LAST, mapped,
  placeOf, PLAIN, save, state, stepOf,
} from "browser/state.js";
import { probabilities } from "browser/sampling.js";
import { box, keepText, showInBox } from "browser/text.js";
import { engine, tokensOf } from "browser/typed-text.js";
import { listed, percent, quote } from "browser/words.js";
import { stopWriting } from "browser/writing.js";

const KEPT_AS = "glassgpt: tour"; // the key in the browser's storage, set once a person has closed the tour
const ELSEWHERE = "You have changed the view: “back” and “next” return to the tour, “skip” ends it.";
const LOOKED_AT = ["at", "head", "probe", "token", "typed", "off", "other", "text"]; // fields of the state
const REPEATED = "A made-up word, twice"; // the title of an experiment, see experiments.py

let stops = []; // { thing: the id of the highlighted element, patch: a change of the state, sentence }
let number = 0; // of the present stop
let turn = 0; // counts visits to stops: a visit ends early once there is a later one
let before = null; // the state to restore at the end, with all changes that a person has made since
let toured = null; // the state that the tour has set
let [opener, scrolled] = [null, 0]; // the element that had the focus, and how far the page was scrolled
let isTheirs = false; // whether a person has changed something
let isShown = false; // whether the stop is on the screen

const previousTokenHeads = (at) =>
  ALL_HEADS.filter((head) => formation("previous_token", head) <= stepOf(at));

function previousStop(calm) {
  const heads = previousTokenHeads(calm.at);
  if (!heads.length) return [];
  const strength = mapped[calm.at].scores.previous_token.flat();
  const head = closest(heads, (candidate) => -strength[candidate]);
  const { labels, sides: [{ weights }] } = shown;
  const weightOf = (query) => weightAt(ofHead(weights, head, labels.length), query, query - 1);
  const clear = [...labels.keys()].filter((query) => query && weightOf(query) > 0.5);
  if (!clear.length) return [];
  const token = clear[clear.length >> 1]; // one in the middle
  const gives = `gives ${percent(weightOf(token))} of its attention to ${quote(labels[token - 1])}`;
  const sentence = `This is ${headPart(head)} (${headName(head)}, both counted from 0), which reads the token ` +
    `before: in the framed row, ${quote(labels[token])} ${gives}.`;
  return [{ thing: "stage", patch: { ...calm, head, token }, sentence }];
}

// A made-up word that begins again; the same without the head that finds its first copy; the head on which that one
// builds; and an earlier step, at which the model cannot do it yet.
async function repeatedStops(calm) {
  const effect = data.experiments?.effects.find(({ title }) => title === REPEATED);
  if (!shown.typing || !effect) return [];
  const { off, trial: { text, answer, right, source } } = effect;
  const { tokens, labels } = tokensOf(text);
  const last = tokens.length - 1;
  const ask = (name, at, off, more) => engine.ask(name, { snapshot: mapped[at].weights, tokens, off, ...more });
  const { block } = await ask("read", calm.at, [], { details: false });
  const chanceOfRight = async (at, off = []) => {
    const chances = probabilities(await ask("logits", at, off, { token: last }), PLAIN);
    return right.reduce((sum, id) => sum + chances[id], 0);
  };
  const intact = await chanceOfRight(calm.at);
  const fails = (chance) => chance <= intact / 2;
  const weightOf = (head) => weightAt(ofHead(block, head, tokens.length), last, source);
  const finder = closest(ALL_HEADS, (head) => -weightOf(head));
  let [missing, without] = [headPart(finder), await chanceOfRight(calm.at, [headPart(finder)])];
  // If several heads find the word, one may not be missed: then the experiment's head, on which they build, is off.
  if (!fails(without)) [missing, without] = [off[0], await chanceOfRight(calm.at, off)];
  const word = { ...calm, typed: text, token: last, head: finder };
  let writer = null; // the earlier head that the finder needs most
  const found = [{
    thing: "stage",
    patch: word,
    sentence: "These random letters begin again, and only their first copy tells how they go on: " +
      `${headPart(finder)} looks there (last row, ${percent(weightOf(finder))} on ${quote(labels[source])}), and ` +
      `${quote(answer)} gets a probability of ${percent(intact)}.`,
  }, {
    thing: "coming",
    patch: { ...word, off: [missing] },
    sentence: `With ${missing} switched off, ${quote(answer)} falls from ${percent(intact)} (the tick) to ` +
      `${percent(without)} (the bar).`,
  }];
  return [...found, ...(await writerStops()), ...(await formedStops())];

  // The earlier heads that tell each token which token came before it, ordered by what is lost without each.
  async function writerStops() {
    const earlier = previousTokenHeads(calm.at).filter((head) => placeOf(head)[0] < placeOf(finder)[0]);
    const effects = [];
    for (const head of earlier) effects.push({ head, left: await chanceOfRight(calm.at, [headPart(head)]) });
    effects.sort((a, b) => a.left - b.left);
    const writers = effects.filter(({ left }) => left < 0.95 * intact);
    if (!writers.length || writers[0].left > 0.75 * intact) return [];
    writer = writers[0].head;
    const others = writers.slice(1).map(({ head, left }) => `without ${headPart(head)} to ${percent(left)}`);
    return [{
      thing: "square",
      patch: { ...word, square: { query: last, key: source } },
      sentence: `${headPart(writer).replace("h", "H")} tells ${quote(labels[source])} that ${quote(labels[last])} ` +
        `came before it, and ${headPart(finder)} looks for this: without ${headPart(writer)} ${quote(answer)} falls ` +
        `from ${percent(intact)} to ${listed([percent(writers[0].left), ...others])} (see “Score”).`,
    }];
  }

  // An earlier step, at which the model fails because it has no such heads yet.
  async function formedStops() {
    for (const early of [...mapped.keys()].slice(0, calm.at).filter(holdsWeights)) {
      const then = await chanceOfRight(early);
      if (!fails(then)) continue;
      const dates = [[finder, "induction"], [writer, "previous_token"]]
        .filter(([head, score]) => head !== null && formation(score, head) < Infinity)
        .map(([head, score]) => `${headPart(head)} formed ${formedBetween(formation(score, head))}`);
      const why = dates.length ? listed(dates) : `${headPart(finder)} does not look there yet`;
      const gets = `${quote(answer)} gets ${percent(then)}, and at step ${stepOf(calm.at)} (B) ${percent(intact)}`;
      const sentence = `At step ${stepOf(early)} (A) ${gets}: ${why}.`;
      return [{ thing: "coming", patch: { ...word, at: early, other: calm.at }, sentence }];
    }
    return [];
  }
}

// The fields that a person has changed since the tour set them.
const changed = () => LOOKED_AT.filter((field) => toured && String(state[field]) !== String(toured[field]));

async function put(patch) {
  await stopWriting();
  adopt();
  if (patch.typed !== undefined && patch.typed !== box.value) {
    if (box.value !== toured?.typed) keepText();
    showInBox(patch.typed);
  }
  change(patch);
  toured = { ...state };
  await rendered;
}

// Keeps what a person has changed for the end of the tour; the chosen token only together with its text.
function adopt() {
  const fields = changed();
  const isTyped = fields.includes("typed");
  isTheirs ||= fields.length > 0;
  for (const field of isTyped ? [...fields, "token"] : fields)
    if (field !== "token" || isTyped) before[field] = state[field];
}

async function open() {
  if (!$("tour").hidden) return visit(0);
  opener = document.activeElement;
  [before, scrolled] = [{ ...state }, scrollY];
  isTheirs = false;
  holdAddress(true);
  const plain = { ...PLAIN, off: [], other: null, text: "attention", square: null };
  const typed = shown.typing ? { typed: data.text, probe: 0 } : {};
  const token = shown.typing ? Math.max(0, tokensOf(data.text).tokens.length - 1) : shown.token;
  const calm = { ...before, ...plain, ...typed, token, at: shown.typing ? TRIED_AT : LAST };
  await put(calm);
  const sentence = `The model reads tokens, not letters: this text has ${shown.labels.length}, each in a frame, and ` +
    "the shade of each shows how much the chosen one reads of it.";
  stops = [{ thing: "editor", patch: calm, sentence }, ...previousStop(calm), ...(await repeatedStops(calm))];
  $("tour").hidden = false;
  await visit(0);
}

async function visit(next) {
  const visitTurn = ++turn;
  number = next;
  isShown = false;
  const { thing, patch, sentence } = stops[number];
  await put(patch);
  const isDrawn = () => thing !== "square" || $("square").querySelector("ol") || !state.square;
  while (visitTurn === turn && !isDrawn()) await new Promise(requestAnimationFrame);
  if (visitTurn !== turn) return;
  isShown = true;
  $("tour-says").textContent = sentence; // before `highlight`: it sets the height of the card
  $("tour-place").textContent = `${number + 1} of ${stops.length}`;
  highlight(thing);
  back.disabled = number === 0;
  forward.textContent = number === stops.length - 1 ? "done" : "next";
  forward.focus({ preventScroll: true });
}

function highlight(thing) {
  document.querySelector(".toured")?.classList.remove("toured");
  if (!thing) return;
  $(thing).classList.add("toured");
  $(thing).scrollIntoView({ block: "nearest" });
  // The card is below what the stop speaks of, or above it if there is no room.
  $("tour").classList.remove("above");
  const [card, kept] = [$("tour"), $("model")].map((node) => node.getBoundingClientRect());
  const [top, bottom] = spokenOf(thing);
  const first = Math.max(0, kept.bottom);
  if (top < first || bottom > card.top) scrollBy(0, (top + bottom - first - card.top) / 2);
  $("tour").classList.toggle("above", spokenOf(thing)[1] > card.top);
}

// The top and the bottom, in the window, of what the stop speaks of.
function spokenOf(thing) {
  const node = thing === "square" ? $("square").querySelector("li:nth-child(2)") ?? $("square") : $(thing);
  const { top, bottom } = node.getBoundingClientRect();
  if (thing !== "stage") return [top, bottom];
  const [{ geometry: { cell }, over }] = shown.panes;
  const row = over.getBoundingClientRect().top + PAD + shown.token * cell;
  return [row, row + cell];
}

async function close() {
  turn++;
  $("tour").hidden = true;
  highlight(null);
  opener?.focus?.({ preventScroll: true });
  storage?.setItem(KEPT_AS, "closed");
  await put(before);
  toured = null;
  holdAddress(false);
  if (isTheirs) save();
  scrollTo(0, scrolled);
}

let storage = null; // null if the page may not store anything: then the tour does not begin by itself
try {
  storage = localStorage;
} catch {}

// A person may change the view meanwhile: it stays until the tour goes on.
addView(function drawTour() {
  if ($("tour").hidden || !isShown) return;
  $("tour-says").textContent = changed().length ? ELSEWHERE : stops[number].sentence;
});

const go = (by) => (stops[number + by] ? visit(number + by) : by > 0 && close());
const [back, forward] = [button("back", () => go(-1)), button("next", () => go(1))];
Object.assign($("tour"), { role: "dialog", ariaLabel: "tour" });
$("tour").append(
  element("p", { id: "tour-says", ariaLive: "polite" }),
  element("div", { className: "bar" }, element("span", { id: "tour-place", className: "soft" }), back, forward,
    button("skip", close)));
onKeys($("tour"), { ...SIDEWAYS, Escape: 0 }, (by) => (by ? go(by) : close()));
$("tour-start").addEventListener("click", open);

let offered = false;
addView(function offerTour() {
  if (offered || (data.text !== undefined && !shown.typing)) return;
  offered = true;
  $("tour-start").hidden = false;
  // A person who comes with a link sees its view, and a person with a narrow screen sees the top of the page.
  if (shown.typing && innerWidth >= 700 && !location.hash && storage?.getItem(KEPT_AS) === null) open();
});
