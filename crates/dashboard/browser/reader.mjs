// The views of completions: thinking, Markdown, code and formulas, hostile text, long text.
import assert from "node:assert/strict";
import { base, open, test } from "./page.mjs";
import { ANSWER, GROUPS, LONG, THOUGHT, body, reading } from "./recorded.mjs";

await test("thinking is folded with its length, even if the prompt opened it or it is not closed", async () => {
  const page = await reading(1);
  const folds = await page.$$eval(".think > summary", (all) => all.map((one) => one.textContent));
  const length = (text) => text.indexOf("</think>") + "</think>".length;
  const [first, , third] = GROUPS[0][1];
  const lengths = [length(first), "no end of it".length, length(third), "</think>".length];
  const expected = lengths.map((n, i) => `Thinking, ${n} tokens${i === 1 ? ", not closed" : ""}`);
  assert.deepEqual(folds, expected);
  assert.equal(await page.locator(".think .t").count(), 0, "folded content must not be loaded yet");
  // A click opens one part; the key opens all, and the URL keeps that state.
  await page.locator(".think > summary").nth(2).click();
  await page.waitForSelector(".think .t");
  assert.equal(await page.locator(".think .t").count(), length(third));
  assert.ok(!(await page.evaluate(() => location.hash)).includes("c="), "opening a part must not choose the completion");
  await page.keyboard.press("c");
  await page.waitForFunction(() => location.hash.includes("color="));
  await page.waitForSelector(".think[open] .t", { state: "attached" });
  await page.keyboard.press("f");
  await page.waitForFunction(
    () => location.hash.includes("think=1") && document.querySelectorAll(".think[open]").length === 4,
  );
  assert.equal(await body(page, 1).textContent(), "Thinking, 12 tokens, not closedno end of it");
  await page.close();
});

await test("a completion is shown as tokens, text or Markdown, and only formulas load Temml", async () => {
  const asked = [];
  const page = await open("#/a/rollouts?as=rendered");
  page.on("request", (request) => asked.push(request.url()));
  await page.waitForSelector(".rendered");
  await page.goto(`${base}/#/reader/rollouts?step=1`);
  await page.waitForSelector(".completion .t", { state: "attached" });
  const temml = () => asked.filter((url) => url.includes("temml") || url.includes("stix"));
  assert.deepEqual(temml(), []);
  await page.keyboard.press("v");
  await page.waitForFunction(() => location.hash.includes("as=text"));
  const text = ANSWER.slice(ANSWER.indexOf("</think>") + "</think>".length);
  await page.waitForSelector(".completion .body > .text:not([role])");
  assert.ok(`${text}<e>`.startsWith(await body(page, 0).locator("> .text").textContent()));
  await page.keyboard.press("v");
  await page.waitForFunction(() => location.hash.includes("as=rendered"));
  await page.waitForSelector(".rendered math");
  await page.waitForFunction(() => document.querySelectorAll(".rendered math").length === 2);
  assert.ok(temml().length >= 2 && temml().every((url) => url.startsWith(base)), temml().join());
  const shown = body(page, 0).locator(".rendered");
  const of = (selector) => shown.locator(selector).allTextContents();
  assert.deepEqual(await of(".title"), ["Solution"]);
  assert.deepEqual(
    [await of("strong"), await of("em"), await of("p > code")],
    [["quadratic formula"], ["both"], ["roots"]],
  );
  assert.deepEqual(await of("th, td"), ["root", "value", "x1", "2"]);
  assert.equal(await shown.locator("ul > li > ol > li").count(), 1);
  assert.deepEqual(await of(".link"), ["see here https://evil.example/a", "picture plot https://evil.example/x.png"]);
  const colors = await shown
    .locator("pre span")
    .evaluateAll((all) => all.map((one) => [one.className, one.textContent]));
  assert.deepEqual(colors, [
    ["k-keyword", "return"],
    ["k-string", '"ok"'],
    ["k-comment", "# both"],
  ]);
  assert.ok((await shown.locator("mfrac").count()) === 1 && (await shown.locator("msqrt").count()) === 1);
  assert.equal(await shown.locator("a, img").count(), 0);
  assert.ok(!(await shown.textContent()).includes("<e>"), "the end token must not be part of the text");
  await page.close();
});

await test("hostile Markdown and LaTeX add no element, name or URL to the page", async () => {
  const asked = [];
  const page = await reading(2, "&as=rendered");
  page.on("request", (request) => asked.push(request.url()));
  await page.waitForSelector(".rendered math, .math.bad");
  await page.waitForFunction(() => document.querySelectorAll(".math.bad").length === 2);
  const box = body(page, 0).locator(".rendered");
  const inside = await box.evaluate((box) => ({
    elements: [...box.querySelectorAll("script, img, a, style, iframe, [href], [id], [src], [onerror]")].map(
      (e) => e.outerHTML,
    ),
    text: box.textContent,
    shown: getComputedStyle(box).display,
  }));
  assert.deepEqual(inside.elements, []);
  for (const part of ["<script>alert(1)</script>", "<img src=x onerror=alert(2)>", "javascript:alert(3)", "<style>"])
    assert.ok(inside.text.includes(part), part);
  assert.equal(inside.shown, "block");
  // The element with that name is still the page's own.
  assert.equal(await page.evaluate(() => document.getElementById("tip").tagName), "P");
  assert.deepEqual(
    asked.filter((url) => !url.startsWith(base)),
    [],
  );
  await page.close();
});

await test("Markdown, code and diffs of hostile length are processed in time, and code is never changed", async () => {
  const page = await open("#/reader/rollouts?step=3");
  const found = await page.evaluate(async () => {
    const { markdown } = await import("/rendered/markdown.js");
    const { highlighted } = await import("/rendered/code.js");
    const { aligned } = await import("/lib/diff.js");
    const many = [
      "*a ",
      "**a",
      "[",
      "[a](",
      "$a ",
      "$$ ",
      "> ",
      "- ",
      "\\(",
      "\\[\n",
      "|a\n|-\n",
      "*_",
      "`a",
      "a* ",
      "![",
      "```\n",
      "\\begin{align}\n",
      " #",
    ];
    const texts = [...many.map((part) => part.repeat(20000)), "`".repeat(60000), "_".repeat(60000), "\\".repeat(60001)];
    const slow = [];
    for (const text of texts) {
      const since = performance.now();
      markdown(text);
      const took = performance.now() - since;
      if (took > 5000) slow.push([text.slice(0, 8), took]);
    }
    const codes = [
      'def f(x): # "a"\n  """b',
      "(* (* *) let 'a' x",
      'r#"raw"# \'a b /* /* */',
      "#include <a> // 'x",
      '{"a": [1.5e3, true]}',
      "echo $# '\"'",
    ];
    const languages = ["python", "ocaml", "rust", "c++", "json", "sh", "", "constructor"];
    const changed = codes.flatMap((code) =>
      languages.filter(
        (name) =>
          highlighted(code, name)
            .map(([, text]) => text)
            .join("") !== code,
      ),
    );
    const [a, b] = ["word ".repeat(50000), "other words ".repeat(30000)];
    const since = performance.now();
    const [{ left, right }] = aligned(a, b);
    const isWhole = left.map(([text]) => text).join("") === a && right.map(([text]) => text).join("") === b;
    return { slow, changed, isWhole, aligned: performance.now() - since };
  });
  assert.deepEqual([found.slow, found.changed, found.isWhole], [[], [], true]);
  assert.ok(found.aligned < 5000, `${found.aligned} ms`);
  await page.close();
});

await test("a long completion is truncated, and the remaining windows are loaded on request", async () => {
  const page = await reading(2, "&color=none");
  const long = body(page, 1);
  const { length } = LONG;
  // The answer is not loaded yet: its thinking is longer than one response of the server.
  assert.equal(await long.locator("summary").textContent(), "Thinking, more than 4,096 tokens");
  assert.equal(await long.locator(".more").textContent(), `… ${(length + 1 - 4096).toLocaleString("en")} more tokens`);
  await long.locator(".more").click();
  await page.waitForFunction(
    (n) => document.querySelectorAll(".completion .body")[1].querySelectorAll(".t").length === n,
    length - THOUGHT.length + 1,
  );
  assert.equal(await long.locator("summary").textContent(), `Thinking, ${THOUGHT.length.toLocaleString("en")} tokens`);
  assert.equal(await long.locator("> .text").textContent(), `${LONG.slice(THOUGHT.length)}<e>`);
  assert.equal(await long.locator(".more").count(), 0);
  await page.close();
});

await import("./reading.mjs");
