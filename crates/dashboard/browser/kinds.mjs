// Every kind of run: each metric has a chart that shows it, and the shares of time sum to the whole.
import assert from "node:assert/strict";
import { appendFileSync, mkdirSync, writeFileSync } from "node:fs";
import { base, lines, listed, open, test, work } from "./page.mjs";

const KINDS = ["a", "iterations", "ppo", "reference", "lora", "sft", "dpo"];

for (const run of KINDS)
  await test(`${run}: no chart is empty, and the stages' shares sum to 100 %`, async () => {
    const page = await open(`#/${run}/overview?metrics=all`);
    await page.waitForSelector(".chart canvas");
    await page.waitForTimeout(300);
    const { keys } = await page.evaluate(async (run) => (await fetch(`/api/runs/${run}`)).json(), run);
    const drawn = await page.$$eval(".chart", (all) => {
      const one = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
      one.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--run-a");
      one.fillRect(0, 0, 1, 1);
      const color = one.getImageData(0, 0, 1, 1).data;
      return all.map((figure) => {
        const canvas = figure.querySelector("canvas");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        let pixels = 0;
        for (let i = 0; i < data.length; i += 4)
          if (data[i + 3] > 200 && [0, 1, 2].every((k) => Math.abs(data[i + k] - color[k]) < 24)) pixels++;
        return [figure.querySelector("h3").textContent, pixels];
      });
    });
    const shown = new Set(drawn.map(([name]) => name));
    assert.deepEqual(keys.filter((key) => !shown.has(key)), [], "metrics without a chart");
    // A line through the plot has hundreds of pixels, a single dot some ten.
    const few = drawn.filter(([, pixels]) => pixels < 8);
    assert.deepEqual(few, [], "empty charts");
    await page.goto(`${page.url().split("#")[0]}#/${run}/time`);
    await page.waitForSelector(".stack table");
    const cells = await page.$$eval(".stack table", (tables) =>
      [...tables[0].querySelectorAll("tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent)),
    );
    const total = cells.reduce((sum, row) => sum + Number.parseFloat(row.at(-1)), 0);
    assert.ok(Math.abs(total - 100) <= 1, `${total} %: ${JSON.stringify(cells)}`);
    const head = /(\d[\d.]*) % of the time is (.+)\./.exec(await page.textContent(".verdict h1"));
    assert.equal(head[2], cells[0][0] === "everything else" ? cells[1][0] : cells[0][0]);
    await page.close();
  });

await test("values of PPO and the reference model have their own share", async () => {
  for (const [run, names] of [
    ["ppo", ["values", "value update", "reference", "rollout"]],
    ["reference", ["reference", "rollout"]],
  ]) {
    const page = await open(`#/${run}/time`);
    await page.waitForSelector(".stack table");
    const shown = await page.$$eval(".stack table tbody th", (all) => all.map((one) => one.textContent));
    names.forEach((name) => assert.ok(shown.includes(name), `${run}: ${name} of ${shown}`));
    await page.close();
  }
});

await test("a group of PPO, whose advantages are not 0, teaches something", async () => {
  const { group_steps: steps } = await (await fetch(`${base}/api/runs/ppo`)).json();
  const page = await open(`#/ppo/rollouts?step=${steps[0]}`);
  await page.waitForSelector(".completion .t", { state: "attached" });
  assert.ok(!(await page.textContent(".read header")).includes("nothing is learned"));
  assert.equal(await page.locator("svg rect.flat").count(), 0);
  await page.close();
});

await test("home is a table of runs: sorted, filtered, chosen and laid over each other, and the address keeps it", async () => {
  const { runs, keys } = await (await fetch(`${base}/api/table`)).json();
  const page = await open("", { script: "node_modules/axe-core/axe.min.js" });
  await page.waitForSelector(".runs tbody tr");
  assert.match(page.url(), /#\/\/runs/);
  const shown = () => page.$$eval(".runs tbody tr", (all) => all.map((row) => row.dataset.run));
  assert.deepEqual([...(await shown())].sort(), runs.map((one) => one.id).sort());
  const changed = new Map(runs.map((one) => [one.id, one.changed_s]));
  const times = (await shown()).map((id) => changed.get(id));
  assert.deepEqual(times, [...times].sort((a, b) => b - a), "the newest first");
  assert.ok(keys.includes("algorithm") && keys.includes("learning_rate"));
  await page.click(".runs th button:text-is('run')");
  await page.waitForFunction(() => location.hash.includes("sort=run"));
  await page.waitForTimeout(200);
  const names = runs.map((one) => one.name ?? one.id);
  assert.deepEqual(await shown(), [...names].sort((a, b) => a.localeCompare(b, "en", { numeric: true })));
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
  assert.ok((await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)) <= 0, "beyond the edge");
  await page.close();
  await again.close();
});

await test("a run that is not here is said not to be here", async () => {
  const page = await open("#/gone/overview");
  await page.waitForSelector("[role=alert]");
  assert.equal(await page.textContent("main"), "The run gone is not here. All runs");
  await page.close();
});

await test("then and now: the first and the latest completion of held-out prompts, differences marked", async () => {
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
    assert.equal(same[0], same[1], "what is not marked is in both");
    // The reward is the number of different characters.
    const rewards = captions.map((caption) => Number(/reward (.+)/.exec(caption)[1]));
    texts.forEach((text, i) => assert.equal(new Set(text.replaceAll("<e>", "")).size, rewards[i], text));
  }
  await page.close();
});

await test("live: charts, the value under the cursor and the keyboard's focus survive a step", async () => {
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
  await page.waitForFunction(() => document.querySelector(".chart .value").textContent.startsWith("step 1"));
  const before = await page.textContent(".chart .value");
  await page.evaluate(() => (window.canvas = document.querySelector(".chart canvas")));
  for (const step of [21, 22, 23]) {
    appendFileSync(`${directory}/metrics.jsonl`, line(step));
    await page.waitForFunction(
      (step) => document.querySelector(".chart .plot").getAttribute("aria-label").includes(`in ${step} points`),
      step,
    );
  }
  await page.waitForTimeout(100);
  const after = await page.evaluate(() => ({
    value: document.querySelector(".chart .value").textContent,
    isSame: window.canvas === document.querySelector(".chart canvas"),
    hasFocus: document.activeElement === document.querySelector(".chart .plot"),
  }));
  assert.deepEqual(after, { value: before, isSame: true, hasFocus: true });
  await page.close();
});
