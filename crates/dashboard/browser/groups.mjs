// A group of completions: its numbers, tokens and colours on the page against the run's own records.
import assert from "node:assert/strict";
import { base, lines, open, settled, test } from "./page.mjs";

const [records, index] = [lines("a.jsonl"), lines("a.index.jsonl")];

await test("a group shows its recorded rewards, advantages, lengths, ends and tokens", async () => {
  const page = await open("#/a/rollouts?step=7");
  await page.waitForSelector(".completion .t", { state: "attached" });
  const place = Number(await page.getAttribute('.groups a[aria-current="true"]', "data-place"));
  const of = records.filter((line) => line.group === index[place].group);
  const shown = await page.$$eval(".completion", (all) =>
    all.map((one) => ({
      ledger: [...one.querySelectorAll(".ledger div")].map((row) => [
        row.querySelector("dt").textContent,
        row.querySelector("dd").textContent,
      ]),
      tokens: [...one.querySelectorAll(".t")].map((t) => [
        t.textContent,
        t.className,
        Number(t.style.getPropertyValue("--a")),
      ]),
    })),
  );
  assert.equal(shown.length, of.length);
  for (const [i, one] of shown.entries()) {
    const ledger = Object.fromEntries(one.ledger);
    assert.equal(Number(ledger.unique_chars), Number(of[i].rewards[0].toPrecision(3)));
    assert.ok(
      Math.abs(Number(ledger.advantage.replace(/[^-\d.e]/g, "")) - of[i].advantages) <
        0.01 * Math.max(1, Math.abs(of[i].advantages)),
      ledger.advantage,
    );
    assert.ok(
      ledger.tokens.startsWith(`${of[i].completion_ids.length} `) &&
        ledger.tokens.includes(of[i].truncated ? "✂" : "∎"),
      ledger.tokens,
    );
    assert.equal(one.tokens.length, of[i].completion_ids.length);
    one.tokens.forEach(([, name, amount], t) => {
      assert.equal(name, "t surprise");
      assert.ok(Math.abs(amount - Math.min(1, -of[i].logprobs[t] / 6)) < 2e-3, `${amount} ${of[i].logprobs[t]}`);
    });
    const text = one.tokens
      .map(([piece]) => piece)
      .join("")
      .replaceAll("<e>", "");
    assert.equal(text, of[i].completion ?? text);
  }
  await page.keyboard.press("c");
  await page.waitForSelector(".t.entropy", { state: "attached" });
  await page.close();
});

await test("keys move through completions into the next group, and the URL restores the position", async () => {
  const page = await open("#/a/rollouts?step=7");
  await page.waitForSelector(".completion .t", { state: "attached" });
  for (let i = 0; i < 5; i++) {
    await page.keyboard.press("j");
    await settled(page);
  }
  const state = await page.evaluate(() => location.hash);
  assert.match(state, /g=\d+/);
  const heading = await page.textContent(".read h1");
  const again = await open(state);
  await again.waitForSelector(".completion.chosen");
  assert.equal(await again.textContent(".read h1"), heading);
  await again.keyboard.press("h");
  await again.waitForFunction(() => location.hash.includes("prompt="));
  const place = Number(/g=(\d+)/.exec(state)[1]);
  const expected = index
    .filter((entry) => entry.prompt_hash === index[place].prompt_hash)
    .map((entry) => entry.step)
    .slice(0, 40);
  await again.waitForFunction((expected) => {
    const shown = [...document.querySelectorAll(".groups small")];
    return String(shown.map((one) => /step (\d+)/.exec(one.textContent)[1])) === expected;
  }, String(expected));
  await page.close();
  await again.close();
});

await test("the effect of a step on a token is the recorded ratio", async () => {
  const after = lines("c.updates.jsonl");
  const page = await open("#/c/rollouts?all=1&only=updated&color=ratio");
  await page.waitForSelector(".completion .t", { state: "attached" });
  const groups = new Set(after.map((line) => line.group));
  await page.waitForFunction((n) => document.querySelector(".count")?.textContent.startsWith(`${n} `), groups.size);
  const place = Number(await page.getAttribute('.groups a[aria-current="true"]', "data-place"));
  const all = [lines("c.training.jsonl"), after];
  const { group } = lines("c.index.jsonl")[place];
  const [sampled, new_] = all.map((lines) => lines.filter((line) => line.group === group));
  assert.ok(new_.length > 0 && new_.length === sampled.length);
  const shown = await page.$$eval(".completion", (all) =>
    all.map((one) =>
      [...one.querySelectorAll(".t")].map((t) => [t.className, Number(t.style.getPropertyValue("--a")), t.title]),
    ),
  );
  let moved = 0;
  for (const [i, tokens] of shown.entries())
    for (const [t, [name, amount, title]] of tokens.entries()) {
      const change = new_[i].tokens.new_logps[t] - sampled[i].logprobs[t];
      assert.equal(name, change >= 0 ? "t up" : "t down");
      assert.ok(Math.abs(amount - Math.min(1, Math.abs(change) / Math.log(1.5))) < 2e-3, `${amount} ${change}`);
      assert.ok(title.includes(`ratio after the step ${Number(Math.exp(change).toPrecision(3))}`), title);
      moved += change !== 0;
    }
  assert.ok(moved > 0, "the step must have changed some tokens");
  await page.close();
});

await test("completions of evaluations are displayed like those of training", async () => {
  const evaluated = lines("c.evaluations.jsonl");
  const page = await open("#/c/rollouts?step=100");
  await page.waitForSelector(".completion .t", { state: "attached" });
  await page.selectOption('select[aria-label="Of training or evaluations"]', "evaluations");
  await page.waitForFunction(() => document.querySelector(".read h1")?.textContent.includes("step 200"));
  const first = evaluated.filter((line) => line.step === 200);
  const groups = new Set(first.map((line) => line.prompt_id)).size;
  const count = await page.textContent(".count");
  assert.ok(count.startsWith(`${groups} `), `${groups}: ${count}`);
  const shown = await page.$$eval(".completion", (all) => all.map((one) => one.querySelectorAll(".t").length));
  assert.deepEqual(
    shown,
    first.filter((line) => line.prompt_id === first[0].prompt_id).map((line) => line.completion_ids.length),
  );
  await page.close();
});

await test("filters and search find the recorded groups", async () => {
  const page = await open("#/a/rollouts?all=1&only=no-spread");
  await page.waitForSelector(".count");
  const count = async () => Number((await page.textContent(".count")).replace(/\D.*$/, ""));
  assert.equal(await count(), index.filter((entry) => entry.reward_std <= 1e-8).length);
  await page.goto(`${base}/#/a/rollouts?all=1&only=cut`);
  const cut = new Set(records.filter((line) => line.truncated).map((line) => line.group)).size;
  await page.waitForFunction((cut) => document.querySelector(".count")?.textContent.startsWith(`${cut} `), cut);
  await page.goto(`${base}/#/a/rollouts?all=1&q=moon`);
  const found = new Set(
    records.filter((line) => `${line.prompt}${line.completion ?? ""}`.includes("moon")).map((line) => line.group),
  ).size;
  await page.waitForFunction((found) => document.querySelector(".count")?.textContent.startsWith(`${found} `), found);
  // Completions are recorded as tokens; a search while the user types finds their text.
  await page.goto(`${base}/#/a/rollouts?step=7`);
  await page.waitForFunction(() => document.querySelector(".read h1")?.textContent.endsWith("step 7"));
  // The first tokens of one completion; a completion that ended early has fewer.
  const starts = await page.$$eval(".completion", (all) =>
    all.map((one) => [...one.querySelectorAll(".t")].slice(0, 4).map((t) => t.textContent).join("")),
  );
  const part = starts.reduce((a, b) => (b.length > a.length ? b : a));
  await page.getByLabel("all steps").check();
  await page.locator("#search").pressSequentially(part.toUpperCase());
  await page.waitForFunction((q) => new URLSearchParams(location.hash.split("?")[1]).get("q") === q, part.toUpperCase());
  await page.waitForFunction((all) => Number(document.querySelector(".count")?.textContent.replace(/\D.*$/, "")) < all, index.length);
  assert.ok((await count()) >= 1, part);
  assert.equal(await page.evaluate(() => document.activeElement.id), "search");
  await page.goto(`${base}/#/a/rollouts?all=1&only=best`);
  const best = index.reduce((a, b) => (b.reward > a.reward ? b : a));
  await page.waitForFunction(
    (reward) => document.querySelector(".groups small")?.textContent.includes(`reward ${reward}`),
    Number(best.reward.toPrecision(3)),
  );
  await page.close();
});
