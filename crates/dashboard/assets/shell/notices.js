// Notices of the browser, on request: an alarm was raised, or a run has ended. Of runs in progress while a page is open.
import { activeAlarms } from "/shell/live.js";
import { address, h, titleOf } from "/lib/lib.js";

/**
 * The button that asks for them; null where the browser has none, as on pages of other machines without TLS. Its `look`
 * takes the list of runs whenever the page has read it, and `isOn` tells whether it waits for that.
 */
export function notices() {
  if (!("Notification" in window) || !window.isSecureContext) return null;
  // Of each run in progress the alarms that were seen; null until the first look.
  let seen = null;
  const isOn = () => localStorage.getItem("notices") === "on" && Notification.permission === "granted";
  const button = h("button", { class: "plain", onclick: () => (isOn() ? turn("off") : ask()) });

  function label() {
    const refused = Notification.permission === "denied";
    button.textContent = refused ? "Notices refused" : isOn() ? "Notices on" : "Notices off";
    button.setAttribute("aria-pressed", isOn());
    button.title = refused
      ? "The browser's settings for this page refuse notices"
      : "The browser shows a notice when an alarm is raised or a run ends, while this page is open";
  }

  function turn(state) {
    localStorage.setItem("notices", state);
    seen = null;
    label();
  }

  async function ask() {
    await Notification.requestPermission();
    turn("on");
  }

  function show(run, title, body, tag) {
    try {
      const notice = new Notification(title, { body, tag: `lockstep ${run.id} ${tag}` });
      notice.onclick = () => {
        window.focus();
        location.hash = address(run.id, "overview");
      };
    } catch {
      // Some browsers of phones have notices for installed pages alone.
      turn("off");
      button.textContent = "This browser shows no notices";
    }
  }

  async function look(runs) {
    if (!isOn()) return;
    const now = new Map();
    for (const run of runs.filter(({ state }) => state === "running")) {
      const alarms = run.alarms ? await activeAlarms(run.id) : [];
      const before = seen?.get(run.id);
      // Once for each alarm, however often it ends and is raised again.
      const names = alarms.map(({ id, subject }) => `${id} ${subject ?? ""}`);
      // A run that was not there at the first look has raised all of them since.
      if (seen)
        alarms.forEach(({ id, since, evidence }, i) => {
          if (!before?.has(names[i])) show(run, `⚠ ${titleOf(run)}: ${id.replaceAll("_", " ")}`, `Since step ${since}: ${evidence}`, names[i]);
        });
      now.set(run.id, new Set([...(before ?? []), ...names]));
    }
    for (const id of seen?.keys() ?? []) {
      const run = runs.find((one) => one.id === id);
      if (run && run.state !== "running") show(run, `${titleOf(run)} has ${run.state} after step ${run.step}`, run.verdict.says, "end");
    }
    seen = now;
  }

  label();
  return Object.assign(button, { isOn, look });
}
