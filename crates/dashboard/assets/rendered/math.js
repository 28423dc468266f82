// Renders LaTeX formulas with Temml, which is loaded with the first formula: most readers do not need it.
import { h } from "/lib/lib.js";

const TEMML = "/vendor/temml-0.13.5/";
// Longer formulas are not rendered.
const LONGEST = 5000;
// Limits for the number of macro expansions, and for the size of boxes in em.
const LIMITS = { maxExpand: 300, maxSize: [30, 60] };
// The time for which formulas are rendered before other work of the page runs, in milliseconds.
const TURN = 8;

let loaded = null;

function load() {
  loaded ??= new Promise((done, failed) => {
    const address = `${TEMML}temml.min.js`;
    // The page's security policy accepts a script URL only from a Trusted Types policy; this one allows a single URL.
    const vendor = globalThis.trustedTypes?.createPolicy("vendor", { createScriptURL: () => address });
    const script = h("script", {
      onload: () => done(globalThis.temml),
      onerror: () => failed(new Error(`no ${address}`)),
    });
    script.src = vendor ? vendor.createScriptURL(address) : address;
    document.head.append(h("link", { rel: "stylesheet", href: `${TEMML}Temml-Local.css` }), script);
  });
  return loaded;
}

const waiting = [];
let isDrawing = false;

async function drawAll() {
  if (isDrawing) return;
  isDrawing = true;
  try {
    const temml = await load();
    for (let since = performance.now(); waiting.length;) {
      const one = waiting.shift();
      if (one.box.isConnected) draw(temml, one);
      if (performance.now() - since < TURN) continue;
      await new Promise((done) => requestAnimationFrame(done));
      since = performance.now();
    }
  } catch (error) {
    // The formulas stay unrendered.
    waiting.splice(0).forEach(({ box }) => (box.title = error.message));
  } finally {
    isDrawing = false;
  }
}

function draw(temml, { box, text, isDisplay }) {
  const drawn = document.createElement("span");
  try {
    temml.render(text, drawn, { displayMode: isDisplay, throwOnError: true, trust: false, ...LIMITS });
  } catch (error) {
    box.classList.add("bad");
    box.title = `no formula: ${error.message.split("\n")[0].slice(0, 200)}`;
    return;
  }
  // Names in a formula must not be mistaken for elements of the page, nor become links.
  drawn
    .querySelectorAll("[id], [href]")
    .forEach((element) => ["id", "href"].forEach((name) => element.removeAttribute(name)));
  box.title = text;
  box.replaceChildren(...drawn.childNodes);
}

/** An element that shows the formula: first its source, then the rendered formula. */
export function formula(text, isDisplay) {
  const box = h(
    "span",
    { class: isDisplay ? "math display" : "math", tabindex: isDisplay ? 0 : null },
    h("code", {}, text),
  );
  if (text.length <= LONGEST) {
    waiting.push({ box, text, isDisplay });
    // Once the box is in the page.
    setTimeout(drawAll);
  }
  return box;
}
