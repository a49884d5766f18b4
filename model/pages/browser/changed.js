// One line that says what is not as in the trained model, or beside it: switched off, patched, compared; and one button
// that ends all of it.

import { $, element } from "browser/elements.js";
import { addView, change, shown } from "browser/render.js";
import { listed, visible } from "browser/words.js";

addView(function drawChanged() {
  const { typing, off, otherText, other, sides } = shown;
  const parts = [
    typing && off.length && `Off, replaced by their mean: ${listed(off)}.`,
    typing && otherText && `Text B to patch from: “${visible(otherText, 30)}”.`,
    other !== null && `Compared: A, ${sides[0].when}, with B, ${sides[1].when}.`,
  ].filter(Boolean);
  $("changed").hidden = !parts.length;
  const onclick = () => {
    $("other-text").value = "";
    change({ off: [], otherText: "", other: null, target: null });
  };
  const textContent = typing && off.length ? "all as trained" : "end this";
  const button = element("button", { id: "as-trained", textContent, onclick });
  $("changed").replaceChildren(parts.join(" "), " ", button);
});
