// Parts of the model that a person switches off: heads on their thumbnails, the others by a button each; and what the
// model is then worse at.

import { keys } from "browser/controls.js";
import { $, changeTo, element } from "browser/elements.js";
import { thumbs } from "browser/heads.js";
import { addChoices, addView, change, shown } from "browser/render.js";
import { addField, headPart, state } from "browser/state.js";
import { engine } from "browser/typed-text.js";
import { decimal, largestFirst, listed, quote } from "browser/words.js";

const WORST = 5; // tokens that are listed

function toggle(part) {
  const others = state.off.filter((one) => one !== part);
  change({ off: others.length < state.off.length ? others : [...others, part] });
}

addView(function drawSwitches() {
  for (const [head, thumb] of thumbs.entries()) {
    const off = shown.typing && shown.off.includes(headPart(head));
    thumb.classList.toggle("off", off);
    if (off) thumb.ariaLabel += ", switched off";
  }
  if (!shown.typing) return;
  if (!$("switches").children.length) buildSwitches();
  for (const button of $("switches").querySelectorAll("button"))
    button.ariaPressed = !shown.off.includes(button.dataset.part);
});

// All that is not a head: a lit button is on. Parts that every layer has stand in a line, each with its layer's number.
function buildSwitches() {
  let [kind, line] = [null, null];
  const others = engine.parts.filter((part) => !part.startsWith("head "));
  for (const part of others.sort(new Intl.Collator("en", { numeric: true }).compare)) {
    const [, name, layer] = /^(.*?) ?(\d*)$/.exec(part);
    if (name !== kind) $("switches").append((line = element("div", {}, layer ? `${name} ` : "")));
    kind = name;
    const onclick = () => toggle(part);
    line.append(element("button", { textContent: layer || name, ariaLabel: part, dataset: { part }, onclick }));
  }
}

addView(function drawDamage() {
  if (!shown.typing) return;
  const [{ loss, intact, edits, labels, details }] = shown.sides;
  $("all-on").hidden = edits.length > 0;
  $("worse").hidden = !edits.length;
  $("loss-now").replaceChildren();
  if (!edits.length) return;
  const effect = loss === null ? [] : ["the loss ", ...changeTo(intact.loss, loss), " nats per token. "];
  $("loss-now").replaceChildren(`Without ${listed(shown.off)}: `, ...effect);

  // The bits at a place are the cost of the token after it.
  const [before, after] = [intact.details, details].map(({ probes }) => probes.text.bits);
  const rises = after.map((bits, place) => bits - before[place]);
  const worse = largestFirst(rises).filter((place) => place + 1 < labels.length && rises[place] > 0.05);
  $("worse").replaceChildren(...worse.slice(0, WORST).map((place) => {
    const token = place + 1;
    const button = element("button", { textContent: quote(labels[token]), onclick: () => change({ token }) });
    const bits = `${decimal(before[place], 1)} → ${decimal(after[place], 1)} bits`;
    return element("li", {}, button, ` token ${token}: ${bits}`);
  }));
});

// What a click on a thumbnail does, and what a part gives that is off.
addChoices($("clicks"), "clicks", [["looks", "look"], ["switches", "switch off"]]);
addChoices($("replacement"), "replacement", [["mean", "its mean"], ["zero", "nothing"]]);
// Before the thumbnail's own listener, which chooses the head.
$("grid").addEventListener("click", (event) => {
  const head = thumbs.indexOf(event.target.closest(".thumb"));
  if (state.clicks === "looks" || head < 0 || !shown.typing) return;
  event.stopPropagation();
  toggle(headPart(head));
}, true);
keys.x = () => shown.typing && toggle(headPart(state.head));
addField("off", () => state.off.join() || null, (text) => {
  state.off = (text ?? "").split(",").filter((part) => part && (!engine || engine.parts.includes(part)));
});
