// Activation patching (Meng et al. 2022, arXiv:2202.05262; Wang et al. 2022): puts one head's output at one token of
// text B into the reading of text A, for every head and token, and shows how this changes the prediction.

import { $, createCells, element } from "browser/elements.js";
import { fillRamp } from "browser/large-map.js";
import { rgb } from "browser/maps.js";
import { addView, change, shown } from "browser/render.js";
import { addField, ALL_HEADS, headPart, shortName, snapshots, state } from "browser/state.js";
import { engine } from "browser/typed-text.js";
import { percent, quote, signed, visible } from "browser/words.js";

const CANDIDATES = 5; // likeliest next tokens of each text, among which a person chooses the target
const LEAST = 0.1; // a change of a logit that has the full colour, if no change is larger
const ALL = "patch every head at every token";
const DONE = `Each square: one head at one token gives what it gives at the same place of B. Blue raises the logit,
  orange lowers it. Point at a square to read it; click to choose its head and token.`;

const table = $("patch-matrix");
state.target = null;
let matrix = null; // { key, target, rows: see LiveModel.patchAll, cells: those of the table }
let running = null; // the AbortController of the request that fills the matrix

// The question for the model; null if there is no second text.
function currentPatch() {
  const [{ next, typed, other }] = shown.sides;
  if (!shown.typing || !other) return null;
  const candidates = [...new Set([next, other.next].flatMap((list) => list.slice(0, CANDIDATES).map(([id]) => id)))];
  const target = candidates.includes(shown.target) ? shown.target : other.next[0][0];
  const question = { snapshot: snapshots[shown.at].weights, tokens: typed.tokens, other: other.typed.tokens, target };
  return { candidates, question, key: JSON.stringify(question) };
}

addView(function drawPatch() {
  const patch = currentPatch();
  $("patch").hidden = !patch;
  if (matrix?.key !== patch?.key) stop();
  if (!patch) return;
  const options = patch.candidates.map((id) => new Option(visible(engine.tokenizer.label(id), 24), id));
  $("patch-target").replaceChildren(...options);
  $("patch-target").value = patch.question.target;
  drawMatrix();
});

function stop() {
  running?.abort();
  running = matrix = null;
  $("patch-all").textContent = ALL;
  drawMatrix();
  const [a, b] = [shown.labels.length, shown.sides[0].other?.typed.labels.length];
  $("patch-note").textContent = b && a !== b
    ? `A has ${a} tokens and B ${b}: the first ${Math.min(a, b)} are patched. Best is a B with as many as A.`
    : "";
}

async function fillMatrix() {
  if (running) return stop();
  const [{ labels, other }] = shown.sides;
  const { key, question } = currentPatch();
  stop();
  const both = labels.slice(0, other.typed.labels.length); // the places that both texts have
  const cells = newCells(ALL_HEADS.map(shortName), both.length, 0);
  const filling = (matrix = { key, target: question.target, rows: [], cells });
  const names = both.map((label) => element("th", {}, element("span", {}, visible(label, 12))));
  table.tFoot.rows[0].replaceChildren(element("th"), ...names);
  table.style.setProperty("--columns", both.length);
  $("patch-all").textContent = "cancel";
  $("patch-note").textContent = "You can use the page meanwhile; another text, step or choice here stops this.";
  drawMatrix();
  $("patch").scrollIntoView({ block: "nearest" });
  const onValue = (row) => {
    filling.rows.push(row);
    drawMatrix();
  };
  running = new AbortController();
  await engine.ask("patchAll", question, { onValue, signal: running.signal });
  if (matrix !== filling) return; // it was stopped
  running = null;
  $("patch-all").textContent = ALL;
  $("patch-note").textContent = DONE;
}

function drawMatrix() {
  table.hidden = $("patch-ramp").hidden = !matrix;
  if (!matrix) return;
  const { rows, cells } = matrix;
  const changes = rows.map(({ plain, patched }) => patched.map(([logit]) => logit - plain[0]));
  const largest = Math.max(LEAST, ...changes.flat().map(Math.abs));
  fillRamp($("patch-ramp"), "differences", [signed(-largest), "logit", signed(largest)]);
  for (const [row, ofHead] of changes.entries())
    for (const [token, change] of ofHead.entries())
      cells[row][token].style.background = rgb(shown.palette.difference(change / largest));
}

const newCells = createCells(table, {
  read(head, token) {
    if (!matrix.rows[head]) return;
    const { plain, patched } = matrix.rows[head];
    const [logit, share] = patched[token];
    const target = quote(engine.tokenizer.label(matrix.target));
    const place = `${headPart(head)} at token ${token} ${quote(shown.labels[token])}`;
    const effect = `${target} ${percent(plain[1])} → ${percent(share)}, its logit ${signed(logit - plain[0])}`;
    $("patch-note").textContent = `${place}: ${effect}`;
  },
  choose: (head, token) => matrix.rows[head] && change({ head, token }),
});

$("from-a").addEventListener("click", () => {
  $("other-text").value = shown.typed;
  $("other-text").focus();
  change({ otherText: shown.typed });
});
$("other-text").addEventListener("input", ({ target }) => change({ otherText: target.value }));
$("patch-target").addEventListener("change", ({ target }) => change({ target: Number(target.value) }));
$("patch-all").addEventListener("click", fillMatrix);
addField("b", () => state.otherText || null, (text) => {
  $("other-text").value = text ?? "";
  state.otherText = $("other-text").value;
});
