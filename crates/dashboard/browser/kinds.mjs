// Every kind of run: each metric has a chart that shows it, and the shares of time sum to the whole.
import assert from "node:assert/strict";
import { open, test } from "./page.mjs";

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
    const share = (text) => (text === "–" || text.startsWith("<") ? 0 : Number.parseFloat(text));
    const total = cells.reduce((sum, row) => sum + share(row.at(-1)), 0);
    assert.ok(Math.abs(total - 100) <= 1, `${total} %: ${JSON.stringify(cells)}`);
    const head = /(\d[\d.]*) % of the time is (.+)\./.exec(await page.textContent(".verdict h1"));
    assert.equal(head[2], cells[0][0] === "everything else" ? cells[1][0] : cells[0][0]);
    await page.close();
  });

await test("values of PPO and the reference model have their own share", async () => {
  for (const [run, names] of [
    ["ppo", ["values", "value update", "update", "rollout"]],
    ["reference", ["reference", "update", "rollout"]],
  ]) {
    const page = await open(`#/${run}/time`);
    await page.waitForSelector(".stack table");
    const shown = await page.$$eval(".stack table tbody th", (all) => all.map((one) => one.textContent));
    names.forEach((name) => assert.ok(shown.includes(name), `${run}: ${name} of ${shown}`));
    await page.close();
  }
});

await test("a group of PPO, whose advantages are not 0, teaches something", async () => {
  const page = await open("#/ppo/rollouts?step=7");
  await page.waitForSelector(".completion .t", { state: "attached" });
  assert.ok(!(await page.textContent(".read header")).includes("nothing is learned"));
  assert.equal(await page.locator("svg rect.flat").count(), 0);
  await page.close();
});
