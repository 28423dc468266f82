// Completions that are longer than one response of the server: their tokens are loaded in windows, one at a time.
import { get } from "/lib/lib.js";

const OF_TOKENS = ["ids", "pieces", "logprobs", "new_logprobs", "entropies", "values", "advantages", "mask"];

/** The number of tokens that are not loaded yet. */
export const missing = (one) => one.length - one.ids.length;

/** The completion with its next window of tokens. */
export async function longer(run, data, one) {
  const path = `runs/${run}/groups/${data.place}/completions/${one.number}`;
  const next = await get(path, { from: one.ids.length, of: data.of });
  if (!next?.ids.length) return one;
  const joined = OF_TOKENS.map((name) => [name, one[name] && next[name] ? [...one[name], ...next[name]] : null]);
  return { ...one, ...Object.fromEntries(joined) };
}

/** The completion with all of its tokens. */
export async function whole(run, data, one) {
  while (missing(one) > 0) {
    const next = await longer(run, data, one);
    if (next === one) break;
    one = next;
  }
  return one;
}

/** The loaded text of a completion. */
export const textOf = (one) => (one.pieces ? one.pieces.join("") : (one.text ?? one.ids.join(" ")));
