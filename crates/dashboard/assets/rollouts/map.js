// A map of all groups, which grows with the run: a column covers several steps, a cell is a group, the best is at the
// top.
import { around, fill, get, h, hasSpread, number } from "/lib/lib.js";
import { pickable } from "/rollouts/pick.js";

// Maximum number of columns and rows, and maximum width of a column on the screen.
const [COLUMNS, ROWS, WIDEST] = [240, 32, 18];
const WIDE = 8;

/** `compares`: whether a group needs a spread of rewards to learn from; `open` is called with a step and a place. */
export function groupMap({ run, of, compares, open }) {
  const title = h("title");
  const drawing = h("svg", { preserveAspectRatio: "none", tabindex: 0, role: "application" });
  const legend = h("p", { class: "legend" });
  const element = h(
    "section",
    { class: "map", "aria-label": "All groups: steps from left to right, each step's groups by reward" },
    drawing,
    legend,
  );
  let cells = { steps: [], width: 1, cells: [] };
  let columns = [];
  let scale = [0, 1];
  let high = 4;
  // The cell with the keyboard focus: column and row.
  let at = null;
  let last = null;

  const find = () => {
    const rewards = cells.cells
      .flat()
      .map(([reward]) => reward)
      .filter((x) => x !== null);
    return rewards.length ? [Math.min(...rewards), Math.max(...rewards)] : [0, 1];
  };
  const share = (reward) => Math.max(0, Math.min(1, (reward - scale[0]) / (scale[1] - scale[0] || 1)));

  /** The steps of a column, in words: several steps if the run has more steps than the map has columns. */
  const covers = (x) => {
    const end = Math.min(cells.steps[x] + cells.width - 1, last);
    return end > cells.steps[x] ? `steps ${cells.steps[x]} – ${end}` : `step ${cells.steps[x]}`;
  };
  const says = (x, y) => `${covers(x)}: reward ${around(...cells.cells[x][y].slice(0, 2))}`;

  function column(x) {
    const rects = cells.cells[x].map(([reward, deviation, place], y) => {
      const isFlat = compares && !hasSpread(deviation);
      return h("rect", {
        x: x * WIDE,
        // A group without spread is a thin cell.
        y: y * high + (isFlat ? 0.3 * high : 0),
        width: WIDE - 0.5,
        height: isFlat ? 0.4 * high : high - 0.5,
        class: isFlat ? "flat" : null,
        "fill-opacity": reward === null ? 0 : 0.08 + 0.92 * share(reward),
        "data-step": cells.steps[x],
        "data-place": place,
      });
    });
    return h("g", {}, rects);
  }

  /** Draws the columns from one on; all of them if the scale of rewards or the height of a cell has changed. */
  function draw(from) {
    const rows = Math.max(1, ...cells.cells.map((column) => column.length));
    const [now, height] = [find(), Math.max(4, Math.min(12, 96 / rows))];
    if (String(now) !== String(scale) || height !== high) from = 0;
    [scale, high] = [now, height];
    columns.splice(from).forEach((one) => one.remove());
    columns.push(...cells.cells.slice(from).map((_, i) => column(from + i)));
    fill(drawing, title, columns);
    const steps = cells.steps.length;
    drawing.setAttribute("viewBox", `0 0 ${Math.max(1, steps) * WIDE} ${rows * high}`);
    drawing.setAttribute("height", rows * high);
    drawing.style.setProperty("width", `min(100%, ${steps * WIDEST}px)`);
    const range = `${number(scale[0])} – ${number(scale[1])}`;
    const groups = cells.cells.flat().length;
    drawing.setAttribute(
      "aria-label",
      `Map of ${groups} groups, rewards ${range}. The arrow keys move from group to group, Enter opens one.`,
    );
    legend.textContent = `Steps ${cells.steps[0]} – ${last}, ${cells.width > 1 ? `${cells.width} in a column` : "one in a column"}; its groups from the best to the worst. Full colour is a high reward (${range})${compares ? "; a thin cell has no spread" : ""}.`;
  }

  /** Loads new data: the last column and later ones, or all columns if they now cover more steps. */
  async function update(newest) {
    const since = cells.steps.at(-1);
    const next = await get(`runs/${run}/map`, { px: COLUMNS, rows: ROWS, of, from: since });
    if (!next) return;
    last = newest;
    const isSame = since !== undefined && next.width === cells.width && next.steps[0] === since;
    if (isSame) {
      const kept = cells.steps.length - 1;
      cells.steps.splice(kept, 1, ...next.steps);
      cells.cells.splice(kept, 1, ...next.cells);
      draw(kept);
    } else {
      cells = since === undefined ? next : await get(`runs/${run}/map`, { px: COLUMNS, rows: ROWS, of });
      draw(0);
    }
  }

  /** Marks the column of a step, or the groups of one prompt, which `traced` contains. */
  function mark(step, traced) {
    drawing.querySelectorAll(".now").forEach((rect) => rect.classList.remove("now"));
    const places = new Set((traced?.points ?? []).map(([, , place]) => String(place)));
    const column = cells.steps.filter((one) => one <= step).at(-1);
    const isHere = (rect) => (traced ? places.has(rect.dataset.place) : rect.dataset.step === String(column));
    drawing.querySelectorAll("rect").forEach((rect) => isHere(rect) && rect.classList.add("now"));
  }

  const openAt = async (x, y) => {
    const place = cells.cells[x][y][2];
    open(cells.width > 1 ? (await get(`runs/${run}/groups/${place}`, { of })).step : cells.steps[x], place);
  };
  /** Column and row under the pointer; null if there is no group. */
  const below = (event) => {
    const box = drawing.getBoundingClientRect();
    const rows = drawing.viewBox.baseVal.height / high;
    const x = Math.floor(((event.clientX - box.left) / box.width) * cells.steps.length);
    const y = Math.floor(((event.clientY - box.top) / box.height) * rows);
    return cells.cells[x]?.[y] ? [x, y] : null;
  };
  drawing.addEventListener("pointermove", (event) => {
    const cell = below(event);
    title.textContent = cell ? says(...cell) : "";
  });
  drawing.addEventListener("click", (event) => {
    const cell = below(event);
    if (cell) openAt(...cell);
  });
  const MOVES = {
    ArrowRight: [1, 0],
    ArrowLeft: [-1, 0],
    ArrowDown: [0, 1],
    ArrowUp: [0, -1],
    Home: [-Infinity, 0],
    End: [Infinity, 0],
  };
  pickable(drawing, {
    next: (key) => {
      if (!MOVES[key] || !columns.length) return null;
      const now = at ?? [
        Math.max(
          0,
          columns.findIndex((one) => one.querySelector(".now")),
        ),
        0,
      ];
      const by = at ? MOVES[key] : [0, 0];
      const x = Math.max(0, Math.min(columns.length - 1, now[0] + by[0]));
      at = [x, Math.max(0, Math.min(cells.cells[x].length - 1, now[1] + by[1]))];
      return columns[x].children[at[1]];
    },
    says: () => says(...at),
    open: () => openAt(...at),
  });
  return { element, update, mark, share };
}
