// Whether everybody can read and use a page, with any eyesight, colour scheme and screen.

/** Accessibility violations that axe-core finds: rule and elements. */
export async function barriers(page) {
  const { violations } = await page.evaluate(() => axe.run(document, { preload: false, resultTypes: ["violations"] }));
  return violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 120)).join(" | ")}`);
}

/** How many pixels the page extends beyond the screen's edge, as a list with one number; empty if it does not. */
export async function beyond(page) {
  const pixels = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  return pixels > 0 ? [pixels] : [];
}

/** Texts whose contrast with the background is below 4.5. */
export function contrast(of = "main *, header *") {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", {
    willReadFrequently: true,
  });
  const over = (colors) => {
    colors.forEach((color) => {
      canvas.fillStyle = color;
      canvas.fillRect(0, 0, 1, 1);
    });
    return [...canvas.getImageData(0, 0, 1, 1).data]
      .slice(0, 3)
      .map((x) => x / 255)
      .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
  };
  const light = ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b;
  const low = new Set();
  for (const element of document.querySelectorAll(of)) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.getClientRects().length || element.closest("svg, option")) continue;
    const behind = [];
    for (let at = element; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
    const [a, b] = [light(over(behind)), light(over([...behind, getComputedStyle(element).color]))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5)
      low.add(`${element.tagName}.${element.className} ${ratio.toFixed(2)}: ${element.textContent.slice(0, 30)}`);
  }
  return [...low];
}
