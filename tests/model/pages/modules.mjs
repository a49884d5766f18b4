// Loads the page's modules in node, and resolves the names that the page's import map gives them.

import { register } from "node:module";

const root = new URL("../../../model/pages/", import.meta.url).href;
const resolve = `export const resolve = (name, context, next) => name.startsWith("browser/")
  ? { url: ${JSON.stringify(root)} + name, format: "module", shortCircuit: true } : next(name, context);`;
register(`data:text/javascript,${encodeURIComponent(resolve)}`);
globalThis.matchMedia = () => ({ matches: false }); // the only thing that they need from a browser while they load

export const load = (name) => import(`browser/${name}.js`);
