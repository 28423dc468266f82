// Reading groups: filters, search, copying, two completions side by side, the keyboard, a phone, a run in progress.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { base, listed, open, test, work } from "./page.mjs";
import { GROUPS, OPENED, body, reading, sets } from "./recorded.mjs";

await test("groups and completions can be filtered by reward", async () => {
  const means = GROUPS.map(([, , rewards]) => rewards.reduce((a, b) => a + b, 0) / 4);
  const page = await open("#/reader/rollouts?all=1");
  await page.waitForSelector(".count");
  const count = (n) =>
    page.waitForFunction((n) => document.querySelector(".count")?.textContent.startsWith(`${n} group`), n);
  await count(4);
  await page.fill("#reward-min", "0.4");
  await page.keyboard.press("Enter");
  await count(means.filter((mean) => mean >= 0.4).length);
  await page.fill("#reward-max", "0.9");
  await page.keyboard.press("Tab");
  await count(means.filter((mean) => mean >= 0.4 && mean <= 0.9).length);
  await page.selectOption("#choose-per", "completion");
  const fits = (reward) => reward >= 0.4 && reward <= 0.9;
  await count(GROUPS.filter(([, , rewards]) => rewards.some(fits)).length);
  assert.equal(await page.evaluate(() => document.activeElement.id), "choose-per", "the focus must stay");
  await page.waitForSelector(".filtered");
  assert.match(await page.textContent(".filtered"), /^3 completions of 4 are outside the filter/);
  const shown = () => page.$$eval(".completion", (all) => all.map((one) => one.dataset.number));
  assert.deepEqual(await shown(), ["2"]);
  const again = await open(await page.evaluate(() => location.hash));
  await again.waitForSelector(".filtered");
  await again.click("text=Show all");
  await again.waitForFunction(() => document.querySelectorAll(".completion").length === 4);
  const bad = await fetch(`${base}/api/runs/reader/groups?max=low`);
  assert.deepEqual([bad.status, await bad.text()], [400, "max=low is not a number: give a reward, such as max=0.5"]);
  await page.close();
  await again.close();
});

await test("prompts can be searched and sorted, and constant rewards are reported", async () => {
  const page = await open("#/reader/rollouts?by=prompts");
  await page.waitForSelector(".groups a[data-prompt]");
  assert.equal(await page.textContent(".count"), "3 prompts");
  await page.keyboard.press("w");
  await page.waitForFunction(() => document.querySelector('select[aria-label="order"]')?.value === "unsolved");
  await page.keyboard.press("b");
  await page.waitForFunction(() => document.querySelector('select[aria-label="order"]')?.value === "rose");
  await page.keyboard.press("/");
  await page.keyboard.type("AGAIN");
  await page.waitForFunction(() => document.querySelector(".count")?.textContent === "1 prompt");
  assert.equal(await page.evaluate(() => document.activeElement.id), "search");
  const line = await page.textContent(".groups a small");
  assert.ok(line.endsWith("1 (step 3)") && !line.includes("best"), line);
  await page.close();
});

await test("visible spaces do not change the text, and two completions can be compared", async () => {
  const page = await reading(2, "&as=text&spaces=1");
  const text = body(page, 2).locator(".text");
  assert.equal(await text.textContent(), "a\tb  c\n<e>");
  const marks = await text.locator("[data-mark]").evaluateAll((all) => all.map((one) => one.dataset.mark));
  assert.deepEqual(marks, ["⇥", "·", "·", "⏎"]);
  assert.equal(await body(page, 0).locator('[data-mark="U+202E"]').count(), 1);
  await page.goto(`${base}/#/reader/rollouts?step=3`);
  await page.waitForFunction(() => document.querySelector(".read h1")?.textContent.endsWith("step 3"));
  await page.keyboard.press("a");
  await page.waitForSelector(".aligned .row");
  const rows = await page.$$eval(".aligned .row", (all) =>
    all.map((row) =>
      [...row.children].map((side) => [
        side.textContent,
        [...side.querySelectorAll("mark")].map((mark) => mark.textContent),
      ]),
    ),
  );
  assert.deepEqual(rows, [
    [
      ["one two", ["two"]],
      ["one 2", ["2"]],
    ],
    [
      ["same", []],
      ["same", []],
    ],
    [
      ["five<e>", ["five<e>"]],
      ["five six<e>", ["five six<e>"]],
    ],
  ]);
  await page.selectOption(".aligned select >> nth=1", "2");
  await page.waitForFunction(() => location.hash.includes("pair=0.2"));
  await page.close();
});

await test("completions and groups are copied as JSON, even without a clipboard", async () => {
  const page = await reading(1);
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  const copied = async (what) => {
    await page.click(`[data-copies=${what}]`);
    await page.waitForFunction(
      (what) => document.querySelector(`[data-copies=${what}]`)?.textContent.endsWith(": copied"),
      what,
    );
    return JSON.parse(await page.evaluate(() => navigator.clipboard.readText()));
  };
  const whole = await copied("group");
  assert.deepEqual(
    whole.completions.map((one) => one.reward),
    GROUPS[0][2],
  );
  assert.deepEqual(
    whole.completions.map((one) => one.ids.length),
    GROUPS[0][1].map((text) => text.length + (text === "no end of it" ? 0 : 1)),
  );
  assert.deepEqual([whole.run, whole.step, whole.prompt], ["reader", 1, OPENED]);
  await page
    .locator(".completion")
    .nth(2)
    .click({ position: { x: 4, y: 4 } });
  await page.waitForFunction(() => location.hash.includes("c=2"));
  const one = await copied("completion");
  assert.deepEqual([one.completion, one.rewards, one.logprobs.length], [2, { right: 0.5 }, GROUPS[0][1][2].length + 1]);
  // Without a clipboard the selected text is copied; if that is refused, too, the text is shown.
  await page.evaluate(() => {
    Object.defineProperty(navigator, "clipboard", { value: undefined });
    document.execCommand = () => false;
  });
  await page.keyboard.press("y");
  await page.waitForSelector("dialog.copied[open]");
  assert.equal(JSON.parse(await page.inputValue(".copied textarea")).completion, 2);
  await page.close();
});

await test("cells of the map, points of a curve and tokens can be reached with the keyboard", async () => {
  const page = await reading(1);
  const width = await page.$eval(".map svg", (svg) => svg.getBoundingClientRect().width);
  assert.ok(width <= 4 * 18 + 1, `four steps are ${width} pixels wide`);
  const tip = () => page.textContent("#tip");
  await page.focus(".map svg");
  await page.keyboard.press("ArrowRight");
  assert.match(await tip(), /^step 1: reward 0.438/);
  await page.keyboard.press("ArrowRight");
  assert.match(await tip(), /^step 2: reward 0.3/);
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector(".read h1")?.textContent.endsWith("step 2"));
  await page.focus(".completion .text[role=group]");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  assert.match(await tip(), /^"s": token 1, id \d+, log p -/);
  // The position is kept when another colour is drawn.
  await page.keyboard.press("c");
  await page.waitForFunction(() => location.hash.includes("color=entropy"));
  await page.waitForSelector(".t.picked");
  await page.keyboard.press("ArrowRight");
  assert.match(await tip(), /^"c": token 2,/);
  assert.equal(await page.locator(".t.picked").count(), 1);
  await page.goto(`${base}/#/reader/rollouts?by=prompts&q=solve`);
  await page.waitForFunction(() => document.querySelectorAll(".point").length === 2);
  await page.focus(".history svg");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowLeft");
  assert.match(await tip(), /^step 1: reward 0.438/);
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector(".read h1")?.textContent.endsWith("step 1"));
  await page.close();
});

await test("the header is visible and a message is shown while a group is loading", async () => {
  const page = await open("#/reader/overview");
  await page.waitForSelector(".verdict");
  let answer = null;
  await page.route(/\/groups\/\d/, async (route) => {
    await new Promise((done) => (answer = done));
    await route.continue();
  });
  await page.goto(`${base}/#/reader/rollouts?step=2`);
  await page.waitForFunction(() => document.querySelector(".read")?.textContent === "Loading the groups.");
  assert.equal(await page.textContent('#head nav a[aria-current="page"]'), "Rollouts");
  await page.waitForFunction(() => document.querySelectorAll(".map g").length === 4);
  while (!answer) await page.waitForTimeout(20);
  answer();
  await page.waitForSelector(".completion");
  await page.close();
});

await test("the first completion is on the first screen of a phone, and the view is accessible", async () => {
  const script = "node_modules/axe-core/axe.min.js";
  for (const [words, scheme] of [
    ["&as=rendered&think=1", "light"],
    ["&pair=best&spaces=1", "dark"],
  ]) {
    const page = await reading(1, words, { width: 390, height: 800, scheme, script });
    if (words.includes("rendered")) {
      await page.waitForSelector(".rendered math");
      const top = await page.$eval(".completion .body", (box) => box.getBoundingClientRect().top);
      assert.ok(top < 700, `the first completion begins at ${top}`);
      // The same holds below a long prompt.
      await page.goto(`${base}/#/reader/rollouts?step=3`);
      await page.waitForFunction(() => document.querySelector(".read h1")?.textContent.endsWith("step 3"));
      assert.match(await page.textContent(".asked .more"), /^… \d+ more characters$/);
      const below = await page.$eval(".completion .body", (box) => box.getBoundingClientRect().top);
      assert.ok(below < 700, `the first completion begins at ${below}`);
      await page.goto(`${base}/#/reader/rollouts?step=1${words}`);
      await page.waitForSelector(".rendered math");
      assert.equal(await page.isVisible("#search"), false);
      await page.keyboard.press("/");
      await page.waitForFunction(() => document.activeElement.id === "search");
    }
    assert.ok(
      (await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)) <= 0,
      `${words}: beyond the edge`,
    );
    const serious = await page.evaluate(async () => {
      const found = (await axe.run("main")).violations.filter((one) => ["serious", "critical"].includes(one.impact));
      return found.map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 90)).join(" | ")}`);
    });
    assert.deepEqual(serious, [], words);
    await page.close();
  }
});

await test("the map grows with the run, keeps focus and column, and counts new groups", async () => {
  // Slow enough that each step has a separate column. A step has 4 groups.
  const keys = ["num_generations=16", "per_device_train_batch_size=64", "max_completion_length=90", "max_steps=100000"];
  const of = ["--model", `${work}/model`, "--dataset", `${work}/rows.jsonl`, "--reward", "unique_chars"];
  const run = spawn(process.env.LOCKSTEP, ["train", ...of, "--out", `${work}/runs/map`, ...sets(keys)], {
    stdio: "ignore",
  });
  try {
    await listed((one) => one.id === "map" && one.step > 1);
    const page = await open("#/map/rollouts");
    await page.waitForSelector(".completion .t", { state: "attached" });
    const heading = await page.textContent(".read h1");
    const step = /step (\d+)$/.exec(heading)[1];
    await page.focus(".map svg");
    await page.keyboard.press("ArrowRight");
    const columns = () => page.locator(".map g").count();
    const before = await columns();
    const news = () => page.waitForFunction(() => /^\d/.test(document.querySelector(".fresh")?.textContent));
    await news();
    await page.waitForFunction((n) => document.querySelectorAll(".map g").length > n, before);
    assert.equal(await page.evaluate(() => document.activeElement === document.querySelector(".map svg")), true);
    // The URL names no step: the displayed step stays, and is marked.
    await page.keyboard.press("c");
    await page.waitForFunction(() => location.hash.includes("color="));
    assert.equal(await page.textContent(".read h1"), heading);
    assert.ok((await page.$$eval(".map .now", (all) => all.map((one) => one.dataset.step))).every((at) => at === step));
    const [, counted, last] = /^([\d,]+) new groups?, up to step (\d+)/.exec(await page.textContent(".fresh"));
    // A step may have arrived between the map's first load and the heading.
    assert.ok(Number(counted.replace(",", "")) >= 4 * (last - step - 1), `${counted} to ${last} from ${step}`);
    await page.click("text=Read them");
    await page.waitForFunction((heading) => document.querySelector(".read h1").textContent !== heading, heading);
    await news();
    const [, later, at] = /^([\d,]+) new groups?, up to step (\d+)/.exec(await page.textContent(".fresh"));
    const shown = /step (\d+)$/.exec(await page.textContent(".read h1"))[1];
    assert.ok(Number(later.replace(",", "")) <= 4 * (at - shown + 1), `${later} to ${at} from ${shown}`);
    await page.close();
  } finally {
    run.kill("SIGKILL");
  }
});
