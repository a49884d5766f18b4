// What the page holds, what is shown of it, and both in the address.

const data = JSON.parse($("data").textContent);
const { layers: LAYERS, heads: HEADS, probes: PROBES, runs: RUNS } = data;
const SCORES = {
  previous_token: ["previous token", "P", "looks at the token just before"],
  duplicate: ["duplicate", "D", "looks at the same token, earlier in the text"],
  induction: ["induction", "I", "looks at what followed the same token earlier"],
  sink: ["sink", "S", "looks at the first token, a place to rest"],
  entropy: ["entropy", "E", "spreads its weight: 1 is over everything alike"],
};
const MARKED = ["previous_token", "duplicate", "induction", "sink"];

// The captures of a run that have maps on this page; all of them have scores.
const mapped = RUNS.map((run) => run.captures.filter((capture) => capture.blocks));
const lastOf = (run) => mapped[run].length - 1;
const secondRun = RUNS.length > 1 ? { run: 1, at: lastOf(1) } : null;
const state = {
  run: 0, at: lastOf(0), probe: 0, head: bestHead("previous_token"), order: "layer", score: "previous_token",
  scale: "sqrt", token: null, received: false, other: secondRun,
  theme: matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light",
};
let shown = null; // what is on the screen: the state it was drawn from, the captures and their decoded weights
let hovered = null; // { query, key } under the pointer or the keyboard's crosshair
let pointed = null; // the token of the text under the pointer
let playing = null;

function bestHead(score) {
  const values = mapped[0].at(-1).scores[score].flat();
  return values.indexOf(Math.max(...values));
}

const headName = (head) => `layer ${Math.floor(head / HEADS)}, head ${head % HEADS}`;
const shortName = (head) => `${Math.floor(head / HEADS)}.${head % HEADS}`;
const formation = (run, score, head) => RUNS[run].formation[score]?.flat()[head] ?? Infinity;
const labelsOf = (probe) => PROBES[probe].labels;
const chosenToken = () => pointed ?? shown.token;
const clamp = (i, last) => Math.max(0, Math.min(last, i));

// The place among a run's steps that is nearest to a step.
function nearest(run, step) {
  const far = ({ step: other }) => Math.abs(Math.log1p(other) - Math.log1p(step));
  return mapped[run].reduce((best, capture, at) => (far(capture) < far(mapped[run][best]) ? at : best), 0);
}

// ---- in the address, so that a view can be kept and sent

function save() {
  const { run, at, head, probe, order, score, scale, theme, received, token, other } = state;
  const fields = {
    step: mapped[run][at].step, head: shortName(head), probe: PROBES[probe].name, order, score, scale, theme,
    direction: received ? "from" : "to",
  };
  if (RUNS.length > 1) fields.run = run;
  if (token !== null) fields.token = token;
  if (other) fields.against = `${other.run}.${mapped[other.run][other.at].step}`;
  try {
    history.replaceState(null, "", `#${new URLSearchParams(fields)}`);
  } catch {
    // Within a frame that has no address of its own there is nowhere to keep it.
  }
}

function restore() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const number = (text, count) => (/^\d+$/.test(text ?? "") && Number(text) < count ? Number(text) : undefined);
  const pick = (field, options) => (options.includes(fields.get(field)) ? fields.get(field) : undefined);
  const found = {
    run: number(fields.get("run"), RUNS.length), order: pick("order", ["layer", ...Object.keys(SCORES)]),
    score: pick("score", Object.keys(SCORES)), scale: pick("scale", ["sqrt", "linear"]), theme: pick("theme", ["light", "dark"]),
  };
  for (const [field, value] of Object.entries(found)) if (value !== undefined) state[field] = value;
  const step = number(fields.get("step"), Infinity);
  state.at = step === undefined ? Math.min(state.at, lastOf(state.run)) : nearest(state.run, step);
  const probe = PROBES.findIndex(({ name }) => name === fields.get("probe"));
  if (probe >= 0) state.probe = probe;
  const [layer, head] = (fields.get("head") ?? "").split(".");
  if (number(layer, LAYERS) !== undefined && number(head, HEADS) !== undefined) state.head = layer * HEADS + Number(head);
  if (!location.hash) return;
  state.received = fields.get("direction") === "from";
  state.token = number(fields.get("token"), labelsOf(state.probe).length) ?? null;
  const [run, other] = (fields.get("against") ?? "").split(".");
  const known = number(run, RUNS.length) !== undefined && number(other, Infinity) !== undefined;
  state.other = known ? { run: Number(run), at: nearest(Number(run), Number(other)) } : null;
}
