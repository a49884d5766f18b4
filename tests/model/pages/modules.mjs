// Loads the page's modules in node; they name each other as the page's import map does.

import { register } from "node:module";

const root = new URL("../../../model/pages/", import.meta.url).href;
const resolve = `export const resolve = (name, context, next) => name.startsWith("browser/")
  ? { url: ${JSON.stringify(root)} + name, format: "module", shortCircuit: true } : next(name, context);`;
register(`data:text/javascript,${encodeURIComponent(resolve)}`);
globalThis.matchMedia = () => ({ matches: false }); // all that they ask of a browser when they are loaded

export const load = (name) => import(`browser/${name}.js`);
