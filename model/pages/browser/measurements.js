// The views of what a snapshot measured beside its maps: surprise, lens and attribution. Their modules know nothing of
// the page; this one gives them what is shown.

import { badge, fold, nextInWords, partsOf, sum } from "browser/attribution.js";
import { $, element, tableHead } from "browser/elements.js";
import { COLOURINGS, createLens } from "browser/lens.js";
import { addChoices, addFollower, addView, change, pointer, shown } from "browser/render.js";
import { partName } from "browser/scores.js";
import { state } from "browser/state.js";
import { expectation, measuredOf } from "browser/surprise.js";
import { quote, signed } from "browser/words.js";

// ---- surprise

function drawSurprise() {
  const on = shown.text === "surprise";
  $("by-surprise").ariaPressed = on;
  $("surprise-key").hidden = !on;
  drawExpectation();
}

function drawExpectation() {
  const token = pointer.token ?? shown.token;
  $("expected").hidden = shown.text !== "surprise" || token === null;
  if ($("expected").hidden) return;
  const sentences = shown.sides.map(({ label, measured }) => label + expectation(measured, token));
  $("expected").replaceChildren(...sentences.map((textContent) => element("p", { textContent })));
}

$("by-surprise").addEventListener("click", () =>
  change({ text: shown.text === "surprise" ? "attention" : "surprise" }));
// What is pointed at on the map is not told here, so that the list is not read out again for each square.
addFollower((patch) => "token" in patch && drawExpectation());

// ---- lens

const panes = [...$("lenses").children];
const lenses = panes.map((pane) => createLens(pane, (token) => change({ token })));

function drawLenses() {
  const { sides, palette, lens: colouring, token } = shown;
  $("lens-meaning").textContent = COLOURINGS.find(([one]) => one === colouring)[2];
  panes.forEach((pane, i) => {
    pane.hidden = !sides[i];
    if (pane.hidden) return;
    const name = (pane.firstChild.textContent = sides[i].title);
    lenses[i]({ measured: sides[i].measured, colouring, colours: palette.colours, token, name });
  });
}

// ---- attribution

state.everyPart = false;

function drawAttribution() {
  const { everyPart, order_of_parts: order, sides: [a, b] } = shown;
  const { labels, parts, attribution_error: error } = a.measured;
  const token = shown.token ?? Math.max(0, labels.length - 2); // the last whose next one is known
  const next = nextInWords(a.measured, token);
  $("attribution-token").textContent = next
    ? `Reading ${token} ${quote(labels[token])}, ${next}.`
    : `${quote(labels[token])} is the last token: what comes after it is not known. Choose an earlier one.`;
  $("pushes").hidden = $("parts").hidden = !next;
  $("passed-on").hidden = !parts.some((name) => name.startsWith("values "));
  const { good, text } = badge(error);
  Object.assign($("attribution-badge"), { textContent: text, className: `badge ${good ? "good" : "bad"}` });
  $("every-part").ariaPressed = everyPart;
  // After the last token two models may expect different ones, whose parts cannot be compared.
  const nextId = ({ measured }) => measured.top.at(-1)[0];
  const comparable = b && (token + 1 < labels.length || nextId(a) === nextId(b));
  $("not-comparable").hidden = !b || comparable;
  const of = ({ measured }) => partsOf(measured, token, order);
  drawParts(of(a), comparable ? of(b) : null);
}

// A row a part: its name, a bar to either side of zero, its number, and that of another snapshot, if there is one.
function drawParts(parts, other) {
  const { shown: large, others } = shown.everyPart ? { shown: parts, others: null } : fold(parts);
  const inOther = (name) => other?.find((part) => part.name === name)?.value ?? null;
  const rows = large.map(({ name, value }) => ({ name: partName(name), value, against: inOther(name) }));
  if (others) {
    const against = other && sum(other.filter(({ name }) => !large.some((part) => part.name === name)));
    const textContent = `others (${others.count})`;
    const name = element("button", { textContent, title: "show every part", onclick: toggleParts });
    rows.push({ name, value: others.value, against });
  }
  const largest = Math.max(1e-9, ...rows.flatMap(({ value, against }) => [Math.abs(value), Math.abs(against)]));
  const body = rows.map(({ name, value, against }) => element("tr", {},
    element("th", { scope: "row" }, name),
    element("td", { className: "balance" }, bar(value, largest, ""), other ? bar(against, largest, "second") : ""),
    element("td", {}, signed(value)),
    other ? element("td", { className: "soft" }, signed(against)) : ""));
  const totals = (other ? [parts, other] : [parts]).map((all) => element("td", {}, signed(sum(all))));
  const foot = element("tr", {}, element("th", { scope: "row" }, "sum: the logit"), element("td"), ...totals);
  const head = other ? tableHead(["", "", ...shown.sides.map(({ title }) => title)]) : "";
  $("parts").replaceChildren(head, element("tbody", {}, ...body), element("tfoot", {}, foot));
}

function bar(value, largest, className) {
  const width = `${(50 * Math.abs(value ?? 0)) / largest}%`;
  const [side, sign] = value < 0 ? ["right", "less"] : ["left", "more"];
  return element("i", { className: `${className} ${sign}`, style: { width, [side]: "50%" } });
}

const toggleParts = () => change({ everyPart: !state.everyPart });

// A model that is asked while one types has lens and attribution after the rest. Until then the earlier ones stay.
async function drawDeep() {
  const now = shown;
  const waiting = now.sides.filter(({ late }) => late);
  if (waiting.length) {
    const details = await Promise.all(waiting.map(({ late }) => late()));
    if (now !== shown || !details.every(Boolean)) return;
    const measured = details.map((found) => measuredOf(found, "text", shown.labels));
    waiting.forEach((side, i) => Object.assign(side, { measured: measured[i], late: null }));
  }
  drawLenses();
  drawAttribution();
}

addChoices($("colourings"), "lens", COLOURINGS);
addChoices($("part-orders"), "order_of_parts", [["largest", "largest first"], ["model", "in the model's order"]]);
$("every-part").addEventListener("click", toggleParts);
addView(drawSurprise);
addView(drawDeep);
