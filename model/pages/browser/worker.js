// The worker of a page with a model. Messages: { id, name, request } asks LiveModel for a method, { id, stop } stops it.
// Answers: { id, value } for each value that it yields, { id, result } or { id, error } at the end.

import { LiveModel } from "browser/live-model.js";

const running = new Set();
let model;

const jobs = {
  *start({ manifest, texts }) {
    model = new LiveModel(manifest, texts);
    return yield* model.parity();
  },
  *use({ snapshot }) {
    model.use(snapshot);
    return yield* model.parity();
  },
  read: (request) => model.read(request),
  write: (request) => model.write(request),
  patch: (request) => model.patch(request),
  patchAll: (request) => model.patchAll(request),
};

onmessage = ({ data: { id, name, request, stop } }) => {
  if (stop) running.delete(id);
  else run(id, name, request);
};

async function run(id, name, request) {
  running.add(id);
  try {
    const job = jobs[name](request);
    while (running.has(id)) {
      const { done, value } = job.next();
      if (done) return postMessage({ id, result: value });
      if (value !== undefined) postMessage({ id, value });
      await messages();
    }
  } catch (error) {
    postMessage({ id, error: error.message });
  } finally {
    running.delete(id);
  }
}

// Lets messages that have come in the meantime be handled. A timer would wait at least four milliseconds.
const channel = new MessageChannel();
const waiting = [];
channel.port1.onmessage = () => waiting.shift()();

function messages() {
  return new Promise((resolve) => {
    waiting.push(resolve);
    channel.port2.postMessage(null);
  });
}
