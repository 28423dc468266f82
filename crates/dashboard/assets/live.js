// What happens to the run that is looked at, for those who hear the page: its state, and alarms.
import { counted, get, isActive, titleOf } from "/lib.js";

let known = { id: null };

/** Tells what has changed of a run in the list of runs since the last call. */
export async function announce(one) {
  const before = known;
  known = { id: one.id, state: one.state, alarms: one.alarms };
  if (before.id !== one.id) return;
  const says = [];
  if (before.state !== one.state) says.push(`${titleOf(one)} is ${one.state}, at step ${one.step}.`);
  if (before.alarms < one.alarms) {
    const facts = await get(`runs/${one.id}`);
    const newest = (facts?.alarms.filter(isActive) ?? []).sort((a, b) => b.alarm.since - a.alarm.since)[0]?.alarm;
    if (newest) says.push(`New alarm: ${newest.id.replaceAll("_", " ")}, since step ${newest.since}.`);
  } else if (before.alarms > one.alarms) says.push(`${counted(one.alarms, "alarm")} left.`);
  if (says.length) document.getElementById("live").textContent = says.join(" ");
}
