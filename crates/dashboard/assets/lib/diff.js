// Compares two texts: their lines side by side, and the words that only one of them has.

// A longest common subsequence needs a table with a cell per pair: texts with more pairs than this are not compared.
const MOST_PAIRS = 4e6;

/** Pairs of indices of the longest common subsequence of two lists; null if the lists are too long. */
function common(a, b) {
  let [start, endA, endB] = [0, a.length, b.length];
  while (start < endA && start < endB && a[start] === b[start]) start++;
  while (endA > start && endB > start && a[endA - 1] === b[endB - 1]) [endA, endB] = [endA - 1, endB - 1];
  const [n, m] = [endA - start, endB - start];
  const pairs = Array.from({ length: start }, (_, i) => [i, i]);
  if (n * m > MOST_PAIRS) return null;
  const length = Array.from({ length: n + 1 }, () => new Uint16Array(m + 1));
  for (let i = n - 1; i >= 0; i--)
    for (let j = m - 1; j >= 0; j--)
      length[i][j] =
        a[start + i] === b[start + j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
  for (let i = 0, j = 0; i < n && j < m;) {
    if (a[start + i] === b[start + j]) pairs.push([start + i++, start + j++]);
    else if (length[i + 1][j] >= length[i][j + 1]) i++;
    else j++;
  }
  for (let k = 0; endA + k < a.length; k++) pairs.push([endA + k, endB + k]);
  return pairs;
}

/** Both texts as pieces `[text, isDifferent]`, split at words. In texts that are too long nothing is marked. */
export function compared(a, b) {
  const words = (text) => text.match(/\s+|[^\s]+/g) ?? [];
  const [left, right] = [words(a), words(b)];
  const pairs = common(left, right);
  if (!pairs) return [a, b].map((text) => [[text, false]]);
  return [left, right].map((words, side) => {
    const shared = new Set(pairs.map((pair) => pair[side]));
    const out = [];
    words.forEach((word, i) => {
      const isDifferent = !shared.has(i);
      if (out.length && out.at(-1)[1] === isDifferent) out.at(-1)[0] += word;
      else out.push([word, isDifferent]);
    });
    return out;
  });
}

/**
 * Both texts as rows `{same, left, right}`. Common lines are side by side, with the lines of only one text between
 * them. A line consists of pieces as in `compared`.
 */
export function aligned(a, b) {
  const [left, right] = [a.split("\n"), b.split("\n")];
  // Empty lines occur everywhere, so they are not matched with each other.
  const key = (lines, side) => lines.map((line, i) => (line.trim() ? line : `\n${side}${i}`));
  const pairs = common(key(left, "l"), key(right, "r")) ?? [];
  const rows = [];
  let [i, j] = [0, 0];
  for (const [p, q] of [...pairs, [left.length, right.length]]) {
    if (i < p || j < q) {
      const [ours, theirs] = compared(left.slice(i, p).join("\n"), right.slice(j, q).join("\n"));
      rows.push({ same: false, left: ours, right: theirs });
    }
    if (p < left.length && q < right.length)
      rows.push({ same: true, left: [[left[p], false]], right: [[right[q], false]] });
    [i, j] = [p + 1, q + 1];
  }
  return rows;
}
