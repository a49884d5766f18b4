// Activation patching (Meng et al. 2022, arXiv:2202.05262; Wang et al. 2022): what one head gives at
// one token of a text B is put into the reading of text A, and the logit of a token to come next is compared.

import { $, changeTo, clamp, createCells, element } from "browser/elements.js";
import { fillRamp } from "browser/large-map.js";
import { rgb } from "browser/maps.js";
import { addView, change, shown } from "browser/render.js";
import { addField, ALL_HEADS, headPart, LAYERS, mapped, numberIn, placeOf, shortName, state } from "browser/state.js";
import { ask, engine } from "browser/typed-text.js";
import { quote, signed, visible } from "browser/words.js";

const CANDIDATES = 5; // of each text's likeliest next tokens, from which the one is chosen whose logit is shown
const ALL = "every head at every token";
const DONE = `Each square: one head at one token, given what it gives at the same place of B. Blue raises the logit,
  orange lowers it. Point at a square to read it; click to choose its head and token.`;
const UNREAD = "No later layer reads this head there: choose the last token, or a head of an earlier layer.";

const table = $("patch-matrix");
Object.assign(state, { from: null, target: null });
let matrix = null; // { key, rows: [head][token], the change of the logit, largest of these, cells of the table }
let running = null; // the AbortController of what fills it

// What is patched: the chosen head at the chosen token.
function chosen() {
  const [{ labels, next, typed, other }] = shown.sides;
  if (!shown.typing || !other) return null;
  const candidates = [...new Set([next, other.next].flatMap((ones) => ones.slice(0, CANDIDATES).map(([id]) => id)))];
  const into = shown.token ?? labels.length - 1;
  const target = candidates.includes(shown.target) ? shown.target : other.next[0][0];
  const from = clamp(shown.from ?? into, other.typed.labels.length - 1);
  const key = JSON.stringify([shown.at, shown.typed, shown.otherText, target]);
  const question = { snapshot: mapped[shown.at].weights, tokens: typed.tokens, other: other.typed.tokens, target };
  return { candidates, into, target, from, head: shown.head, key, question };
}

function fill(select, options, value) {
  select.replaceChildren(...options.map(([id, text]) => new Option(text, id)));
  select.value = value;
}

addView(async function drawPatch() {
  const patch = chosen();
  $("patch").hidden = !patch;
  if (!patch) return stop();
  const [{ labels, other }] = shown.sides;
  const { candidates, into, from, target, head, key, question } = patch;
  const { label } = engine.tokenizer;
  fill($("patch-from"), other.typed.labels.map((name, token) => [token, `${token} ${visible(name, 16)}`]), from);
  fill($("patch-target"), candidates.map((id) => [id, visible(label(id), 24)]), target);
  const place = `token ${into} ${quote(labels[into])} of A`;
  $("patch-what").textContent = `Chosen above: what ${headPart(head)} gives at ${place}`;
  if (matrix?.key !== key) stop();
  drawMatrix();
  const now = shown;
  const asked = JSON.stringify([key, head, into, from]);
  if ($("patched").dataset.asked !== asked) $("patched").textContent = "computing …";
  $("patched").dataset.asked = asked;
  const [layer, column] = placeOf(head);
  const answer = await ask("patch", { ...question, layer, head: column, position: into, from });
  if (!answer || now !== shown) return;
  $("patched").replaceChildren(
    `With it, the logit of ${quote(label(target))} after text A `, ...changeTo(answer.plain, answer.patched), ". ",
    shown.off.length ? "All parts are on here. " : "",
    layer === LAYERS - 1 && into < labels.length - 1 ? UNREAD : "");
});

// ---- every head at every token

function stop() {
  running?.abort();
  running = matrix = null;
  $("patch-all").textContent = ALL;
  table.hidden = $("patch-ramp").hidden = true;
  $("patch-note").textContent = "";
}

async function fillMatrix() {
  if (running) return stop();
  const [{ labels, other }] = shown.sides;
  const { key, question } = chosen();
  stop();
  // Each token gets what B has at the same place.
  const both = labels.slice(0, other.typed.labels.length);
  const cells = newCells(ALL_HEADS.map(shortName), both.length, 0);
  const mine = (matrix = { key, rows: [], largest: 1e-6, cells });
  const names = both.map((label) => element("th", {}, element("span", {}, visible(label, 12))));
  table.tFoot.rows[0].replaceChildren(element("th"), ...names);
  table.style.setProperty("--columns", both.length);
  $("patch-all").textContent = "cancel";
  const tellProgress = () => {
    const done = `${mine.rows.length} of ${ALL_HEADS.length} heads are patched.`;
    $("patch-note").textContent = `${done} The page can be used meanwhile; a change of a text stops this.`;
  };
  tellProgress();
  const onValue = (row) => {
    mine.rows.push(row);
    if (!table.matches(":hover, :focus-within")) tellProgress(); // and not while a square is read
    const { largest } = mine;
    mine.largest = Math.max(largest, ...row.map(Math.abs));
    drawMatrix(mine.largest > largest ? 0 : mine.rows.length - 1); // a larger change makes the others paler
  };
  running = new AbortController();
  await engine.ask("patchAll", question, { onValue, signal: running.signal });
  if (matrix !== mine) return; // it was dropped
  running = null;
  $("patch-all").textContent = ALL;
  $("patch-note").textContent = $("live").textContent = DONE;
}

// Colours the rows from that of head `first` on.
function drawMatrix(first = 0) {
  table.hidden = $("patch-ramp").hidden = !matrix;
  if (!matrix) return;
  const { rows, cells, largest } = matrix;
  fillRamp($("patch-ramp"), "differences", [signed(-largest), "logit", signed(largest)]);
  for (let head = first; head < rows.length; head++)
    for (const [token, cell] of cells[head].entries())
      cell.style.background = rgb(shown.palette.difference(rows[head][token] / largest));
  const mark = (names, chosen) => names.forEach((name, i) => name.classList.toggle("chosen", i === chosen));
  mark(table.querySelectorAll("tbody th"), shown.head);
  mark(table.querySelectorAll("tfoot span"), shown.token);
}

const newCells = createCells(table, {
  read(head, token) {
    const change = matrix.rows[head]?.[token];
    if (change === undefined) return;
    const place = `token ${token} ${quote(shown.labels[token])}`;
    $("patch-note").textContent = $("live").textContent = `${headPart(head)} at ${place}: ${signed(change)}`;
  },
  choose: (head, token) => matrix.rows[head] && change({ head, token, from: null }),
});

$("other-text").addEventListener("input", ({ target }) => change({ otherText: target.value, from: null }));
for (const field of ["from", "target"]) {
  $(`patch-${field}`).addEventListener("change", ({ target }) => change({ [field]: Number(target.value) }));
  addField(field, () => state[field], (text) => (state[field] = numberIn(text) ?? null));
}
$("patch-all").addEventListener("click", fillMatrix);
addField("b", () => state.otherText || null, (text) => {
  $("other-text").value = text ?? "";
  state.otherText = $("other-text").value;
});
