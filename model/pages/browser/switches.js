// The switches: a person switches parts of the model off in its picture, and sees what the model then predicts worse.

import { keys } from "browser/controls.js";
import { $, button, element } from "browser/elements.js";
import { buttons } from "browser/heads.js";
import { addChoices, addView, change, shown } from "browser/render.js";
import { addField, choosing, headPart, state } from "browser/state.js";
import { lossOf } from "browser/measured.js";
import { engine, toggled } from "browser/typed-text.js";
import { decimal, largestFirst, listed, quote, signed } from "browser/words.js";

const WORST = 5; // tokens that are listed

const toggle = (part) => change({ off: toggled(part), panel: "breaking", ...choosing(part) });

addView(function drawSwitches() {
  for (const [part, button] of buttons) {
    const off = shown.typing && shown.off.includes(part);
    button.classList.toggle("off", off);
    button.ariaLabel = button.ariaLabel.replace(/, switched off$/, "") + (off ? ", switched off" : "");
  }
});

addView(function drawDamage() {
  if (!shown.typing) return;
  const [{ intact, measured, off, labels }] = shown.sides;
  $("worse").hidden = $("loss-now").hidden = !off.length || labels.length < 2;
  $("all-on").hidden = !$("loss-now").hidden;
  if ($("loss-now").hidden) return;
  const whole = intact.figures;
  // bits[i] is the surprise at token i + 1.
  const [before, after] = [whole.bits, measured.bits];
  const rises = after.map((bits, place) => bits - before[place]);
  const worse = largestFirst(rises).filter((place) => place + 1 < labels.length && rises[place] > 0.05);
  const then = worse.length ? "These tokens surprise it more:" : "";
  const loss = lossOf(measured);
  $("loss-now").replaceChildren(`Without ${listed(off)} the loss of this text changes by `,
    element("b", {}, signed(loss - lossOf(whole))), ` to ${decimal(loss)} nats per token. ${then}`);
  $("worse").replaceChildren(...worse.slice(0, WORST).map((place) => {
    const token = place + 1;
    const bits = `${decimal(before[place], 1)} → ${decimal(after[place], 1)} bits`;
    return element("li", {}, button(quote(labels[token]), () => change({ token })), ` token ${token}: ${bits}`);
  }));
});

// All kinds of changes share one panel, so that the text, the change and its effect are in sight together.
const PANELS = [["try", "Try"], ["breaking", "Break it"], ["patching", "Patch it"]];
addChoices($("panels"), "panel", PANELS);
addView(() => PANELS.forEach(([panel]) => ($(panel).hidden = panel !== shown.panel)));
// While "Break it" is open, a click on a part switches it: captured, before the part's own listener chooses it.
$("grid").addEventListener("click", (event) => {
  const [part] = [...buttons].find(([, button]) => button.contains(event.target)) ?? [];
  if (state.panel !== "breaking" || !part || !shown.typing) return;
  event.stopPropagation();
  toggle(part);
}, true);
keys.x = () => shown.typing && toggle(headPart(state.head));
addField("off", () => state.off.join() || null, (text) => {
  state.off = (text ?? "").split(",").filter((part) => part && (!engine || engine.parts.includes(part)));
});
