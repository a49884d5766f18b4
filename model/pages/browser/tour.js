// A tour of what this model does, in stops of one sentence and one highlighted thing each. It begins by itself where a
// person can type, has not closed it before, and came without a link to a view; and always from its button. What the
// model does not do has no stop.

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
import { listed, percent, quote, visible } from "browser/words.js";
import { stopWriting } from "browser/writing.js";

const KEPT_AS = "glassgpt: tour"; // in the browser's storage, once it was closed
const ELSEWHERE = "You have gone on by yourself: “back” and “next” return to the tour, “skip” ends it.";
const LOOKED_AT = ["at", "head", "probe", "token", "typed", "off", "other", "text"]; // fields of the state
const REPEATED = "A made-up word, twice"; // the experiment; see experiments.py

let stops = []; // { thing: the id of what is highlighted, patch: what to do to the state, tell: the sentence }
let number = 0; // of the stop
let turn = 0; // of the visits to stops; one that is left early does no more
let before = null; // the state that the tour will leave behind: as it was, and what a person has changed since
let mine = null; // the state as the tour has put it
let [opener, scrolled] = [null, 0]; // what had the focus, and how far the page was scrolled
let isTheirs = false; // whether a person has changed something
let isShown = false; // whether the stop is

const previousTokenHeads = (at) =>
  ALL_HEADS.filter((head) => formation("previous_token", head) <= stepOf(at));

function previousStop(calm) {
  const heads = previousTokenHeads(calm.at);
  if (!heads.length) return [];
  const strength = mapped[calm.at].scores.previous_token.flat();
  const head = closest(heads, (one) => -strength[one]);
  const { labels, sides: [{ weights }] } = shown;
  const given = (query) => weightAt(ofHead(weights, head, labels.length), query, query - 1);
  const clear = [...labels.keys()].filter((query) => query && given(query) > 0.5);
  if (!clear.length) return [];
  const token = clear[clear.length >> 1]; // one in the middle
  const gives = `gives ${percent(given(token))} of its attention to ${quote(labels[token - 1])}`;
  const tell = `This is ${headPart(head)} (${headName(head)}, both counted from 0), which reads the token before: in ` +
    `the framed row ${quote(labels[token])} ${gives}.`;
  return [{ thing: "stage", patch: { ...calm, head, token }, tell }];
}

// A made-up word that begins again; without the head that finds it there; and at a step at which there is none yet.
async function repeatedStops(calm) {
  const effect = data.experiments?.effects.find(({ title }) => title === REPEATED);
  if (!shown.typing || !effect) return [];
  const { off, trial: { text, answer, right, source } } = effect;
  const { tokens, labels } = tokensOf(text);
  const last = tokens.length - 1;
  const ask = (name, at, off, more) => engine.ask(name, { snapshot: mapped[at].weights, tokens, off, ...more });
  const { block } = await ask("read", calm.at, [], { details: false });
  // What the right token gets of the probability.
  const share = async (at, off = []) => {
    const chances = probabilities(await ask("logits", at, off, { token: last }), PLAIN);
    return right.reduce((sum, id) => sum + chances[id], 0);
  };
  const intact = await share(calm.at);
  const fails = (one) => one <= intact / 2;
  const given = (head) => weightAt(ofHead(block, head, tokens.length), last, source);
  const finder = closest(ALL_HEADS, (head) => -given(head));
  let [missing, without] = [headPart(finder), await share(calm.at, [headPart(finder)])];
  // Where several find it, an earlier head on which they build.
  if (!fails(without)) [missing, without] = [off[0], await share(calm.at, off)];
  const word = { ...calm, typed: text, token: last, head: finder };
  let writer = null; // the head that writes the note
  const found = [{
    thing: "stage",
    patch: word,
    tell: "These letters were drawn at random and begin again, so only the first copy tells how they go on: " +
      `${headPart(finder)} looks there (last row, ${percent(given(finder))} on ${quote(labels[source])}), and ` +
      `${quote(answer)} gets ${percent(intact)}.`,
  }, {
    thing: "coming",
    patch: { ...word, off: [missing] },
    tell: `With ${missing} switched off ${quote(answer)} falls from ${percent(intact)} (the mark) to ` +
      `${percent(without)} (the bar).`,
  }];
  return [...found, ...(await writerStops()), ...(await formedStops())];

  // The earlier heads that leave on each token a note of the one before it: credit by what is lost without each.
  async function writerStops() {
    const earlier = previousTokenHeads(calm.at).filter((head) => placeOf(head)[0] < placeOf(finder)[0]);
    const effects = [];
    for (const head of earlier) effects.push({ head, left: await share(calm.at, [headPart(head)]) });
    effects.sort((one, two) => one.left - two.left);
    const writers = effects.filter(({ left }) => left < 0.95 * intact);
    if (!writers.length || writers[0].left > 0.75 * intact) return [];
    writer = writers[0].head;
    const others = writers.slice(1).map(({ head, left }) => `${headPart(head)} to ${percent(left)}`);
    const less = others.length ? `, without ${listed(others)}` : "";
    return [{
      thing: "square",
      patch: { ...word, square: { query: last, key: source } },
      tell: `A note on ${quote(labels[source])}, “before me came ${visible(labels[last], 20)}”, leads ` +
        `${headPart(finder)} there; it comes ${others.length ? "mostly " : ""}from ${headPart(writer)}: without it ` +
        `${quote(answer)} falls from ${percent(intact)} to ${percent(writers[0].left)}${less} (see “Score”).`,
    }];
  }

  // At an earlier step there is no such head yet.
  async function formedStops() {
    for (const early of [...mapped.keys()].slice(0, calm.at).filter(holdsWeights)) {
      const then = await share(early);
      if (!fails(then)) continue;
      const dates = [[finder, "induction"], [writer, "previous_token"]]
        .filter(([head, score]) => head !== null && formation(score, head) < Infinity)
        .map(([head, score]) => `${headPart(head)} formed ${formedBetween(formation(score, head))}`);
      const why = dates.length ? listed(dates) : `${headPart(finder)} does not look there yet`;
      const gets = `${quote(answer)} gets ${percent(then)}, and in the end (B) ${percent(intact)}`;
      const tell = `At step ${stepOf(early)} (A) ${gets}: ${why}.`;
      return [{ thing: "coming", patch: { ...word, at: early, other: calm.at }, tell }];
    }
    return [];
  }
}

// The fields that a person has changed since the tour put them.
const changed = () => LOOKED_AT.filter((field) => mine && String(state[field]) !== String(mine[field]));

async function put(patch) {
  await stopWriting();
  adopt();
  if (patch.typed !== undefined && patch.typed !== box.value) {
    if (box.value !== mine?.typed) keepText();
    showInBox(patch.typed);
  }
  change(patch);
  mine = { ...state };
  await rendered;
}

// What a person has changed stays when the tour goes on or ends; a token stays with its text.
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
  const tell = `The model reads no letters but tokens, of which this text has ${shown.labels.length}: each is framed,` +
    " and its shade shows how much the chosen one reads of it.";
  stops = [{ thing: "editor", patch: calm, tell }, ...previousStop(calm), ...(await repeatedStops(calm))];
  $("tour").hidden = false;
  await visit(0);
}

async function visit(next) {
  const mine = ++turn;
  number = next;
  isShown = false;
  const { thing, patch, tell } = stops[number];
  await put(patch);
  const isDrawn = () => thing !== "square" || $("square").querySelector("ol") || !state.square;
  while (mine === turn && !isDrawn()) await new Promise(requestAnimationFrame);
  if (mine !== turn) return;
  isShown = true;
  $("tour-says").textContent = tell; // which gives the card its height
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
  // The card stands below what the stop speaks of, or above it.
  $("tour").classList.remove("above");
  const [card, kept] = [$("tour"), $("model")].map((one) => one.getBoundingClientRect());
  const [top, bottom] = spokenOf(thing);
  const first = Math.max(0, kept.bottom);
  if (top < first || bottom > card.top) scrollBy(0, (top + bottom - first - card.top) / 2);
  $("tour").classList.toggle("above", spokenOf(thing)[1] > card.top);
}

// Where that is in the window.
function spokenOf(thing) {
  const spoken = thing === "square" ? $("square").querySelector("li:nth-child(2)") ?? $("square") : $(thing);
  const { top, bottom } = spoken.getBoundingClientRect();
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
  mine = null;
  holdAddress(false);
  if (isTheirs) save();
  scrollTo(0, scrolled);
}

let storage = null; // where a page may keep nothing: there the tour does not begin by itself
try {
  storage = localStorage;
} catch {}

// What a person does meanwhile stays until the tour goes on.
addView(function drawTour() {
  if ($("tour").hidden || !isShown) return;
  $("tour-says").textContent = changed().length ? ELSEWHERE : stops[number].tell;
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
  // Whoever comes with a link to a view sees that, and whoever has a narrow screen the top of the page.
  if (shown.typing && innerWidth >= 700 && !location.hash && storage?.getItem(KEPT_AS) === null) open();
});
