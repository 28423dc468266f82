// Announces changes of the displayed run to screen readers: its state, and alarms.
import { counted, get, isActive, titleOf } from "/lib/lib.js";

let known = { id: null };

/** The alarms of a run that need attention now; none if the run does not exist. */
export async function activeAlarms(id) {
  const facts = await get(`runs/${id}`).catch(() => null);
  return (facts?.alarms ?? []).filter(isActive).map(({ alarm }) => alarm);
}

/** Announces what has changed in a row of the list of runs since the last call. */
export async function announce(one) {
  const before = known;
  known = { id: one.id, state: one.state, alarms: one.alarms };
  if (before.id !== one.id) return;
  const says = [];
  if (before.state !== one.state) says.push(`${titleOf(one)} is ${one.state}, at step ${one.step}.`);
  if (before.alarms < one.alarms) {
    const [newest] = (await activeAlarms(one.id)).sort((a, b) => b.since - a.since);
    if (newest) says.push(`New alarm: ${newest.id.replaceAll("_", " ")}, since step ${newest.since}.`);
  } else if (before.alarms > one.alarms) says.push(`${counted(one.alarms, "alarm")} left.`);
  if (says.length) document.getElementById("live").textContent = says.join(" ");
}
