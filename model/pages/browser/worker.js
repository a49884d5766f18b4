// The worker of a page with a model: a queue of questions, answered in small steps, one question at a time. While the
// model writes, other questions wait most of the time. Patches of all heads wait for all other questions.
//
// Messages: { id, name, request } calls a method of LiveModel, { id, drop } withdraws a question. Answers:
// { id, value } for each value that the method yields, { id, result } or { id, error } at its end; none once withdrawn.

import { LiveModel } from "browser/live-model.js";

const EVERY = 11; // while the model writes, other questions get one turn of so many

const { port1, port2 } = new MessageChannel();
const queue = new Map(); // by id: { id, name, request, job }
let model = null;
let working = false;
let turn = 0;

function* start({ manifest, texts }) {
  model = new LiveModel(manifest, texts);
  return yield* model.parity({ snapshot: texts.length - 1 });
}

onmessage = ({ data: { drop, ...question } }) => {
  if (drop) queue.delete(question.id);
  else queue.set(question.id, question);
  if (!working) work();
};

async function work() {
  working = true;
  while (queue.size) {
    const questions = [...queue.values()];
    const writing = questions.find(({ name }) => name === "write");
    const others = questions.filter((question) => question !== writing);
    const other = others.find(({ name }) => name !== "patchAll") ?? others[0];
    workOn(!writing || (other && ++turn % EVERY === 0) ? other : writing);
    // Lets the worker handle messages that have arrived meanwhile. A timer would wait at least four milliseconds.
    const handled = new Promise((resolve) => (port1.onmessage = resolve));
    port2.postMessage(null);
    await handled;
  }
  working = false;
}

// Works on a question until its job yields.
function workOn(question) {
  const { id, name, request } = question;
  try {
    question.job ??= name === "start" ? start(request) : model[name](request);
    const { done, value } = question.job.next();
    if (done) queue.delete(id);
    if (done) postMessage({ id, result: value });
    else if (value !== undefined) postMessage({ id, value });
  } catch (error) {
    queue.delete(id);
    postMessage({ id, error: error.message });
  }
}
