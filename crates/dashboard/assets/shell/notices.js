// Browser notifications, on request: an alarm was raised, or a run has ended. They cover runs in progress while a page
// is open.
import { activeAlarms } from "/shell/live.js";
import { address, h, oneAtATime, titleOf } from "/lib/lib.js";

/**
 * The button that enables notifications; null if the browser has none, as on pages from other machines without TLS.
 * `known` returns the list of runs as last loaded. `look` is called with the list whenever the page has loaded it, and
 * `isOn` returns whether notifications are enabled.
 */
export function notices(known) {
  if (!("Notification" in window) || !window.isSecureContext) return null;
  // For each run that was in progress, the alarms already seen; null until the first check. `live` are those in progress.
  let [seen, live] = [null, []];
  const isOn = () => localStorage.getItem("notices") === "on" && Notification.permission === "granted";
  const button = h("button", { class: "plain", onclick: () => (isOn() ? turn("off") : ask()) });

  function label() {
    const refused = Notification.permission === "denied";
    button.textContent = refused ? "Notices refused" : isOn() ? "Notices on" : "Notices off";
    button.setAttribute("aria-pressed", isOn());
    button.title = refused
      ? "The browser's settings block notices from this page"
      : "The browser shows a notice when an alarm is raised or a run ends, while this page is open";
  }

  function turn(state) {
    localStorage.setItem("notices", state);
    [seen, live] = [null, []];
    label();
  }

  async function ask() {
    await Notification.requestPermission();
    turn("on");
    // From now on everything is new, also the alarms of a run that starts before the list is loaded again.
    await look(known());
  }

  function show(run, title, body, tag) {
    try {
      const notice = new Notification(title, { body, tag: `lockstep ${run.id} ${tag}` });
      notice.onclick = () => {
        window.focus();
        location.hash = address(run.id, "overview");
      };
    } catch {
      // Some mobile browsers have notifications only for installed pages.
      turn("off");
      button.textContent = "This browser shows no notices";
    }
  }

  // Overlapping checks would show the same alarms twice.
  const check = oneAtATime(notify);
  const look = async (runs) => isOn() && check(runs);

  async function notify(runs) {
    // A run that has ended keeps its alarms: it may be resumed.
    const now = new Map(seen);
    for (const run of runs.filter(({ state }) => state === "running")) {
      const alarms = run.alarms ? await activeAlarms(run.id) : [];
      const before = seen?.get(run.id);
      // One notification per alarm, even if it ends and is raised again.
      const names = alarms.map(({ id, subject }) => `${id} ${subject ?? ""}`);
      // A run that did not exist at the first check has raised all its alarms since.
      if (seen)
        alarms.forEach(({ id, since, evidence }, i) => {
          if (!before?.has(names[i])) show(run, `⚠ ${titleOf(run)}: ${id.replaceAll("_", " ")}`, `Since step ${since}: ${evidence}`, names[i]);
        });
      now.set(run.id, new Set([...(before ?? []), ...names]));
    }
    for (const id of live) {
      const run = runs.find((one) => one.id === id);
      if (run && run.state !== "running") show(run, `${titleOf(run)} has ${run.state} after step ${run.step}`, run.verdict.says, "end");
    }
    seen = now;
    live = runs.filter(({ state }) => state === "running").map(({ id }) => id);
  }

  label();
  return Object.assign(button, { isOn, look });
}
