// Views beyond those of a single run: home, a missing run, two completions of one prompt, and a growing run.
import assert from "node:assert/strict";
import { appendFileSync, mkdirSync, writeFileSync } from "node:fs";
import { base, lines, listed, open, settled, test, work } from "./page.mjs";

await test("the table of runs can be sorted, filtered and compared, and the URL keeps the state", async () => {
  const { runs, keys } = await (await fetch(`${base}/api/table`)).json();
  const page = await open("", { script: "node_modules/axe-core/axe.min.js" });
  await page.waitForSelector(".runs tbody tr");
  assert.match(page.url(), /#\/\/runs/);
  const shown = () => page.$$eval(".runs tbody tr", (all) => all.map((row) => row.dataset.run));
  assert.deepEqual([...(await shown())].sort(), runs.map((one) => one.id).sort());
  const changed = new Map(runs.map((one) => [one.id, one.changed_s]));
  const times = (await shown()).map((id) => changed.get(id));
  assert.deepEqual(times, [...times].sort((a, b) => b - a), "the newest run must be first");
  assert.ok(keys.includes("algorithm") && keys.includes("learning_rate"));
  await page.click(".runs th button:text-is('run')");
  await page.waitForFunction(() => location.hash.includes("sort=run"));
  await settled(page);
  const title = (one) => one.name ?? one.id;
  const byName = [...runs].sort((a, b) => title(a).localeCompare(title(b), "en", { numeric: true }));
  assert.deepEqual(await shown(), byName.map((one) => one.id));
  for (const run of ["a", "b", "ppo"]) {
    await page.check(`tr[data-run="${run}"] input`);
    await page.waitForFunction((run) => location.hash.includes(run), run);
  }
  await page.waitForSelector(".charts .u-over");
  const again = await open(new URL(page.url()).hash);
  await again.waitForSelector(".charts .u-over");
  assert.equal(await again.$$eval(".runs input:checked", (all) => all.length), 3);
  const value = await again.textContent(".charts .value");
  ["a ", "b ", "ppo "].forEach((name) => assert.ok(value.includes(name), value));
  await again.fill('input[aria-label="Filter runs"]', "ppo");
  await again.waitForFunction(() => document.querySelectorAll(".runs tbody tr").length === 1);
  await again.click('tr[data-run="ppo"] a');
  await again.waitForSelector(".verdict h1");
  assert.match(again.url(), /#\/ppo\/overview/);
  const serious = await page.evaluate(async () => {
    const found = (await axe.run("main")).violations.filter((one) => ["serious", "critical"].includes(one.impact));
    return found.map((one) => `${one.id}: ${one.nodes[0].html.slice(0, 80)}`);
  });
  assert.deepEqual(serious, []);
  await page.setViewportSize({ width: 390, height: 800 });
  assert.ok((await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)) <= 0, "the page must not be wider than the screen");
  await page.close();
  await again.close();
});

await test("a missing run is reported", async () => {
  const page = await open("#/gone/overview");
  await page.waitForSelector("[role=alert]");
  assert.equal(await page.textContent("main"), "The run gone was not found. All runs");
  await page.close();
});

await test("the first and the latest completion of held-out prompts are compared", async () => {
  const evaluated = lines("c.evaluations.jsonl");
  const page = await open("#/c/overview");
  await page.waitForSelector(".pair mark");
  const pairs = await page.$$eval(".pair", (all) =>
    all.map((one) => ({
      captions: [...one.querySelectorAll("figcaption")].map((caption) => caption.textContent),
      texts: [...one.querySelectorAll(".text")].map((text) => text.textContent),
      same: [...one.querySelectorAll(".text")].map((text) =>
        [...text.childNodes].filter((node) => node.nodeName !== "MARK").map((node) => node.textContent).join(""),
      ),
    })),
  );
  assert.ok(pairs.length >= 1);
  for (const { captions, texts, same } of pairs) {
    const steps = captions.map((caption) => Number(/step (\d+)/.exec(caption)[1]));
    assert.ok(steps[0] < steps[1] && steps.every((step) => evaluated.some((line) => line.step === step)), `${steps}`);
    assert.equal(same[0], same[1], "unmarked text must be in both completions");
    // The reward is the number of distinct characters.
    const rewards = captions.map((caption) => Number(/reward (.+)/.exec(caption)[1]));
    texts.forEach((text, i) => assert.equal(new Set(text.replaceAll("<e>", "")).size, rewards[i], text));
  }
  await page.close();
});

await test("charts, the value under the cursor and the keyboard focus survive a step", async () => {
  const directory = `${work}/runs/growing`;
  const line = (step) => `${JSON.stringify({ step, reward: step / 100, loss: 1 / step, step_time: 0.5 })}\n`;
  mkdirSync(directory, { recursive: true });
  writeFileSync(`${directory}/config.toml`, "max_steps = 100\n");
  writeFileSync(`${directory}/metrics.jsonl`, Array.from({ length: 20 }, (_, i) => line(i + 1)).join(""));
  await listed((one) => one.id === "growing");
  const page = await open("#/growing/overview");
  await page.waitForSelector(".chart canvas");
  await page.focus(".chart .plot");
  for (let i = 0; i < 5; i++) await page.keyboard.press("ArrowLeft");
  await page.waitForFunction(() => document.querySelector(".chart .value")?.textContent.startsWith("step 1"));
  const before = await page.textContent(".chart .value");
  await page.evaluate(() => (window.canvas = document.querySelector(".chart canvas")));
  for (const step of [21, 22, 23]) {
    appendFileSync(`${directory}/metrics.jsonl`, line(step));
    await page.waitForFunction(
      (step) => document.querySelector(".chart .plot")?.getAttribute("aria-label").includes(`in ${step} points`),
      step,
    );
  }
  await settled(page);
  const after = await page.evaluate(() => ({
    value: document.querySelector(".chart .value").textContent,
    isSame: window.canvas === document.querySelector(".chart canvas"),
    hasFocus: document.activeElement === document.querySelector(".chart .plot"),
  }));
  assert.deepEqual(after, { value: before, isSame: true, hasFocus: true });
  await page.close();
});
