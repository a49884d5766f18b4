// Scores over steps: a line a head, marks where heads form, and cursors at the steps that are shown.

const HIGH = 230;
const curve = { left: 34, right: 10, top: 8, bottom: 24 };

function drawCurves() {
  placeCurves();
  // The lines stay as they are while the step changes, and there may be a hundred of them.
  const { run, head, score, theme, probe, other } = shown;
  const drawn = JSON.stringify([run, head, score, theme, probe, other?.run, $("curve").clientWidth, devicePixelRatio]);
  if ($("curve").dataset.drawn !== drawn) {
    $("curve").dataset.drawn = drawn;
    drawLines();
    describeCurves();
  }
  for (const [id, capture] of [["cursor-a", shown.capture], ["cursor-b", shown.otherCapture]]) {
    $(id).hidden = !capture;
    if (capture) $(id).style.left = `${curve.x(capture.step)}px`;
  }
}

function placeCurves() {
  const width = $("curve").clientWidth - curve.left - curve.right;
  const last = Math.log1p(Math.max(1, ...RUNS.map((run) => run.captures.at(-1).step)));
  curve.x = (step) => curve.left + (Math.log1p(step) / last) * width;
  curve.y = (value) => curve.top + (1 - value) * (HIGH - curve.top - curve.bottom);
}

function drawLines() {
  const { score, head: chosen, other } = shown;
  const run = RUNS[shown.run];
  const context = fitCanvas($("curve"), $("curve").clientWidth, HIGH);
  $("curve").style.width = "100%";
  const [soft, line] = [css("soft"), css("line")];
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  for (const value of [0, 0.5, 1]) {
    drawGuide(context, value, line, []);
    context.textAlign = "right";
    context.fillStyle = soft;
    context.fillText(value, curve.left - 6, curve.y(value));
  }
  if (score !== "entropy") drawGuide(context, (1 + data.uniform[score]) / 2, soft, [2, 4]);
  drawGuide(context, data.uniform[score], soft, [6, 4]);
  drawSteps(context, run);

  const heads = thumbs.map((_, head) => head).filter((head) => head !== chosen);
  for (const head of heads) drawLine(context, run, head, { width: 1, alpha: 0.55 });
  if (other && other.run !== shown.run) drawLine(context, RUNS[other.run], chosen, { width: 2, dash: [5, 4] });
  drawLine(context, run, chosen, { width: 3 });
  for (const head of [...heads, chosen]) drawFormation(context, run, head);
}

function stroke(context, points, colour, width, dash = []) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.setLineDash(dash);
  context.beginPath();
  for (const [step, value] of points) context.lineTo(step, curve.y(value));
  context.stroke();
  context.setLineDash([]);
}

function drawGuide(context, value, colour, dash) {
  stroke(context, [[curve.left, value], [$("curve").clientWidth - curve.right, value]], colour, 1, dash);
}

function drawLine(context, run, head, { width, alpha = 1, dash }) {
  const [layer, column] = [Math.floor(head / HEADS), head % HEADS];
  const points = run.captures.map(({ step, scores }) => [curve.x(step), scores[shown.score][layer][column]]);
  const ofLayer = rgb(shown.palette.colours[Math.round(90 + (165 * (layer + 1)) / LAYERS)]);
  context.globalAlpha = alpha;
  stroke(context, points, head === shown.head ? css(`mark-${shown.score}`) || css("accent") : ofLayer, width, dash);
  context.globalAlpha = 1;
}

function drawFormation(context, run, head) {
  const step = formation(shown.run, shown.score, head);
  if (step === Infinity) return;
  const { scores } = run.captures.find((capture) => capture.step === step);
  context.beginPath();
  context.arc(curve.x(step), curve.y(scores[shown.score].flat()[head]), head === shown.head ? 5 : 3.5, 0, 7);
  context.fillStyle = css(`mark-${shown.score}`);
  context.fill();
  context.strokeStyle = css("panel");
  context.stroke();
}

function drawSteps(context, run) {
  context.fillStyle = css("soft");
  context.textAlign = "center";
  let free = -Infinity;
  for (const { step } of run.captures) {
    const half = context.measureText(step).width / 2;
    const place = Math.min(curve.x(step), $("curve").clientWidth - half - 1);
    if (place - half < free) continue;
    context.fillText(step, place, HIGH - 9);
    free = place + half + 10;
  }
}

// What the picture shows, in words: which heads formed and when, each a way to go there.
function describeCurves() {
  const { score } = shown;
  const [name] = SCORES[score];
  const formed = thumbs.map((_, head) => ({ head, step: formation(shown.run, score, head) }));
  const heads = formed.filter(({ step }) => step < Infinity).sort((one, two) => one.step - two.step || one.head - two.head);
  const told = heads.map(({ head, step }) => `${headName(head)} formed at step ${step}`);
  $("curve").setAttribute("aria-label", [`${name} of every head over steps`, ...told].join("; "));

  const jump = (text, patch) => {
    const button = element("button", { textContent: text });
    button.addEventListener("click", () => change(patch()));
    return button;
  };
  const parts = [];
  if (score !== "entropy") {
    parts.push(heads.length ? `${heads.length} formed: ` : `No head has formed a ${name} pattern. `);
    for (const { head, step } of heads.slice(0, 6))
      parts.push(jump(`${shortName(head)} at ${step}`, () => ({ head, at: nearest(state.run, step) })), " ");
    if (heads.length > 6) parts.push(`and ${heads.length - 6} more `);
  }
  parts.push(score === "entropy" ? "Dashes: uniform attention. " : "Dashes: uniform attention, dots: half-way from it to 1. ");
  const measured = score === "duplicate" || score === "induction" ? "repeated" : "text";
  const probe = PROBES.findIndex((one) => one.name === measured);
  if (probe !== shown.probe) parts.push(`Measured on the ${measured} probe: `, jump("show it", () => ({ probe })));
  $("formed").replaceChildren(...parts);
}

// The head whose line is nearest to the pointer at the nearest step that has maps.
function lineAt({ offsetX, offsetY }) {
  const steps = mapped[state.run];
  const far = (at) => Math.abs(curve.x(steps[at].step) - offsetX);
  const at = steps.reduce((best, _, other) => (far(other) < far(best) ? other : best), 0);
  const values = steps[at].scores[state.score].flat();
  const off = (head) => Math.abs(curve.y(values[head]) - offsetY);
  const head = values.reduce((best, _, other) => (off(other) < off(best) ? other : best), state.head);
  return { at, head, near: off(head) < 8, text: `${headName(head)}: ${values[head].toFixed(2)} at step ${steps[at].step}` };
}

$("curve").addEventListener("click", (event) => {
  const { at, head, near } = lineAt(event);
  change({ at, ...(near && { head }) });
});
$("curve").addEventListener("pointermove", (event) => {
  const { near, text } = lineAt(event);
  $("curve").title = near ? text : "";
});
