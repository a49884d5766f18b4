// Activation patching (Meng et al. 2022, https://arxiv.org/abs/2202.05262; Wang et al. 2022): what one head gives at one
// token of a text B is put into the reading of text A, and the logit of a token to come next is compared.

import { $, ARROWS, changeTo, clamp, css, onKeys } from "browser/elements.js";
import { fillRamp } from "browser/large-map.js";
import { fitCanvas, rgb } from "browser/maps.js";
import { addView, change, shown } from "browser/render.js";
import { addField, ALL_HEADS, headPart, LAYERS, placeOf, shortName, state } from "browser/state.js";
import { answerTo, engine } from "browser/typed-text.js";
import { quote, signed, visible } from "browser/words.js";

const CANDIDATES = 5; // of each text's likeliest next tokens, from which the one is chosen whose logit is shown
const LEFT = 34; // pixels for the names of heads
const [NARROWEST, WIDEST, HIGH] = [11, 26, 15]; // pixels of a square
const FONT = "10px system-ui, sans-serif";
const ALL = "every head at every token";
const DONE = "Each square: one head at one token, given what it gives at the same place of B. Blue raises the logit, orange lowers it. Point at a square to read it; click to choose its head and token.";

Object.assign(state, { from: null, target: null });
let matrix = null; // { key, rows: [head][token], the change of the logit }
let running = null; // what fills it
let pointed = null; // { head, token }

const name = (labels, token) => `${token} ${visible(labels[token], 16)}`;

// What is patched: the chosen head at the chosen token.
function chosen() {
  const [{ labels, next, other }] = shown.sides;
  if (!other) return null;
  const candidates = [...new Set([...next.slice(0, CANDIDATES), ...other.next.slice(0, CANDIDATES)].map(([id]) => id))];
  const into = shown.token ?? labels.length - 1;
  const target = candidates.includes(shown.target) ? shown.target : other.next[0][0];
  return { candidates, into, target, from: clamp(shown.from ?? into, other.typed.labels.length - 1), head: shown.head };
}

const keyOf = ({ target }) => JSON.stringify([shown.at, shown.typed, shown.otherText, target]);

function fill(select, options, value) {
  select.replaceChildren(...options.map(([id, text]) => new Option(text, id)));
  select.value = value;
}

async function drawPatch() {
  const patch = chosen();
  $("patch").hidden = !patch;
  if (!patch) return stop();
  const [{ typed, labels, other }] = shown.sides;
  const { into, from, target, head } = patch;
  fill($("patch-from"), other.typed.labels.map((_, token) => [token, name(other.typed.labels, token)]), from);
  fill($("patch-target"), patch.candidates.map((id) => [id, visible(engine.tokenizer.label(id), 24)]), target);
  $("patch-what").textContent = `Chosen above: what ${headPart(head)} gives at token ${into} ${quote(labels[into])} of A`;
  if (matrix?.key !== keyOf(patch)) stop();
  drawMatrix();
  const now = shown;
  const [layer, column] = placeOf(head);
  const asked = JSON.stringify([keyOf(patch), head, into, from]);
  if ($("patched").dataset.asked !== asked) $("patched").textContent = "computing …";
  $("patched").dataset.asked = asked;
  const answer = await answerTo(engine.patch(shown.at, typed.tokens, other.typed.tokens, { layer, head: column, position: into, from, target }));
  if (!answer || now !== shown) return;
  const start = `With it, the logit of ${quote(engine.tokenizer.label(target))} after text A `;
  const notes = [
    shown.off.length && "All parts are on here.",
    layer === LAYERS - 1 && into < labels.length - 1 && "No later layer reads this head there: choose the last token, or a head of an earlier layer.",
  ];
  $("patched").replaceChildren(start, ...changeTo(answer.plain, answer.patched), `. ${notes.filter(Boolean).join(" ")}`);
}

// ---- every head at every token

function stop() {
  running?.drop();
  running = matrix = pointed = null;
  $("patch-all").textContent = ALL;
  $("patch-progress").hidden = $("patch-matrix").hidden = $("patch-ramp").hidden = true;
  $("patch-note").textContent = "";
}

async function fillMatrix() {
  if (running) return stop();
  const [{ typed, other }] = shown.sides;
  const patch = chosen();
  stop();
  const mine = (matrix = { key: keyOf(patch), rows: [] });
  $("patch-all").textContent = "cancel";
  Object.assign($("patch-progress"), { hidden: false, max: ALL_HEADS.length, value: 0 });
  const tellProgress = () => ($("patch-note").textContent = `${mine.rows.length} of ${ALL_HEADS.length} heads are patched. The page can be used meanwhile; a change of a text stops this.`);
  tellProgress();
  running = engine.patchAll(shown.at, typed.tokens, other.typed.tokens, patch.target, ({ row }) => {
    $("patch-progress").value = mine.rows.push(row);
    if (!pointed) tellProgress();
    drawMatrix();
  });
  if (!(await running.done)) return; // dropped
  running = null;
  $("patch-all").textContent = ALL;
  $("patch-progress").hidden = true;
  $("patch-note").textContent = $("live").textContent = DONE;
}

function geometry() {
  const [{ labels, other }] = shown.sides;
  const columns = Math.min(labels.length, other.typed.labels.length); // each token gets what B has at the same place
  const wide = clamp(Math.floor(($("patching").clientWidth - LEFT - 40) / columns), WIDEST);
  return { labels, columns, wide: Math.max(NARROWEST, wide) };
}

function drawMatrix() {
  $("patch-matrix").hidden = $("patch-ramp").hidden = !matrix;
  if (!matrix) return;
  const { labels, columns, wide } = geometry();
  const bottom = ALL_HEADS.length * HIGH;
  const texts = labels.slice(0, columns).map((label) => visible(label, 12));
  const measuring = $("patch-matrix").getContext("2d");
  measuring.font = FONT;
  const room = Math.max(...texts.map((text) => measuring.measureText(text).width)) + 8;
  const context = fitCanvas($("patch-matrix"), LEFT + columns * wide + 4, bottom + room);
  const largest = Math.max(1e-6, ...matrix.rows.flat().map(Math.abs));
  fillRamp($("patch-ramp"), shown.palette.spread, [signed(-largest), "logit", signed(largest)]);
  context.font = FONT;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const head of ALL_HEADS) {
    context.fillStyle = css(head === shown.head ? "accent" : "soft");
    context.fillText(shortName(head), LEFT - 5, (head + 0.5) * HIGH);
    for (let token = 0; token < columns && matrix.rows[head]; token++) {
      context.fillStyle = rgb(shown.palette.difference(matrix.rows[head][token] / largest));
      context.fillRect(LEFT + token * wide, head * HIGH, wide - 1, HIGH - 1);
    }
  }
  for (let token = 0; token < columns; token++) {
    context.save();
    context.translate(LEFT + (token + 0.5) * wide, bottom + 4);
    context.rotate(-Math.PI / 2);
    context.fillStyle = css(token === shown.token ? "accent" : "ink");
    context.fillText(texts[token], 0, 0);
    context.restore();
  }
  if (pointed) {
    context.strokeStyle = css("accent");
    context.lineWidth = 2;
    context.strokeRect(LEFT + pointed.token * wide - 1, pointed.head * HIGH - 1, wide + 1, HIGH + 1);
  }
}

function point(place) {
  pointed = place && matrix?.rows[place.head]?.[place.token] !== undefined ? place : null;
  if (pointed) {
    const { head, token } = pointed;
    const [{ labels }] = shown.sides;
    $("patch-note").textContent = `${headPart(head)} at token ${token} ${quote(labels[token])}: ${signed(matrix.rows[head][token])}`;
  }
  drawMatrix();
}

function locate({ offsetX, offsetY }) {
  const { columns, wide } = geometry();
  const [token, head] = [Math.floor((offsetX - LEFT) / wide), Math.floor(offsetY / HIGH)];
  return token >= 0 && token < columns && head < ALL_HEADS.length ? { head, token } : null;
}

const choose = () => pointed && change({ ...pointed, from: null });

$("patch-matrix").setAttribute("aria-label", "change of the logit by head and token; arrow keys move, enter chooses");
$("patch-matrix").addEventListener("pointermove", (event) => point(locate(event)));
$("patch-matrix").addEventListener("pointerleave", () => point(null));
$("patch-matrix").addEventListener("click", (event) => (point(locate(event)), choose()));
onKeys($("patch-matrix"), ARROWS, ([down, right]) => {
  const { head, token } = pointed ?? { head: 0, token: 0 };
  point({ head: clamp(head + down, ALL_HEADS.length - 1), token: clamp(token + right, geometry().columns - 1) });
  $("live").textContent = $("patch-note").textContent;
}, choose);

$("other-text").addEventListener("input", ({ target }) => change({ otherText: target.value, from: null }));
$("patch-from").addEventListener("change", ({ target }) => change({ from: Number(target.value) }));
$("patch-target").addEventListener("change", ({ target }) => change({ target: Number(target.value) }));
$("patch-all").addEventListener("click", fillMatrix);
addField("b", () => state.otherText || undefined, (text) => ($("other-text").value = state.otherText = text ?? ""));
for (const name of ["target", "from"]) addField(name, () => state[name] ?? undefined, (text) => (state[name] = /^\d+$/.test(text ?? "") ? Number(text) : null));
addView(drawPatch);
