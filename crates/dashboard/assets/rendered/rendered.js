// Converts Markdown to elements. Text of a model never becomes markup, and links and pictures are not loaded: their
// address is shown as text.
import { highlighted } from "/rendered/code.js";
import { h } from "/lib/lib.js";
import { markdown } from "/rendered/markdown.js";
import { formula } from "/rendered/math.js";

/** The elements of a text. */
export const rendered = (text) => markdown(text).map(block);

function block(one) {
  switch (one.kind) {
    case "heading":
      // Headings of the text are not headings of the page.
      return h("p", { class: `title t${one.level}` }, one.children.map(part));
    case "code":
      return code(one);
    case "math":
      return formula(one.text, true);
    case "list":
      return h(
        one.isOrdered ? "ol" : "ul",
        { start: one.isOrdered ? one.start : null },
        one.items.map((item) => h("li", {}, item.map(block))),
      );
    case "quote":
      return h("blockquote", {}, one.blocks.map(block));
    case "rule":
      return h("hr");
    case "table":
      return table(one);
    default:
      return h("p", {}, one.children.map(part));
  }
}

const code = ({ language, text }) =>
  h(
    "div",
    { class: "code" },
    language ? h("small", {}, language) : null,
    h(
      "pre",
      {},
      h(
        "code",
        {},
        highlighted(text, language).map(([kind, text]) => (kind ? h("span", { class: `k-${kind}` }, text) : text)),
      ),
    ),
  );

const table = ({ align, head, body }) => {
  const cell = (tag) => (parts, i) =>
    h(tag, { class: align[i] ?? null, scope: tag === "th" ? "col" : null }, parts.map(part));
  return h(
    "div",
    { class: "wide", tabindex: 0 },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, head.map(cell("th")))),
      h(
        "tbody",
        {},
        body.map((row) => h("tr", {}, row.map(cell("td")))),
      ),
    ),
  );
};

const TAGS = { strong: "strong", em: "em", strike: "s" };

function part(one) {
  if (typeof one === "string") return one;
  switch (one.kind) {
    case "code":
      return h("code", {}, one.text);
    case "math":
      return formula(one.text, one.isDisplay);
    case "link":
    case "image": {
      const text = one.text === one.address ? null : one.text;
      const shown = [one.kind === "image" ? "picture " : null, text, text && one.address ? " " : null];
      return h("span", { class: "link" }, shown, one.address ? h("code", {}, one.address) : null);
    }
    default:
      return h(TAGS[one.kind], {}, one.children.map(part));
  }
}
