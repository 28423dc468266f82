// Loads the values of metrics by step. Requests of the same moment are combined into one, and while a run grows, only
// the values that may have changed are requested again.
import { get } from "/lib/lib.js";

// Requests that are about to be sent, and the newest responses, both by run and query.
const waiting = new Map();
const received = new Map();
// Maximum number of kept responses.
const MOST_KEPT = 16;

/** The values of these metrics of a run; null if the run does not exist. `query` has the other parameters. */
export async function loadSeries(id, keys, query = {}) {
  const name = JSON.stringify([id, query]);
  if (!waiting.has(name)) {
    const asked = new Set();
    // Sent after the running code, in which other parts of the view may ask for further metrics.
    const answer = Promise.resolve().then(() => {
      waiting.delete(name);
      return load(name, id, [...asked], query);
    });
    waiting.set(name, { asked, answer });
  }
  const { asked, answer } = waiting.get(name);
  keys.forEach((key) => asked.add(key));
  return only(await answer, keys);
}

async function load(name, id, keys, query) {
  const before = received.get(name);
  const { edition, width, steps } = before && keys.every((key) => before.keys[key]) ? before : {};
  const known = { edition, width, since: steps?.at(-1) };
  const after = await get(`runs/${id}/series`, { ...query, ...known, keys: keys.join(",") });
  const series = after?.since === undefined ? after : joined(before, after);
  received.delete(name);
  if (series) received.set(name, series);
  if (received.size > MOST_KEPT) received.delete(received.keys().next().value);
  return series;
}

// The columns of a metric with one value per row; all but the first are missing if a row is one step.
const COLUMNS = ["mean", "min", "max", "count"];

/** The rows that were received before, followed by the new rows, which replace the last of them. */
function joined(before, after) {
  const kept = before.steps.findLastIndex((step) => step < after.since) + 1;
  const of = ([key, now]) => {
    const old = before.keys[key];
    const all = (name) => [...old[name].slice(0, kept), ...now[name]];
    const columns = COLUMNS.filter((name) => now[name]).map((name) => [name, all(name)]);
    const gaps = [...(old.gaps ?? []).filter((at) => at < kept), ...(now.gaps ?? []).map((at) => at + kept)];
    return [key, { ...Object.fromEntries(columns), gaps }];
  };
  const steps = [...before.steps.slice(0, kept), ...after.steps];
  return { ...after, steps, keys: Object.fromEntries(Object.entries(after.keys).map(of)) };
}

/** Leaves out the rows in which only other metrics of a combined request have a value. */
function only(series, keys) {
  if (!series) return null;
  const all = keys.map((key) => series.keys[key]).filter(Boolean);
  const hasValue = (i) => all.some(({ mean, gaps }) => mean[i] !== null || gaps?.includes(i));
  const rows = series.steps.map((_, i) => i).filter(hasValue);
  if (rows.length === series.steps.length) return series;
  const of = (values) => rows.map((i) => values[i]);
  const part = (one) => ({
    ...Object.fromEntries(COLUMNS.filter((name) => one[name]).map((name) => [name, of(one[name])])),
    gaps: (one.gaps ?? []).map((i) => rows.indexOf(i)).filter((i) => i >= 0),
  });
  const parts = Object.entries(series.keys).map(([key, one]) => [key, part(one)]);
  return { ...series, steps: of(series.steps), x: series.x && of(series.x), keys: Object.fromEntries(parts) };
}
