// Syntax highlighting: keywords, strings, comments and numbers. The text is split into pieces, and never changed.

const words = (text) => new Set(text.trim().split(/\s+/));
const DOUBLE = /"(?:[^"\\\n]|\\[\s\S])*"?/y;
const SINGLE = /'(?:[^'\\\n]|\\[\s\S])*'?/y;
// A character literal: Rust's lifetimes and OCaml's type variables have only one quote.
const LETTER = /'(?:[^'\\\n]|\\[^\n]{1,9}?)'/y;
const C = words(`
  alignas auto bool break case catch char class const constexpr continue default delete do double else enum
  explicit extern false final float for friend goto if inline int long mutable namespace new noexcept nullptr
  operator override private protected public register return short signed sizeof static static_cast struct
  switch template this throw true try typedef typename union unsigned using virtual void volatile while NULL
  include define ifdef ifndef endif pragma size_t std
`);
const LANGUAGES = {
  python: {
    line: ["#"],
    strings: [
      /[rbfuRBFU]{0,2}"""[\s\S]*?(?:"""|$)/y,
      /[rbfuRBFU]{0,2}'''[\s\S]*?(?:'''|$)/y,
      /[rbfuRBFU]{0,2}"(?:[^"\\\n]|\\[\s\S])*"?/y,
      /[rbfuRBFU]{0,2}'(?:[^'\\\n]|\\[\s\S])*'?/y,
    ],
    keywords: words(`
      False None True and as assert async await break case class continue def del elif else except finally for
      from global if import in is lambda match nonlocal not or pass raise return self try while with yield
    `),
  },
  ocaml: {
    block: ["(*", "*)"],
    strings: [DOUBLE, /\{[a-z_]*\|[\s\S]*?(?:\|[a-z_]*\}|$)/y, LETTER],
    keywords: words(`
      and as assert begin class constraint do done downto else end exception external false for fun function
      functor if in include inherit initializer lazy let match method module mutable new nonrec object of open
      or private rec sig struct then to true try type val virtual when while with
    `),
  },
  rust: {
    line: ["//"],
    block: ["/*", "*/"],
    strings: [/b?r#"[\s\S]*?(?:"#|$)/y, /b?"(?:[^"\\]|\\[\s\S])*"?/y, LETTER],
    keywords: words(`
      as async await box break const continue crate dyn else enum extern false fn for if impl in let loop
      match mod move mut pub ref return self Self static struct super trait true type unsafe use where while
      i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize f32 f64 bool char str String Vec Option Some None
      Result Ok Err
    `),
  },
  c: { line: ["//"], block: ["/*", "*/"], flat: true, strings: [DOUBLE, SINGLE], keywords: C },
  json: { strings: [DOUBLE], keywords: words("true false null") },
  shell: {
    // `$#` and `a#b` do not begin a comment.
    line: ["#"],
    apart: true,
    strings: [/"(?:[^"\\]|\\[\s\S])*"?/y, /'[^']*'?/y],
    keywords: words(`
      if then else elif fi for while until do done case esac in function select time return exit break
      continue local export readonly declare set unset shift source alias echo printf read cd test eval exec
      trap
    `),
  },
};
const NAMES = {
  py: "python",
  python3: "python",
  ml: "ocaml",
  mli: "ocaml",
  rs: "rust",
  "c++": "c",
  cpp: "c",
  cc: "c",
  cxx: "c",
  h: "c",
  hpp: "c",
  jsonl: "json",
  sh: "shell",
  bash: "shell",
  zsh: "shell",
  console: "shell",
};
const WORD = /[A-Za-z_][A-Za-z0-9_]*/y;
const NUMBER = /(?:0[xXbBoO][0-9a-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)[A-Za-z0-9_]*/y;
// Code above this length is not highlighted.
const MOST = 100_000;

/** The code as pieces `[kind, text]` whose concatenation is the code; kind is "" for text without a colour. */
export function highlighted(code, name = "") {
  const short = name.toLowerCase();
  const own = NAMES[short] ?? short;
  const language = Object.hasOwn(LANGUAGES, own) ? LANGUAGES[own] : null;
  if (!language || code.length > MOST) return [["", code]];
  const out = [];
  const put = (kind, text) => {
    if (out.length && out.at(-1)[0] === kind) out.at(-1)[1] += text;
    else out.push([kind, text]);
  };
  const found = (pattern, at) => {
    pattern.lastIndex = at;
    return pattern.exec(code)?.[0];
  };
  // Triple quotes must be tried before single ones, so the order of the table matters.
  const string = (at) => language.strings.map((pattern) => found(pattern, at)).find(Boolean);
  for (let at = 0; at < code.length;) {
    const [kind, text] = piece(code, at, language, found, string);
    put(kind, text);
    at += text.length;
  }
  return out;
}

function piece(code, at, { line = [], apart, block, flat, keywords }, found, string) {
  const isApart = at === 0 || /[\s;()]/.test(code[at - 1]);
  if ((isApart || !apart) && line.some((mark) => code.startsWith(mark, at))) {
    const end = code.indexOf("\n", at);
    return ["comment", code.slice(at, end < 0 ? code.length : end)];
  }
  if (block && code.startsWith(block[0], at)) return ["comment", code.slice(at, closed(code, at, block, flat))];
  const text = string(at);
  if (text) return ["string", text];
  const word = found(WORD, at);
  if (word) return [keywords.has(word) ? "keyword" : "", word];
  const number = found(NUMBER, at);
  return number ? ["number", number] : ["", code[at]];
}

/** The end of a comment. Comments of Rust and OCaml can be nested. */
function closed(code, at, [open, close], flat) {
  let depth = 0;
  for (let i = at; i < code.length;) {
    if (code.startsWith(close, i) && depth > 0) {
      i += close.length;
      if (--depth === 0) return i;
    } else if (code.startsWith(open, i) && (depth === 0 || !flat)) {
      depth++;
      i += open.length;
    } else i++;
  }
  return code.length;
}
