// The page's side of the worker that holds the model: promises, and functions that are called while it works.

import { createTokenizer } from "browser/tokenizer.js";

// manifest: see live.py. texts: the weights of each snapshot, in base64 as they stand in the page, and complete.
// Rejects if the browser has no such workers.
export async function startEngine(manifest, texts) {
  const { ask, stopAll, close } = connect(new Worker(import.meta.resolve("browser/worker.js"), { type: "module" }));
  const started = ask("start", { manifest, texts }).done.catch((error) => {
    close();
    throw error;
  });
  const tokenizer = createTokenizer(manifest.tokenizer); // while the worker starts
  const engine = {
    config: manifest.config,
    steps: manifest.steps, // of the snapshots
    tokenizer,
    parity: await started, // { error, bits }

    // Another snapshot answers from now on. What is not answered yet is given up.
    async use(snapshot) {
      stopAll();
      this.parity = await ask("use", { snapshot }).done;
    },

    // -> { block, details, loss, next }; see LiveModel.read. An earlier call that is not answered yet is given up: its
    // promise rejects with an AbortError.
    async read(tokens, { edits = [], details = true } = {}) {
      this.reading?.stop();
      this.reading = ask("read", { tokens: [...tokens], edits, details });
      const result = await this.reading.done;
      if (result.details) result.details.tokens = labels(result.details.probes.text, tokenizer);
      return result;
    },

    // options: { temperature, topK, count, seed, edits, stop }, where stop is the token that ends the text, end-of-text if
    // it is not given. -> { done, stop }; onToken(id) is called for each token. `done` resolves at the end, also after stop().
    write(tokens, options, onToken) {
      const request = { tokens: [...tokens], stop: tokenizer.endOfText, ...options };
      const job = ask("write", request, onToken);
      return { stop: job.stop, done: unlessStopped(job.done) };
    },

    // -> { plain, patched }, the logit of the token `target` after the tokens.
    patch: (tokens, other, options) => ask("patch", { tokens, other, ...options }).done,

    // -> { done, stop }; onRow({ number, row }) is called for each head, `done` resolves to the matrix (L H, T) of changes,
    // or to undefined after stop().
    patchAll(tokens, other, target, onRow) {
      const job = ask("patchAll", { tokens, other, target }, onRow);
      return { stop: job.stop, done: unlessStopped(job.done) };
    },

    close,
  };
  return engine;
}

const aborted = () => new DOMException("a newer request has taken its place", "AbortError");
const unlessStopped = (done) => done.catch((error) => { if (error.name !== "AbortError") throw error; });

// ask(name, request, onValue) -> { done, stop }
function connect(worker) {
  const open = new Map();
  let last = 0;
  const take = (id) => {
    const job = open.get(id);
    open.delete(id);
    return job;
  };
  const stop = (id) => {
    const job = take(id);
    if (!job) return;
    worker.postMessage({ id, stop: true });
    job.reject(aborted());
  };
  worker.onmessage = ({ data: { id, value, result, error } }) => {
    if (value !== undefined) return open.get(id)?.onValue?.(value);
    const job = take(id);
    if (error) job?.reject(new Error(error));
    else job?.resolve(result);
  };
  worker.onerror = ({ message }) => {
    for (const id of [...open.keys()]) take(id).reject(new Error(message || "the browser cannot run the model's worker"));
  };
  return {
    ask(name, request, onValue) {
      const id = ++last;
      const done = new Promise((resolve, reject) => open.set(id, { resolve, reject, onValue }));
      worker.postMessage({ id, name, request });
      return { done, stop: () => stop(id) };
    },
    stopAll: () => [...open.keys()].forEach(stop),
    close: () => worker.terminate(),
  };
}

// The text of every token that the details name.
function labels({ top, lens }, tokenizer) {
  const ids = new Set([...top.flat(), ...(lens?.token.flat() ?? [])]);
  return Object.fromEntries([...ids].map((id) => [id, tokenizer.label(id)]));
}
