// The page's side of the worker that holds the model: numbered questions, and their answers.

import { createTokenizer } from "browser/tokenizer.js";

// manifest: see weights.py. texts: the weights of each snapshot, in base64 as they stand in the page, and complete.
// onWaiting(count) is called with the number of questions without an answer so far, onStop() if the worker fails later.
// Rejects if the browser has no such workers, and with an error whose `answered` is true if the model cannot be run.
//
// ask(name, request, { onValue, signal }) asks a method of LiveModel and gives a promise of the answer, which is
// undefined if the AbortSignal takes the question back before. onValue takes what the method yields.
export async function startEngine(manifest, texts, { onWaiting = () => {}, onStop = () => {} } = {}) {
  const worker = new Worker(import.meta.resolve("browser/worker.js"), { type: "module" });
  const ask = connect(worker, onWaiting);
  const started = ask("start", { manifest, texts }); // with the parity of the last
  const parities = { [texts.length - 1]: started };
  const tokenizer = createTokenizer(manifest.tokenizer); // while the worker starts
  await started;
  worker.addEventListener("error", onStop);
  return {
    ...manifest,
    parts: manifest.means.map(({ name }) => name), // that can be switched off
    tokenizer,
    parity: (snapshot) => (parities[snapshot] ??= ask("parity", { snapshot })), // see LiveModel.parity
    ask,
  };
}

// Returns ask: see startEngine.
function connect(worker, onWaiting) {
  const open = new Map();
  let last = 0;
  const take = (id) => {
    const question = open.get(id);
    if (open.delete(id)) onWaiting(open.size);
    return question;
  };
  worker.onmessage = ({ data: { id, value, result, error } }) => {
    if (value !== undefined) open.get(id)?.onValue?.(value);
    else if (error === undefined) take(id)?.resolve(result);
    else take(id)?.reject(Object.assign(new Error(error), { answered: true }));
  };
  worker.onerror = ({ message }) => {
    const error = new Error(message || "the browser cannot run the model's worker");
    for (const id of [...open.keys()]) take(id).reject(error);
  };
  return (name, request, { onValue, signal } = {}) => new Promise((resolve, reject) => {
    const id = ++last;
    open.set(id, { resolve, reject, onValue });
    worker.postMessage({ id, name, request });
    onWaiting(open.size);
    signal?.addEventListener("abort", () => {
      if (!take(id)) return;
      worker.postMessage({ id, drop: true });
      resolve(undefined);
    });
  });
}
