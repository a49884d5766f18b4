// A tour of what this model does. Each stop has one sentence and highlights one thing; what the model does not do has
// no tour. The tour begins by itself if a person can type, has never closed it, and came without a link to a view. Its
// button always begins it, and what a person does ends it.

import { $, button, element, onKeys, SIDEWAYS } from "browser/elements.js";
import { TRIED_AT } from "browser/experiments.js";
import { finder, showWord, word, writers } from "browser/film.js";
import { addView, change, rendered, shown } from "browser/render.js";
import { data, headPart, PLAIN, snapshots, state } from "browser/state.js";
import { probabilities } from "browser/sampling.js";
import { engine, tokensOf } from "browser/typed-text.js";
import { listed, percent, quote } from "browser/words.js";
import { stopWriting } from "browser/writing.js";

const KEPT_AS = "glassgpt: tour"; // the key in the browser's storage, set once a person has closed the tour
const LOOKED_AT = ["at", "head", "probe", "token", "typed", "off", "other", "text"]; // fields of the state

let stops = []; // { thing: the id of the highlighted element, patch: a change of the state, sentence }
let number = 0; // of the present stop
let turn = 0; // counts visits to stops: a visit ends early once there is a later one
let opener = null; // the element that had the focus
let toured = null; // the state that the present stop has set

// What the film's word shows: how it goes on, the head that finds it, and the heads on which that one builds.
async function stopsOf(calm) {
  const { text, right, source, missing } = data.film ?? {};
  if (!shown.typing || !data.film || missing) return [];
  const { tokens, labels } = tokensOf(text);
  const last = tokens.length - 1;
  const snapshot = snapshots[calm.at].weights;
  const lastWithout = (...heads) => engine.ask("at", { snapshot, tokens, token: last, off: heads.map(headPart) });
  const chanceWithout = async (...heads) =>
    percent(probabilities((await lastWithout(...heads)).logits, PLAIN)[tokens[source]]);
  const weight = percent((await lastWithout()).weights[finder][source]);
  const [whole, alone] = [await chanceWithout(), await chanceWithout(finder)];
  const groups = [...writers.map((head) => [head]), ...(writers.length > 1 ? [writers] : [])];
  const without = [];
  for (const heads of groups) without.push(`without ${listed(heads.map(headPart))} ${await chanceWithout(...heads)}`);
  const off = (...heads) => ({ ...calm, off: heads.map(headPart) });
  return [{
    thing: "stage", patch: calm,
    sentence: `How does it continue letters it has never seen? In the last row ${headPart(finder)} gives ${weight} ` +
      `of its attention to the first ${quote(right)}, which followed ${quote(labels[last])} before: an induction head.`,
  }, {
    thing: "coming", patch: off(finder),
    sentence: `With ${headPart(finder)} switched off, ${quote(right)} gets ${alone} (the bar) instead of ` +
      `${whole} (the tick).`,
  }, {
    thing: "square", patch: { ...calm, square: { query: last, key: source } },
    sentence: `What tells it where? At each token ${listed(writers.map(headPart))} noted what came before it, and ` +
      `${headPart(finder)} looks for the note ${quote(labels[last])} (see “Attention score”).`,
  }, {
    thing: "coming", patch: off(...writers),
    sentence: `What ${quote(right)} gets: ${listed(without)}.`,
  }, {
    thing: "controls", patch: calm,
    sentence: "The film shows how these heads formed while the model learned: press ▶ film.",
  }];
}

async function open() {
  opener ??= document.activeElement;
  await stopWriting();
  const calm = { ...word, text: "attention", probe: 0, typed: data.film.text, off: [], at: TRIED_AT, ...PLAIN };
  showWord(calm);
  await rendered;
  stops = await stopsOf({ ...calm, head: finder, part: null, film: null });
  $("tour").hidden = false;
  await visit(0);
}

async function visit(next) {
  const visitTurn = ++turn;
  number = next;
  const { thing, patch, sentence } = stops[number];
  toured = null; // while the stop is on its way to the screen
  change(patch);
  await rendered;
  const isDrawn = () => thing !== "square" || $("square").querySelector("ol") || !state.square;
  while (visitTurn === turn && !isDrawn()) await new Promise(requestAnimationFrame);
  if (visitTurn !== turn) return;
  toured = { ...state };
  $("tour-says").textContent = sentence;
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
}

function close() {
  turn++;
  toured = null;
  $("tour").hidden = true;
  highlight(null);
  opener?.focus?.({ preventScroll: true });
  opener = null;
  storage?.setItem(KEPT_AS, "closed");
}

// Ends the tour with all parts as trained.
function end() {
  close();
  change({ off: [], square: null });
}

let storage = null; // null if the page may not store anything: then the tour does not begin by itself
try {
  storage = localStorage;
} catch {}

// What a person does meanwhile ends the tour.
addView(function drawTour() {
  if (toured && LOOKED_AT.some((field) => String(state[field]) !== String(toured[field]))) close();
});

const go = (by) => (stops[number + by] ? visit(number + by) : by > 0 && end());
const [back, forward] = [button("back", () => go(-1)), button("next", () => go(1))];
Object.assign($("tour"), { role: "dialog", ariaLabel: "tour" });
$("tour").append(
  element("p", { id: "tour-says", ariaLive: "polite" }),
  element("div", { className: "bar" }, element("span", { id: "tour-place", className: "soft" }), back, forward,
    button("skip", end)));
onKeys($("tour"), { ...SIDEWAYS, Escape: 0 }, (by) => (by ? go(by) : end()));
$("tour-start").addEventListener("click", open);

let offered = false;
addView(function offerTour() {
  if (offered || !shown.typing || !data.film || data.film.missing) return;
  offered = true;
  $("tour-start").hidden = false;
  // A person who comes with a link sees its view, and a person with a narrow screen sees the top of the page.
  if (innerWidth >= 700 && !location.hash && storage?.getItem(KEPT_AS) === null) open();
});
