// The page's end of the connection to the worker that holds the model: sends numbered questions, receives answers.

import { createTokenizer } from "browser/tokenizer.js";

const SCRIPT = "data:text/javascript;base64,"; // how the URL of a module begins, see template.py

// The URL of a module that needs no import map, which a worker does not see: each import names a URL like this one.
function urlOf(name) {
  const source = atob(import.meta.resolve(name).slice(SCRIPT.length));
  return SCRIPT + btoa(source.replace(/(?<=")browser\/[^"]+/g, urlOf));
}

// manifest: see weights.py. texts: the complete weights of each snapshot, in base64 as in the page. onWaiting(count) is
// called with the number of open questions, onStop() if the worker fails later. Rejects if the browser has no such
// workers; if the model cannot be run, the error's `answered` is true.
//
// The engine's ask(name, request, { onValue, signal }) calls a method of LiveModel and returns a promise of its result,
// which is undefined if the AbortSignal withdraws the question first. onValue gets each value that the method yields.
export async function startEngine(manifest, texts, onWaiting, onStop) {
  const worker = new Worker(urlOf("browser/worker.js"), { type: "module" });
  const ask = connect(worker, onWaiting);
  const started = ask("start", { manifest, texts }); // resolves to the parity of the last snapshot
  const parities = { [texts.length - 1]: started };
  const tokenizer = createTokenizer(manifest.tokenizer); // meanwhile the worker starts
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

// Returns the function `ask`: see startEngine.
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
