// Makes spaces, line ends and other invisible characters visible. The text itself is unchanged: the style sheet draws
// the marks, and they are not copied.
import { h } from "/lib/lib.js";

const MARKS = { " ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽" };
// Control characters, zero-width characters, and characters that change the direction of text.
const UNSEEN =
  /[\s\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]|\udb40[\udc00-\udfff]/g;

const mark = (char) => MARKS[char] ?? `U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** The text as strings and marked characters; unchanged unless `isShown`. */
export function seen(text, isShown) {
  if (!isShown) return [text];
  const out = [];
  let at = 0;
  for (const { 0: char, index } of text.matchAll(UNSEEN)) {
    if (index > at) out.push(text.slice(at, index));
    out.push(h("i", { class: char === " " ? "unseen-char blank" : "unseen-char", "data-mark": mark(char) }, char));
    at = index + char.length;
  }
  if (at < text.length) out.push(text.slice(at));
  return out;
}
