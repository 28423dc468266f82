// Takes the README's pictures from committed runs, so that they show the current page.
import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { open, test } from "./page.mjs";
import { quantised } from "./png.mjs";

const [WIDTH, HEIGHT] = [1440, 900];
const MOST_BYTES = 150_000;
// Name, URL, and the element to wait for before the picture is taken.
const PICTURES = [
  ["overview", "#/grpo/overview", ".pair mark"],
  ["prompts", "#/grpo/rollouts?by=prompts", ".completion .t"],
  ["time", "#/slow/time", ".stack table"],
];

/** Writes each picture, light and dark, to the folder. */
export const pictures = (folder) =>
  test(`pictures in ${folder}`, async () => {
    mkdirSync(folder, { recursive: true });
    for (const [name, address, wanted] of PICTURES)
      for (const scheme of ["light", "dark"]) {
        const page = await open(address, { width: WIDTH, height: HEIGHT, scheme });
        await page.waitForSelector(wanted, { state: "attached" });
        await page.evaluate(() => document.fonts.ready);
        await page.waitForTimeout(500);
        const png = quantised(await page.screenshot());
        assert.ok(png.length < MOST_BYTES, `${name}-${scheme}.png has ${png.length} bytes`);
        writeFileSync(join(folder, `${name}-${scheme}.png`), png);
        await page.close();
      }
  });
