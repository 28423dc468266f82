// A lane for each worker of a distributed run: the number of its groups in each batch.
import { fill, get, h, percent, seconds } from "/lib/lib.js";

const [WIDE, TALL] = [1000, 22];

export function lanes(run) {
  const element = h("section", { class: "lanes", "aria-label": "Workers" });
  element.update = async () => {
    const all = await get(`runs/${run}/workers`, { px: 200 });
    const what = JSON.stringify(all);
    if (element.shows === what) return;
    element.shows = what;
    if (!all) return fill(element);
    const { batches, width, workers } = all;
    const most = Math.max(...workers.flatMap(({ groups }) => groups));
    const each = WIDE / batches.length;
    const lane = ({ groups }) =>
      h(
        "svg",
        { viewBox: `0 0 ${WIDE} ${TALL}`, width: "100%", height: TALL, preserveAspectRatio: "none", "aria-hidden": "true" },
        groups.map((count, i) =>
          count
            ? h(
                "rect",
                { x: i * each, y: TALL - (TALL * count) / most, width: Math.max(0.8, each - 0.6), height: (TALL * count) / most },
                h("title", {}, `batch ${batches[i]}${width > 1 ? ` – ${batches[i] + width - 1}` : ""}: ${count} groups`),
              )
            : null,
        ),
      );
    const total = ({ groups }) => groups.reduce((sum, count) => sum + count, 0);
    const made = workers.reduce((sum, worker) => sum + total(worker), 0);
    const busy = ({ busy_s: busy, idle_s: idle }) =>
      busy === null || !(busy + idle > 0) ? "" : `, busy ${percent(busy / (busy + idle))} of ${seconds(busy + idle)}`;
    fill(
      element,
      h("h3", {}, "workers"),
      h(
        "dl",
        {},
        workers.map((worker) => [
          h("dt", {}, worker.name),
          h("dd", {}, lane(worker), h("small", {}, `${percent(total(worker) / made)} of the groups${busy(worker)}`)),
        ]),
      ),
      h(
        "p",
        { class: "legend ends" },
        h("span", {}, `batch ${batches[0]}`),
        h("span", {}, `batch ${batches.at(-1) + width - 1}`),
      ),
      h(
        "p",
        { class: "legend" },
        `Height: the worker's groups of ${width > 1 ? `each ${width} batches` : "a batch"}. The run does not record the time of generation.`,
      ),
    );
  };
  return element;
}
