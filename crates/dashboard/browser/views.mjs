// Every view in light and dark, wide and narrow, and by touch.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { base, open, settled, test } from "./page.mjs";
import { barriers, beyond, contrast } from "./readable.mjs";

const VIEWS = [
  "overview",
  "overview?metrics=all&vs=b",
  "overview?chart=reward&smooth=0.6",
  "rollouts?step=3&all=1&q=script",
  "rollouts?by=prompts&color=ratio",
  "time",
  "levels",
  "run",
];

await test("every view is safe, fits the screen and is accessible, in light and dark, wide and narrow", async () => {
  const shots = process.env.SHOTS;
  if (shots) mkdirSync(shots, { recursive: true });
  // The other views are opened by runs.mjs, with other runs and at three widths.
  const views = shots ? VIEWS : VIEWS.filter((view) => !["overview", "time", "run"].includes(view));
  for (const [width, height] of [
    [1280, 900],
    [390, 800],
  ]) {
    for (const scheme of ["light", "dark"]) {
      const script = "node_modules/axe-core/axe.min.js";
      const page = await open("#/a/overview", { width, height, scheme, script });
      for (const view of views) {
        await page.goto(`${base}/#/a/${view}`);
        await settled(page);
        assert.deepEqual(await beyond(page), [], `${view} at ${width}`);
        const low = await page.evaluate(contrast);
        assert.deepEqual(low, [], `${view} ${scheme}`);
        assert.deepEqual(await barriers(page), [], `${view} ${scheme} at ${width}`);
        if (shots) await page.screenshot({ path: `${shots}/${view.replace(/[?=&]/g, "-")}-${width}-${scheme}.png` });
      }
      await page.keyboard.press("?");
      await page.waitForSelector("dialog[open]");
      assert.deepEqual(await barriers(page), [], `keys ${scheme} at ${width}`);
      await page.close();
    }
  }
});

await test("touching an element shows its tooltip", async () => {
  const page = await open("#/a/overview", { width: 390, height: 800, hasTouch: true });
  const of = page.locator(".numbers .name[title]").first();
  await of.tap();
  await page.waitForSelector("#tip:not([hidden])");
  assert.equal(await page.textContent("#tip"), await of.getAttribute("title"));
  assert.deepEqual(await page.evaluate(contrast, "#tip"), []);
  await page.locator("h1, .verdict").first().tap();
  await page.waitForSelector("#tip", { state: "hidden" });
  await page.close();
});

await test("the page follows the system's colour scheme until the reader chooses one", async () => {
  const page = await open("#/a/overview", { scheme: "dark" });
  const themes = { light: "rgb(253, 253, 251)", dark: "rgb(17, 19, 21)" };
  const shows = async (theme) => {
    await page.waitForFunction((theme) => document.documentElement.dataset.theme === theme, theme);
    await page.waitForSelector(".charts .u-over");
    assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), themes[theme]);
  };
  await shows("dark");
  await page.emulateMedia({ colorScheme: "light" });
  await shows("light");
  await page.keyboard.press("d");
  await shows("dark");
  await page.reload();
  await shows("dark");
  await page.close();
});
