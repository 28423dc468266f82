// Questions of users: the page must give the same answer as the run's files.
import assert from "node:assert/strict";
import { base, lines, open, settled, test } from "./page.mjs";

const short = (x) => Number(x.toPrecision(3));

await test("ended alarms are folded, and the count is of active alarms", async () => {
  const page = await open("#/logged/overview");
  await page.waitForSelector(".alarm");
  assert.equal(await page.textContent("#head .warn"), "⚠ 1 alarm");
  assert.match(await page.textContent(".verdict p"), /^1 alarm: cut short, since step 43\./);
  const shown = await page.$$eval(".alarms > details > summary", (all) => all.map((one) => one.textContent));
  assert.deepEqual(shown, ["⚠ cut short, since step 43", "1 ended alarm"]);
  assert.equal(await page.isVisible(".ended .alarm"), false);
  await page.click(".ended > summary");
  assert.equal(await page.textContent(".ended .alarm > summary"), "cut short, step 18 – 30");
  // The run has no recorded rollouts to read.
  assert.equal(await page.locator("text=Read step").count(), 0);
  await page.close();
});

await test("the page names the reward that moved first, and charts of rewards share a scale", async () => {
  const page = await open("#/logged/overview");
  await page.waitForSelector(".chart .u-over");
  const says = await page.textContent(".order");
  const [, early, late] = /early rose \(.*\) at step (\d+), late rose \(.*\) at step (\d+)\. still does not move/.exec(says);
  assert.ok(Math.abs(early - 15) <= 3 && Math.abs(late - 40) <= 3, says);
  const names = await page.$$eval(".chart h3", (all) => all.map((one) => one.textContent));
  const rewards = names.filter((name) => name.startsWith("rewards/"));
  assert.deepEqual(rewards, ["rewards/early/mean", "rewards/late/mean", "rewards/still/mean"]);
  assert.equal(names.indexOf(rewards[0]) + 2, names.indexOf(rewards[2]), "the charts must be side by side");
  // Equal heights in pixels must be equal values.
  const places = await page.$$eval(".chart", (all) => {
    const of = all.filter((one) => one.querySelector("h3").textContent.startsWith("rewards/"));
    return of.map((one) => one.dataset.range);
  });
  assert.equal(new Set(places).size, 1);
  assert.ok(places[0], "no scale");
  await page.close();
});

await test("all metrics are shown on request, and a filter finds them by name", async () => {
  const page = await open("#/a/overview");
  await page.waitForSelector(".chart h3");
  const facts = await (await fetch(`${base}/api/runs/a`)).json();
  const names = () => page.$$eval(".chart h3", (all) => all.map((one) => one.textContent));
  assert.ok((await page.locator(".families > .charts .chart").count()) <= 12);
  await page.click(`text=All metrics (${facts.keys.length})`);
  // The chart of busy cores is computed from two metrics.
  const every = [...facts.keys, "cores busy"].toSorted();
  await page.waitForFunction((n) => document.querySelectorAll(".chart").length === n, every.length);
  assert.deepEqual((await names()).toSorted(), every);
  await page.fill('input[aria-label="Filter metrics"]', "clip_ratio");
  const wanted = facts.keys.filter((key) => key.includes("clip_ratio"));
  await page.waitForFunction((n) => document.querySelectorAll(".chart").length === n, wanted.length);
  assert.deepEqual((await names()).toSorted(), wanted.toSorted());
  await page.close();
});

await test("prompts are sorted by the fall of their reward, and the history of a prompt keeps the group", async () => {
  const index = lines("a.index.jsonl");
  const groups = new Map();
  for (const entry of index) groups.set(entry.prompt_hash, [...(groups.get(entry.prompt_hash) ?? []), entry]);
  const mean = (all) => all.reduce((sum, one) => sum + one.reward, 0) / all.length;
  const falls = [...groups].map(([hash, all]) => {
    const third = Math.ceil(all.length / 3);
    const [from, to] = [mean(all.slice(0, third)), mean(all.slice(-third))];
    return { hash, from, to, fall: from - to, last: all.at(-1) };
  });
  const rose = falls.toSorted((a, b) => a.fall - b.fall)[0].hash;
  falls.sort((a, b) => b.fall - a.fall);
  const page = await open("#/a/rollouts?by=prompts");
  await page.waitForSelector(".groups a[data-prompt]");
  assert.equal(await page.textContent(".count"), `${falls.length} prompts`);
  const first = await page.textContent(".groups a small");
  assert.ok(first.includes(`first third ${short(falls[0].from)} · last third ${short(falls[0].to)}`), first);
  assert.match(await page.textContent(".tools"), /reward .*fell by more than noise/);
  await page.waitForFunction((n) => document.querySelectorAll(".point").length === n, groups.get(falls[0].hash).length);
  await settled(page);
  assert.ok((await page.textContent(".read h1")).endsWith(`step ${falls[0].last.step}`));
  await page.selectOption('select[aria-label="order"]', "rose");
  await page.waitForFunction(() => location.hash.includes("order=rose"));
  await page.waitForSelector(`.groups li:first-child a[data-prompt="${rose}"][aria-current="true"]`);
  // A point of the curve links to its group.
  await page.locator(".point").nth(1).click();
  await page.waitForFunction(() => document.querySelectorAll(".point")[1]?.classList.contains("now"));
  const step = /step (\d+)/.exec(await page.textContent(".point.now title"))[1];
  // The point is marked before its group is loaded.
  await page.waitForFunction((end) => document.querySelector(".read h1")?.textContent.endsWith(end), `step ${step}`);

  await page.goto(`${base}/#/a/rollouts?step=7`);
  await page.waitForFunction(() => document.querySelector(".read h1")?.textContent.endsWith("step 7"));
  const heading = await page.textContent(".read h1");
  await page.click("text=History of this prompt");
  await page.waitForSelector(".point.now");
  assert.equal(await page.textContent(".read h1"), heading);
  const marked = await page.$$eval(".map rect.now", (all) => all.map((one) => Number(one.dataset.place)));
  const hash = index.find((entry) => heading.startsWith(`Group ${entry.group},`)).prompt_hash;
  const places = index.flatMap((entry, place) => (entry.prompt_hash === hash ? [place] : []));
  assert.deepEqual(marked.toSorted(), places.toSorted());
  await page.click("text=All groups of step 7");
  await page.waitForFunction(() => !location.hash.includes("prompt="));
  assert.equal(await page.textContent(".read h1"), heading);
  await page.close();
});

await test("a long list loads more groups, and a filter without a step covers all steps", async () => {
  const page = await open("#/a/rollouts?only=best");
  await page.waitForSelector(".groups .more button");
  assert.equal(await page.getByLabel("all steps").isChecked(), true);
  const before = await page.locator(".groups a").count();
  await page.click(".groups .more button");
  await page.waitForFunction((n) => document.querySelectorAll(".groups a").length > n, before);
  const { length } = lines("a.index.jsonl");
  assert.equal(await page.locator(".groups a").count(), Math.min(length, 80));
  await page.close();
});

await test("a group without spread is a thin cell in the colour of its reward", async () => {
  const page = await open("#/c/rollouts");
  await page.waitForSelector(".map rect", { state: "attached" });
  const cells = await page.$$eval(".map rect", (all) =>
    all.map((one) => {
      const style = getComputedStyle(one);
      const isFlat = one.classList.contains("flat");
      return { isFlat, fill: style.fill, high: Number(one.getAttribute("height")), a: Number(style.fillOpacity) };
    }),
  );
  assert.equal(new Set(cells.map((one) => one.fill)).size, 1, "all cells must have one colour");
  assert.ok(cells.every((one) => one.fill !== "none" && one.a > 0));
  const flat = lines("c.index.jsonl").filter((entry) => entry.reward_std <= 1e-8).length;
  assert.equal(cells.filter((one) => one.isFlat).length, flat);
  const [thin, full] = [true, false].map((isFlat) => new Set(cells.filter((one) => one.isFlat === isFlat).map((one) => one.high)));
  for (const high of thin) assert.ok(high < 0.5 * Math.max(...full), `${high}`);
  await page.close();
});

await test("the tokens that a step changed most are listed, and a group without data links to one with data", async () => {
  const [sampled, after, index] = ["training", "updates", "index"].map((name) => lines(`c.${name}.jsonl`));
  const scored = new Set(after.map((line) => line.group));
  const place = index.findIndex((entry) => !scored.has(entry.group));
  const page = await open(`#/c/rollouts?step=${index[place].step}&g=${place}&color=ratio`);
  await page.waitForSelector(".colors small a");
  const away = (entry) => Math.abs(entry.step - index[place].step);
  const nearest = index.filter((entry) => scored.has(entry.group)).toSorted((a, b) => away(a) - away(b))[0];
  assert.equal(await page.textContent(".colors small a"), `a group of step ${nearest.step}`);
  await page.click(".colors small a");
  await page.waitForSelector(".pushed .token");
  const [of, new_] = [sampled, after].map((all) => all.filter((line) => line.group === nearest.group));
  const byToken = new Map();
  of.forEach((line, i) =>
    line.completion_ids.forEach((id, t) => {
      const changes = byToken.get(id) ?? [];
      byToken.set(id, [...changes, new_[i].tokens.new_logps[t] - line.logprobs[t]]);
    }),
  );
  const means = [...byToken.values()].map((all) => all.reduce((a, b) => a + b, 0) / all.length);
  const changes = means.filter((change) => Math.abs(change) >= 0.005);
  const first = (at) => page.textContent(`.pushed > div:nth-child(${at}) .token`);
  if (Math.max(...changes) > 0)
    assert.ok((await first(1)).includes(`× ${short(Math.exp(Math.max(...changes)))}`), await first(1));
  if (Math.min(...changes) < 0)
    assert.ok((await first(2)).includes(`× ${short(Math.exp(Math.min(...changes)))}`), await first(2));
  const scale = await page.$$eval(".scale i", (all) => all.map((one) => one.className));
  assert.deepEqual([...new Set(scale)], ["t down", "t up"]);
  await page.close();
});

await test("two runs get a table of results, and the list of differing keys needs a second run", async () => {
  const page = await open("#/a/overview?vs=b");
  await page.waitForSelector(".results td");
  const rows = await page.$$eval(".results tbody tr", (all) =>
    all.map((row) => [...row.children].map((cell) => cell.textContent)),
  );
  const [, a, b] = rows.find(([name]) => name.startsWith("reward"));
  for (const [run, shown] of [["a", a], ["b", b]]) {
    const { keys } = await (await fetch(`${base}/api/runs/${run}/series?keys=reward&px=500`)).json();
    const last = keys.reward.mean.slice(-4);
    assert.equal(Number(shown), short(last.reduce((x, y) => x + y, 0) / last.length), run);
  }
  await page.goto(`${base}/#/logged/run?keys=differing`);
  await page.waitForSelector("text=Choose another run to see which keys differ.");
  await page.click("text=set here");
  await page.waitForSelector("text=never (4294967295)");
  assert.ok((await page.textContent("main")).includes("time between them59 s"));
  await page.close();
});

// Requesting evaluations of the run without any would be an error in the console, which `finish` reports.
await test("runs with and without evaluations are compared by training prompts", async () => {
  const page = await open("#/c/overview?vs=a");
  await page.waitForSelector(".then .pair");
  assert.match(await page.textContent(".then"), /The training prompts whose reward/);
  await page.close();
});
