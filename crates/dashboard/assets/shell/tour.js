// A tour of a run in five steps: a dialog beside the element that each step explains. Its numbers come from the run.
import { address, counted, get, h, number, percent } from "/lib/lib.js";
import { STAGES } from "/time/stages.js";

// How long a step waits for its element, in milliseconds; if it does not appear, the step is skipped.
const WAIT = 4000;

/** A value as the text of a code element, with visible blanks. */
const quoted = (text) => h("code", {}, JSON.stringify(text));

/** Does it learn? */
function verdict(run, facts) {
  const tenth = Math.max(2, Math.ceil(facts.step / 10));
  const alarms = facts.alarms.filter((line) => line.alarm.until === undefined && line.weight !== "note").length;
  return {
    hash: address(run, "overview"),
    find: () => document.querySelector(".verdict h1"),
    title: "Does it learn?",
    says: [
      `This sentence answers it, from the ${counted(facts.step, "step")} so far. It compares the beginning with the ` +
        `last ${tenth}, and a difference counts only where it is larger than the noise.`,
      `Below it: the numbers, and ${alarms ? counted(alarms, "active alarm") : "alarms, of which none is active"}. ` +
        "Open an alarm to see its measurements and the usual remedy.",
    ],
  };
}

/** A group whose rewards are equal. */
async function flat(run, facts) {
  const list = facts.groups ? await get(`runs/${run}/groups`, { only: "no-spread", limit: 20 }) : null;
  for (const { place, step } of list?.groups ?? []) {
    const { completions, reward } = await get(`runs/${run}/groups/${place}`);
    const all = completions.flatMap((one) => one.advantages ?? one.advantage ?? []);
    if (completions.length < 2 || !all.length || all.some((x) => Math.abs(x) > 1e-8)) continue;
    const penalty = facts.config.beta > 0 ? " Only the divergence from the reference model still has a gradient." : "";
    return {
      hash: address(run, "rollouts", { step, g: place }),
      find: () => document.querySelector(`.read[data-place="${place}"] header`),
      title: "Why is nothing learned from this group?",
      says: [
        "A completion is pushed up if it earned more than the others of its group, and down if it earned less. " +
          `All ${completions.length} of this group earned ${number(reward)}: none is better, each advantage is 0, ` +
          `and so is its part of the gradient.${penalty}`,
        `${list.total.toLocaleString("en")} of this run's ${counted(facts.groups, "group")} are like that (${percent(list.total / facts.groups)}).`,
      ],
    };
  }
  return null;
}

/** The least likely token of the most informative group in the last step. */
async function token(run, facts) {
  if (!facts.groups) return null;
  const list = await get(`runs/${run}/groups`, { step: facts.group_steps[1], sort: "-spread", limit: 1 });
  if (!list?.groups.length) return null;
  const { place, step } = list.groups[0];
  const { completions } = await get(`runs/${run}/groups/${place}`);
  const advantage = (one, t = 0) => one.advantages?.[t] ?? one.advantage ?? 0;
  const at = completions.reduce((best, one, i) => (Math.abs(advantage(one)) > Math.abs(advantage(completions[best])) ? i : best), 0);
  const one = completions[at];
  if (!one.logprobs?.length || !one.pieces) return null;
  const t = one.logprobs.indexOf(Math.min(...one.logprobs));
  const [own, after] = [advantage(one, t), one.new_logprobs?.[t]];
  const entropy = one.entropies
    ? ` The distribution it was drawn from had an entropy of ${number(one.entropies[t])} nats.`
    : "";
  const since = (after ?? null) === null ? "" : ` After the step its probability was × ${number(Math.exp(after - one.logprobs[t]))}.`;
  const way = own > 0 ? "likelier" : own < 0 ? "less likely" : "neither likelier nor less likely";
  return {
    hash: address(run, "rollouts", { step, g: place, color: "surprise" }),
    find: () => document.querySelectorAll(`.read[data-place="${place}"] .completion`)[at]?.querySelectorAll(".t")[t],
    title: "What does a token know?",
    says: [
      [
        "The model drew ",
        quoted(one.pieces[t]),
        ` with probability ${percent(Math.exp(one.logprobs[t]))}: a surprise of ${number(-one.logprobs[t])} nats, ` +
          `which its colour shows.${entropy}`,
      ],
      `Its advantage is ${number(own)}, so the step makes it ${way}.${since} ` +
        "Point at any token to read its numbers; c changes the colour.",
    ],
  };
}

/** The bar of a whole step. */
function whole(run, facts) {
  if (!facts.profile?.measured?.steps && !STAGES.some(([key]) => facts.keys.includes(key))) return null;
  const findings = facts.findings?.length ?? 0;
  const helps = findings
    ? `Remedies are beside the table: ${counted(findings, "finding")}, the most expensive first.`
    : facts.profile
      ? "No rule about wasted time holds for this run; such findings would be beside the table."
      : "Remedies appear beside the table for runs of at least 10 seconds.";
  return {
    hash: address(run, "time"),
    find: () => document.querySelector(".whole"),
    title: "Where does the time go?",
    says: [
      "The bar is a whole step: its parts sum to 100 %, and are the rows of the table below it.",
      `${helps} Click a step in the chart to see its spans.`,
    ],
  };
}

/** The first and the latest completion of a prompt. */
function thenAndNow(run, facts) {
  if (!facts.evaluated && !facts.groups) return null;
  return {
    hash: address(run, "overview"),
    find: () => document.querySelector(".then .pair"),
    title: "What does it write now?",
    says: [
      `${facts.evaluated ? "A held-out prompt" : "A prompt"} with its first and its latest completion side by side. ` +
        "Text that only one of them has is marked, and the reward is beside the step.",
      "That was the tour. The button ? lists the keys.",
    ],
  };
}

/** Waits for an element of a view that is being drawn; null if it does not appear. */
async function wait(find) {
  for (const end = Date.now() + WAIT; Date.now() < end; ) {
    const element = find();
    if (element?.getClientRects().length) return element;
    await new Promise((done) => setTimeout(done, 60));
  }
  return null;
}

/** Places the dialog so that it does not cover the element: below it, above it, or at the lower edge. */
function put(dialog, element) {
  const [of, own, edge] = [element.getBoundingClientRect(), dialog.getBoundingClientRect(), 14];
  const below = of.bottom + edge + own.height < innerHeight;
  const above = of.top - edge - own.height > 0;
  const top = below ? of.bottom + edge : above ? of.top - edge - own.height : innerHeight - own.height - edge;
  dialog.style.setProperty("top", `${top}px`);
  dialog.style.setProperty("left", `${Math.max(edge, Math.min(of.left, innerWidth - own.width - edge))}px`);
}

let isOpen = false;

/** Runs the tour. The only stored state is that the tour was seen. */
export async function tour(run) {
  if (isOpen) return;
  isOpen = true;
  const parts = [verdict, flat, token, whole, thenAndNow];
  const load = async (facts) => (facts ? Promise.all(parts.map((make) => make(run, facts))) : []);
  const all = await get(`runs/${run}`).then(load).catch(() => []);
  const steps = all.filter(Boolean);
  const dialog = h("dialog", { class: "tour", "aria-labelledby": "toured" });
  let [at, marked] = [-1, null];

  async function go(to, by = 1) {
    if (to < 0 || to >= steps.length) return;
    const step = steps[to];
    location.hash = step.hash;
    // The previous view may also have such an element.
    await new Promise((done) => setTimeout(done, 60));
    const element = await wait(step.find);
    if (!isOpen) return;
    if (!element) {
      steps.splice(to, 1);
      return steps.length ? go(by > 0 ? Math.min(to, steps.length - 1) : to - 1, by) : dialog.close();
    }
    marked?.classList.remove("toured");
    marked = element;
    at = to;
    element.classList.add("toured");
    element.scrollIntoView({ block: "center", behavior: "instant" });
    const isLast = to === steps.length - 1;
    dialog.replaceChildren(
      h("h2", { id: "toured" }, step.title),
      ...step.says.map((text) => h("p", {}, text)),
      h(
        "p",
        { class: "tools" },
        h("button", { onclick: () => go(at - 1, -1), disabled: to === 0 }, "Back"),
        h("button", { onclick: () => (isLast ? dialog.close() : go(at + 1)), autofocus: true }, isLast ? "End" : "Next"),
        h("span", {}, `${to + 1} of ${steps.length}`),
        isLast ? "" : h("button", { class: "plain", onclick: () => dialog.close() }, "End the tour"),
      ),
    );
    if (!dialog.open) dialog.showModal();
    put(dialog, element);
    dialog.querySelector("[autofocus]").focus();
  }

  // A view replaces its elements when it is redrawn, for example when a step arrives.
  const renewed = setInterval(() => {
    const element = at >= 0 && marked && !marked.isConnected ? steps[at]?.find() : null;
    if (!element) return;
    marked = element;
    element.classList.add("toured");
    put(dialog, element);
  }, 150);
  dialog.addEventListener("close", () => {
    isOpen = false;
    clearInterval(renewed);
    marked?.classList.remove("toured");
    dialog.remove();
    localStorage.setItem("tour", "seen");
  });
  dialog.addEventListener("keydown", (event) => {
    // Keyboard shortcuts of the views are disabled during the tour.
    event.stopPropagation();
    if (event.key === "ArrowRight") go(at + 1);
    if (event.key === "ArrowLeft") go(at - 1, -1);
  });
  document.body.append(dialog);
  if (steps.length) await go(0);
  else dialog.dispatchEvent(new Event("close"));
}

export const wasSeen = () => localStorage.getItem("tour") === "seen";
