// Marks on charts: alarms, checkpoints and resumes of a run.
import { css, h, isOpen } from "/lib/lib.js";
import { placeOf } from "/charts/curve.js";

const KINDS = { alarm: "alarm", over: "alarm that ended", checkpoint: "checkpoint", resume: "resume" };
// A mark shows its name while the cursor is within this many pixels.
const NEAR = 7;

/** The marks of a run: [{step, kind, name}], without notes, since those are explained by configuration or success. */
export function marksOf(facts) {
  const alarms = facts.alarms
    .filter(({ weight }) => weight !== "note")
    .map((line) => {
      const { id, subject, since, until } = line.alarm;
      const steps = isOpen(line) ? `since step ${since}` : `step ${since} – ${until}`;
      const name = `⚠ ${id.replaceAll("_", " ")}${subject ? ` (${subject})` : ""}, ${steps}`;
      return { step: since, kind: isOpen(line) ? "alarm" : "over", name };
    });
  const checkpoints = facts.checkpoints
    .map((name) => Number(name.replace("step-", "")))
    .filter(Number.isFinite)
    .map((step) => ({ step, kind: "checkpoint", name: `checkpoint of step ${step}` }));
  const resumes = (facts.record?.starts ?? [])
    .map(({ step }) => step)
    .filter((step) => step > 0)
    .map((step) => ({ step, kind: "resume", name: `resumed after step ${step}` }));
  return [...alarms, ...checkpoints, ...resumes];
}

/** Draws the marks on a uPlot chart; `run` is the run to which they belong. */
export function drawMarks(u, marks, run) {
  const { ctx, bbox } = u;
  const [bottom, unit] = [bbox.top + bbox.height, devicePixelRatio];
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.lineWidth = unit;
  for (const { step, kind } of marks) {
    const place = placeOf(step, run);
    if (place === undefined) continue;
    const x = Math.round(u.valToPos(place, "x", true));
    ctx.strokeStyle = ctx.fillStyle = css(kind === "alarm" || kind === "over" ? "--warn" : "--ink3");
    ctx.setLineDash(kind === "resume" ? [2 * unit, 4 * unit] : []);
    ctx.beginPath();
    if (kind === "resume") {
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bottom);
    } else if (kind === "checkpoint") {
      ctx.arc(x, bottom - 3 * unit, 2 * unit, 0, 2 * Math.PI);
      ctx.fill();
    } else {
      ctx.moveTo(x - 4 * unit, bbox.top + unit);
      ctx.lineTo(x + 4 * unit, bbox.top + unit);
      ctx.lineTo(x, bbox.top + 7 * unit);
      ctx.closePath();
      if (kind === "alarm") ctx.fill();
    }
    ctx.stroke();
  }
  ctx.restore();
}

/** The names of the marks under the cursor. */
export function namedAt(u, marks, run) {
  const at = u.cursor.left;
  if (!(at >= 0)) return "";
  const near = ({ step }) => {
    const place = placeOf(step, run);
    return place !== undefined && Math.abs(u.valToPos(place, "x") - at) <= NEAR;
  };
  const names = marks.filter(near).map(({ name }) => name);
  return names.length > 3 ? `${names.slice(0, 2).join("; ")}; ${names.length - 2} more` : names.join("; ");
}

/** A legend with the kinds of these marks. */
export const legend = (marks) =>
  Object.keys(KINDS)
    .filter((kind) => marks.some((mark) => mark.kind === kind))
    .map((kind) => h("span", { class: "key" }, h("i", { class: `sign ${kind}` }), KINDS[kind]));
