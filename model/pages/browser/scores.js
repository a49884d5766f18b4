// What heads are measured by. Scores: those of the chosen head as bars, each with a tick at the value of uniform
// attention, and what they mean. Ablation: each part is replaced by its mean, and the change of the loss is measured at
// each step, in nats per token. A part that is not missed did nothing that others cannot do.

import { $, element, tableHead, track } from "browser/elements.js";
import { markOf, thumbs } from "browser/heads.js";
import { addView, shown } from "browser/render.js";
import { data, formation, headName, headPart, RUNS, SCORES, shortName, tellsSince } from "browser/state.js";
import { decimal, signed } from "browser/words.js";

addView(function drawCard() {
  const names = shown.sides.map(({ head }) => (shown.other ? shortName(head) : headName(head)));
  $("card-title").textContent = `Scores of ${names.join(" and ")}`;
  $("card").replaceChildren(...Object.entries(SCORES).flatMap(([score, { is_pattern, label, meaning }]) => [
    element("dt", {}, is_pattern ? markOf(score) : "", ` ${label}`),
    ...shown.sides.map((side) => rowOf(side, score)),
    element("dd", { className: "soft" }, [meaning, ...shown.sides.flatMap((side) => formedIn(side, score))].join("; ")),
  ]));
});

function rowOf({ name, run, snapshot, head }, score) {
  const value = snapshot.scores[score].flat()[head];
  return element("dd", { className: `row ${name}` },
    shown.other ? element("span", {}, name) : "",
    track([value], RUNS[run].uniform[score]),
    element("span", {}, decimal(value, 3)));
}

function formedIn({ name, run, head }, score) {
  const step = formation(run, score, head);
  return step < Infinity && tellsSince(run) ? [`${shown.other ? `${name} ` : ""}since\u00a0step\u00a0${step}`] : [];
}

// ---- ablation

const COLUMNS = { text: "on text", repeated: "on repetition" };

// [rise, standard error] of the loss without a part; null at steps at which it was not measured.
const withoutPart = ({ ablation }, probe, part) => ablation?.[probe][part] ?? null;
const isClear = ([rise, error]) => error !== null && Math.abs(rise) > data.errors * error;

// The rise without one head; null if it is not known.
export const withoutHead = (snapshot, probe, head) => withoutPart(snapshot, probe, headPart(head))?.[0] ?? null;

function changeInWords(change) {
  if (!change) return "not measured";
  return isClear(change) ? `${signed(change[0], 3)} ± ${decimal(change[1], 3)}` : "no clear effect";
}

addView(function drawNumbers() {
  for (const [head, thumb] of thumbs.entries()) {
    const change = withoutPart(shown.snapshot, shown.probeName, headPart(head));
    thumb.lastChild.textContent = change && (isClear(change) ? signed(change[0]) : "≈ 0");
    if (change) thumb.ariaLabel += `, loss without it, in nats per token: ${changeInWords(change)}`;
  }
});

// The table, for one or two snapshots: the chosen head first, then the tables and the feed-forwards.
addView(function drawTable() {
  const { sides } = shown;
  const chosen = headPart(shown.head);
  const parts = sides.flatMap(({ snapshot }) => Object.keys(snapshot.ablation?.text ?? {}));
  const rows = [chosen, ...parts.filter((part) => !part.startsWith("head "))];
  const columns = Object.keys(COLUMNS).flatMap((column) => sides.map((side) => ({ column, side })));
  const cell = (part, { column, side: { snapshot } }) => changeInWords(withoutPart(snapshot, column, part));
  const row = (part) => element("tr", {}, element("th", { scope: "row" }, part),
    ...columns.map((column) => element("td", {}, cell(part, column))));
  const titles = columns.map(({ column, side }) => COLUMNS[column] + (shown.other ? `, ${side.title}` : ""));
  const body = element("tbody", {}, ...[...new Set(rows)].map(row));
  $("ablations").replaceChildren(tableHead(["without", ...titles]), body);
});
