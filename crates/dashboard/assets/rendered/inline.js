// Markdown within a line: code, formulas, links and emphasis, parsed into strings and {kind, …}.

// Maximum depth of nested emphasis; deeper emphasis stays text.
const DEEP = 12;
// Maximum length of a formula between single dollars.
const LONGEST = 600;
const LINK =
  /(!?)\[((?:[^[\]\\\n]|\\.)*)\]\( {0,3}<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?: {1,3}"[^"\n]*")? {0,3}\)/y;
const NEXT = /[\\`$*_~[!]/g;
const isWord = (char) => char !== undefined && /[\p{L}\p{N}]/u.test(char);
const isSpace = (char) => char === undefined || /\s/.test(char);

/** The text as a list of texts and {kind: "code" | "math" | "link" | "image" | "strong" | "em" | "strike", …}. */
export function inline(text) {
  return emphasised(atoms(text));
}

/** Code, formulas and links are parsed first, since stars within them are not emphasis. Runs of stars stay {run, …}. */
function atoms(text) {
  const out = [];
  const put = (part) => {
    if (typeof part === "string" && typeof out.at(-1) === "string") out[out.length - 1] += part;
    else if (part !== "") out.push(part);
  };
  const close = closings(text);
  for (let at = 0; at < text.length;) {
    NEXT.lastIndex = at;
    const next = NEXT.exec(text)?.index ?? text.length;
    put(text.slice(at, next));
    if (next === text.length) break;
    const [part, length] = special(text, next, close) ?? [text[next], 1];
    put(part);
    at = next + length;
  }
  return out;
}

/**
 * Finds the next closing mark of a kind. A mark that was not found is not searched again from a later position, so that
 * many opening marks take no longer than one.
 */
function closings(text) {
  const ends = new Map();
  return (mark, from) => {
    if (from >= (ends.get(mark) ?? Infinity)) return -1;
    const at = text.indexOf(mark, from);
    if (at < 0) ends.set(mark, from);
    return at;
  };
}

function special(text, at, close) {
  const between = (open, mark, kind, isDisplay) => {
    const end = close(mark, at + open);
    if (end < 0) return null;
    const inside = text.slice(at + open, end);
    return inside.trim() ? [{ kind, text: inside.trim(), isDisplay }, end + mark.length - at] : null;
  };
  const char = text[at];
  if (char === "\\") {
    const after = text[at + 1];
    if (after === "(") return between(2, "\\)", "math", false) ?? ["\\(", 2];
    if (after === "[") return between(2, "\\]", "math", true) ?? ["\\[", 2];
    return after !== undefined && /[!-/:-@[-`{-~]/.test(after) ? [after, 2] : null;
  }
  if (char === "`") return code(text, at, close);
  if (char === "$") {
    if (text[at + 1] === "$") return between(2, "$$", "math", true) ?? ["$$", 2];
    return dollars(text, at);
  }
  if (char === "[" || (char === "!" && text[at + 1] === "[")) {
    LINK.lastIndex = at;
    const link = LINK.exec(text);
    return link && [{ kind: link[1] ? "image" : "link", text: link[2], address: link[3] }, link[0].length];
  }
  return char === "!" ? null : run(text, at);
}

/** Code between equal numbers of backticks. */
function code(text, at, close) {
  let length = 1;
  while (text[at + length] === "`") length++;
  const marks = "`".repeat(length);
  for (let end = close(marks, at + length); end >= 0;) {
    let more = length;
    while (text[end + more] === "`") more++;
    if (more === length) {
      const inside = text.slice(at + length, end);
      const isPadded = inside.startsWith(" ") && inside.endsWith(" ") && inside.trim() !== "";
      return [{ kind: "code", text: isPadded ? inside.slice(1, -1) : inside }, end + length - at];
    }
    end = close(marks, end + more);
  }
  return [marks, length];
}

/** $x$ is a formula if it has no blank at either end and no digit follows; otherwise it may be an amount of money. */
function dollars(text, at) {
  if (isSpace(text[at + 1])) return null;
  const most = Math.min(text.length, at + LONGEST);
  for (let end = at + 1; end < most; end++) {
    if (text[end] === "\\") end++;
    else if (text[end] === "\n" && text[end + 1] === "\n") return null;
    else if (text[end] === "$" && !isSpace(text[end - 1]) && end > at + 1) {
      if (/\d/.test(text[end + 1] ?? "")) return null;
      return [{ kind: "math", text: text.slice(at + 1, end), isDisplay: false }, end + 1 - at];
    }
  }
  return null;
}

/** Stars, underscores or tildes, and whether emphasis may start or end with them. */
function run(text, at) {
  const char = text[at];
  let length = 1;
  while (text[at + length] === char) length++;
  const marks = char.repeat(length);
  if (length > 3 || (char === "~" && length !== 2)) return [marks, length];
  const [before, after] = [text[at - 1], text[at + length]];
  // `2*3*4` contains no emphasis.
  const opens = !isSpace(after) && !isWord(before);
  const closes = !isSpace(before) && (char === "*" || !isWord(after));
  return [opens || closes ? { run: marks, opens, closes } : marks, length];
}

const KINDS = { 1: "em", 2: "strong" };

/** Pairs the runs that enclose emphasis; runs without a partner become text. */
function emphasised(parts) {
  // Open emphasis, outermost first: the parts so far, and the mark that closes it.
  const stack = [{ mark: "", out: [] }];
  const put = (part) => {
    const { out } = stack.at(-1);
    if (typeof part === "string" && typeof out.at(-1) === "string") out[out.length - 1] += part;
    else out.push(part);
  };
  const unfinished = () => {
    const { mark, out } = stack.pop();
    [mark, ...out].forEach(put);
  };
  const closeAt = (mark) => {
    const at = stack.findLastIndex((one) => one.mark === mark);
    if (at <= 0 || (!stack[at].out.length && at === stack.length - 1)) return false;
    while (stack.length - 1 > at) unfinished();
    const { out } = stack.pop();
    put({ kind: mark[0] === "~" ? "strike" : KINDS[mark.length], children: out });
    return true;
  };
  for (const part of parts) {
    if (typeof part === "string" || part.kind) {
      put(part);
      continue;
    }
    const char = part.run[0];
    let left = part.run.length;
    const marks = () => (char === "~" ? ["~~"] : left >= 2 ? [char + char, char] : [char]);
    // Innermost first: for ***, the one that was opened last.
    while (part.closes && left > 0) {
      const inner = stack.findLast((one) => marks().includes(one.mark));
      if (!inner || !closeAt(inner.mark)) break;
      left -= inner.mark.length;
    }
    while (part.opens && left > 0 && stack.length <= DEEP) {
      const mark = marks()[0];
      stack.push({ mark, out: [] });
      left -= mark.length;
    }
    if (left > 0) put(char.repeat(left));
  }
  while (stack.length > 1) unfinished();
  return stack[0].out;
}
