// In the picture of a circuit: to point at a node lights its paths from the tokens and to the predictions; to click on
// it switches it off and says what the loss is then; to click on a step shows the weights of that step.

const nodes = [...document.querySelectorAll(".node")];
const edges = [...document.querySelectorAll("line")];
const shown = document.getElementById("sentence");
const steps = [...document.querySelectorAll(".step")];
const learned = edges.filter((edge) => edge.dataset.earlier);
const widths = learned.map((edge) => edge.getAttribute("stroke-width"));
const first = shown.textContent;
let opening = first;
let off = null;

// What can be reached from a node, upwards ("from" to "to") or downwards.
function reached(id, start, end) {
  const lit = new Set([id]);
  for (const at of lit) // and what is added to it meanwhile
    for (const { dataset } of edges) if (dataset[start] === at) lit.add(dataset[end]);
  return { lit, start };
}

function light(node) {
  // A query and the key beside it act together.
  const partner = node?.id.replace(/^(query|key)/, (kind) => (kind === "query" ? "key" : "query"));
  const ids = node ? [node.id, partner] : [];
  const paths = ids.flatMap((id) => [reached(id, "from", "to"), reached(id, "to", "from")]);
  const far = (isOn) => Boolean(node) && !paths.some(isOn);
  for (const one of nodes) one.classList.toggle("far", far(({ lit }) => lit.has(one.id)));
  for (const edge of edges) edge.classList.toggle("far", far(({ lit, start }) => lit.has(edge.dataset[start])));
  shown.textContent = node ? node.dataset.sentence : opening;
}

// A channel of the stream stands at several places and is off at all of them.
const channel = (id) => id.replace(/-\d+$/, "");

function switchOff(node) {
  off = off === channel(node.id) || !node.dataset.off ? null : channel(node.id);
  for (const one of nodes) one.classList.toggle("off", channel(one.id) === off);
  const gone = (id) => channel(id) === off;
  for (const edge of edges) edge.style.display = gone(edge.dataset.from) || gone(edge.dataset.to) ? "none" : "";
  shown.textContent = off === null ? opening : node.dataset.off;
}

// The weights as they were at one of the earlier steps, or as drawn: a second click on a step ends its view.
function showStep(number) {
  const ended = steps[number].classList.contains("shown");
  for (const [place, step] of steps.entries()) step.classList.toggle("shown", !ended && place === number);
  for (const [i, edge] of learned.entries()) {
    const last = Number(edge.dataset.weight);
    const weight = ended ? last : JSON.parse(edge.dataset.earlier)[number];
    edge.setAttribute("stroke-width", widths[i] * Math.abs(weight / last));
    edge.classList.toggle("plus", weight > 0);
    edge.classList.toggle("minus", weight < 0);
    edge.firstElementChild.textContent = `weight ${weight.toFixed(2)}`;
  }
  opening = ended ? first : steps[number].dataset.sentence;
  shown.textContent = opening;
}

for (const node of nodes) {
  node.addEventListener("pointerenter", () => light(node));
  node.addEventListener("pointerleave", () => light(null));
  node.addEventListener("click", () => switchOff(node));
}
for (const [number, step] of steps.entries()) step.addEventListener("click", () => showStep(number));
