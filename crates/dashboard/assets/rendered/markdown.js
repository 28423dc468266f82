// Parses Markdown as models write it into a tree of plain objects. HTML markup stays text, and only the Markdown marks
// themselves are dropped. Parsing takes linear time for any text.

import { inline } from "/rendered/inline.js";

// Maximum depth of nested lists and quotations; deeper ones stay text.
const DEEP = 8;
// The maximum size of a table; a larger table stays text.
const [MOST_ROWS, MOST_COLUMNS] = [60, 12];

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( {1,4})(?=\S)|[ \t]*$)/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const INDENTED = /^(?: {4}|\t)/;
const FORMULA = /^ {0,3}(\$\$|\\\[|\\begin\{(?:equation|align|gather|multline|alignat)\*?\})/;

/** The text as blocks: {kind: "heading" | "text" | "code" | "math" | "list" | "quote" | "rule" | "table", …}. */
export function markdown(text) {
  return blocks(text.replaceAll("\r\n", "\n").split("\n"), 0);
}

function blocks(lines, depth) {
  const out = [];
  // Opening marks of formulas that are not closed after this line.
  const open = new Set();
  let paragraph = [];
  const flush = () => {
    if (paragraph.length) out.push({ kind: "text", children: inline(paragraph.join("\n")) });
    paragraph = [];
  };
  for (let at = 0; at < lines.length;) {
    const found = block(lines, at, depth, open, paragraph.length > 0);
    if (found) {
      flush();
      if (found.block) out.push(found.block);
      at = found.next;
    } else paragraph.push(lines[at++]);
  }
  flush();
  return out;
}

/** The block that starts at this line, and the line after it; null if a paragraph starts or continues here. */
function block(lines, at, depth, open, isInParagraph) {
  const line = lines[at];
  if (!line.trim()) return { block: null, next: at + 1 };
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    const title = line
      .slice(heading[0].length)
      .trim()
      .replace(/(^|[ \t])#+$/, "");
    return { block: { kind: "heading", level: heading[1].length, children: inline(title) }, next: at + 1 };
  }
  if (RULE.test(line)) return { block: { kind: "rule" }, next: at + 1 };
  const formula = FORMULA.exec(line);
  if (formula && !open.has(formula[1])) {
    const found = displayed(lines, at, formula, open);
    if (found) return found;
  }
  if (depth < DEEP && QUOTE.test(line)) {
    let end = at;
    while (end < lines.length && QUOTE.test(lines[end])) end++;
    const inside = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
    return { block: { kind: "quote", blocks: blocks(inside, depth + 1) }, next: end };
  }
  const item = depth < DEEP && ITEM.exec(line);
  // Within a paragraph, "1986. A good year" and a lone dash do not start a list.
  if (item && !(isInParagraph && (!item[3] || (/^\d/.test(item[2]) && parseInt(item[2], 10) !== 1))))
    return list(lines, at, item, depth);
  if (line.includes("|") && DELIMITERS.test(lines[at + 1] ?? "") && lines[at + 1].includes("|"))
    return table(lines, at);
  if (!isInParagraph && INDENTED.test(line)) {
    let end = at;
    while (end < lines.length && (INDENTED.test(lines[end]) || !lines[end].trim())) end++;
    while (!lines[end - 1].trim()) end--;
    const code = lines
      .slice(at, end)
      .map((line) => line.replace(INDENTED, ""))
      .join("\n");
    return { block: { kind: "code", language: "", text: code }, next: end };
  }
  return null;
}

/** A fence without a closing fence extends to the end. */
function fenced(lines, at, [, indent, marks, language]) {
  let end = at + 1;
  const closes = (line) => {
    const text = line.trim();
    return text.length >= marks.length && text === marks[0].repeat(text.length);
  };
  while (end < lines.length && !closes(lines[end])) end++;
  const dedented = (line) => line.replace(new RegExp(`^ {0,${indent.length}}`), "");
  const text = lines
    .slice(at + 1, end)
    .map(dedented)
    .join("\n");
  return { block: { kind: "code", language, text }, next: Math.min(end + 1, lines.length) };
}

/** A formula on separate lines: $$ … $$, \[ … \], or an environment such as align. */
function displayed(lines, at, [all, mark], open) {
  const isEnvironment = mark.startsWith("\\begin");
  const close = isEnvironment ? mark.replace("begin", "end") : mark === "$$" ? "$$" : "\\]";
  for (let end = at; end < lines.length; end++) {
    const first = end === at ? all.length : 0;
    const to = lines[end].indexOf(close, first);
    if (to < 0) continue;
    // If text other than a full stop follows, the formula is part of a paragraph.
    if (!/^[\s.,;:]*$/.test(lines[end].slice(to + close.length))) return null;
    const within = lines.slice(at, end + 1);
    within[within.length - 1] = within.at(-1).slice(0, to);
    within[0] = within[0].slice(all.length);
    const text = within.join("\n");
    return { block: { kind: "math", text: isEnvironment ? mark + text + close : text.trim() }, next: end + 1 };
  }
  open.add(mark);
  return null;
}

function list(lines, at, first, depth) {
  const isOrdered = /^\d/.test(first[2]);
  const items = [];
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    // A different kind of mark starts a new list.
    if (!item || /^\d/.test(item[2]) !== isOrdered || item[2].at(-1) !== first[2].at(-1)) break;
    const wide = item[1].length + item[2].length + (item[3]?.length ?? 1);
    const inside = [lines[at].slice(wide)];
    let end = at + 1;
    for (; end < lines.length; end++) {
      const line = lines[end];
      const indent = line.length - line.trimStart().length;
      if (!line.trim()) inside.push("");
      else if (indent >= Math.min(wide, 2) && indent > item[1].length) inside.push(line.slice(Math.min(indent, wide)));
      // A line that continues the text of the item.
      else if (inside.at(-1) !== "" && !starts(line)) inside.push(line);
      else break;
    }
    while (inside.length > 1 && inside.at(-1) === "") inside.pop();
    items.push(blocks(inside, depth + 1));
    at = end;
  }
  return { block: { kind: "list", isOrdered, start: parseInt(first[2], 10), items }, next: at };
}

const starts = (line) => [FENCE, HEADING, RULE, QUOTE, ITEM, FORMULA].some((pattern) => pattern.test(line));

/** The cells of a row; a bar after a backslash or in a code span does not end a cell. */
function cells(line) {
  const parts =
    line
      .trim()
      .replace(/^\|/, "")
      .match(/(?:\\[\s\S]|`[^`]*`|[^|\\`]|[`\\])+|\|/g) ?? [];
  const out = [""];
  for (const part of parts) {
    if (part === "|") out.push("");
    else out[out.length - 1] += part;
  }
  if (out.length > 1 && !out.at(-1).trim()) out.pop();
  return out.map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function table(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end++;
  const rows = [lines[at], ...lines.slice(at + 2, end)].map(cells);
  if (rows.length > MOST_ROWS || rows[0].length > MOST_COLUMNS)
    return { block: { kind: "code", language: "", text: lines.slice(at, end).join("\n") }, next: end };
  const align = cells(lines[at + 1]).map((mark) =>
    mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : "left",
  );
  // Cells beyond the header row are kept.
  const [head, ...body] = rows.map((row) => row.map((cell) => inline(cell)));
  return { block: { kind: "table", align, head, body }, next: end };
}
