// Finds thinking in a completion: the parts between <think> and </think>.

const TAGS = /<(\/?)think(?:ing)?>|\[(\/?)THINK\]/g;

/** Whether a prompt ends with the opening tag, so that the completion starts with thinking. */
export const opensThinking = (promptEnd) => /(?:<think(?:ing)?>|\[THINK\])\s*$/.test(promptEnd ?? "");

/**
 * The text as consecutive parts `{thinks, from, to, inner: [from, to], closed}`: `from` and `to` include the tags,
 * `inner` does not. A closing tag without an opening one ends a part that the prompt opened, even if `isOpened` is
 * unknown. A part without a closing tag extends to the end of the text.
 */
export function thoughts(text, isOpened = false) {
  const parts = [];
  let at = 0;
  // The start of the current thinking part, and of its text after the tag.
  let open = isOpened ? [0, 0] : null;
  const plain = (to) => {
    if (to > at) parts.push({ thinks: false, from: at, to, inner: [at, to], closed: true });
    at = to;
  };
  const think = (end, to, closed) => {
    parts.push({ thinks: true, from: open[0], to, inner: [open[1], end], closed });
    [at, open] = [to, null];
  };
  for (const tag of text.matchAll(TAGS)) {
    const [from, to] = [tag.index, tag.index + tag[0].length];
    const closes = tag[1] === "/" || tag[2] === "/";
    if (!closes && !open) {
      plain(from);
      open = [from, to];
    } else if (closes && (open || !parts.some((part) => part.thinks))) {
      // Without an opening tag, the part includes all text before the closing tag.
      open ??= [0, 0];
      think(from, to, true);
    }
  }
  if (open && text) think(text.length, text.length, false);
  else plain(text.length);
  return parts;
}
