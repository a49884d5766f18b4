// Value-weighted maps: each weight times the length of what its key would write into the stream, |value x output
// matrix|, as a share of the longest that the head could write (Kobayashi et al. 2020, "Attention is Not Only a Weight").

import { triangle } from "browser/maps.js";

export const EXPLANATION =
  "Each weight is multiplied by the length of what its key writes (|value × output matrix|), as a share of the longest in " +
  "this head. So a square is never darker than its weight, and a pale row means that the head writes little there.";

// weights: bytes 255 sqrt(p), the lower triangles of all heads. norms: [L][H][T]. Bytes of the same form; a norm that is
// not a number counts as 0.
export function weighted(weights, norms, length) {
  const result = new Uint8Array(weights.length);
  norms.flat().forEach((ofKey, head) => {
    const longest = Math.max(0, ...ofKey.slice(0, length));
    const factors = ofKey.map((norm) => (longest > 0 ? Math.sqrt((norm ?? 0) / longest) : 0));
    let place = head * triangle(length);
    for (let query = 0; query < length; query++)
      for (let key = 0; key <= query; key++, place++) result[place] = Math.round(weights[place] * factors[key]);
  });
  return result;
}
