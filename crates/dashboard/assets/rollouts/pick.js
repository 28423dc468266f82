// Keyboard access to the parts of a drawing or a text: one stop for the Tab key, the arrow keys move between parts,
// Enter opens a part.

const tip = document.getElementById("tip");

/**
 * `next` returns the part that a key leads to, or null; `says` describes a part, and `open` opens it. The description
 * is shown as the tooltip, which is read aloud. Returns the function that selects a part.
 */
export function pickable(box, { next, says, open }) {
  let now = null;
  // If the focus came from the mouse, the arrow keys scroll the page as usual.
  let isMouse = false;
  const pick = (part) => {
    now?.classList.remove("picked");
    now = part;
    now?.classList.add("picked");
    tip.textContent = now ? says(now) : "";
    tip.hidden = !now;
  };
  box.addEventListener("keydown", (event) => {
    if (isMouse || event.ctrlKey || event.metaKey || event.altKey || event.target !== box) return;
    const part = next(event.key, now);
    if (part) {
      pick(part);
      // SVG elements cannot be scrolled into view.
      if (part instanceof HTMLElement) part.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter" && now && open) open(now);
    else if (event.key === "Escape" && now) pick(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  box.addEventListener("mousedown", () => (isMouse = true));
  box.addEventListener("blur", () => {
    isMouse = false;
    if (now) pick(null);
  });
  return pick;
}
