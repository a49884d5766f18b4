// The worker of a page with a model: one queue of questions, of which one at a time is worked on.
//
// Messages: { id, name, request } asks LiveModel for a method, { id, drop } takes a question back. Answers:
// { id, value } for each value that it yields, { id, result } or { id, error } at the end; none to what is taken back.

import { LiveModel } from "browser/live-model.js";

// These take long, share nothing with other questions, and go on whenever no other question waits.
const PATIENT = new Set(["write", "patchAll"]);

const { port1, port2 } = new MessageChannel();
const queue = new Map(); // by id: { id, name, request, job }
let model = null;
let working = false;

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
    workOn(questions.find(({ name }) => !PATIENT.has(name)) ?? questions[0]);
    // Lets messages that have come in the meantime be handled. A timer would wait at least four milliseconds.
    const handled = new Promise((resolve) => (port1.onmessage = resolve));
    port2.postMessage(null);
    await handled;
  }
  working = false;
}

// Works on a question up to where its job yields.
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
