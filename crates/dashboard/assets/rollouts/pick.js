// A drawing or a text whose parts the keyboard can reach: one stop for Tab, the arrow keys from part to part, Enter to
// open one.

const tip = document.getElementById("tip");

/**
 * `next` gives the part that a key leads to, or null; `says` describes a part, and `open` opens it. What is said of the
 * part stands where a finger's tip stands, which is read aloud. Returns the function that picks a part.
 */
export function pickable(box, { next, says, open }) {
  let now = null;
  // Who came with the mouse has the arrow keys for the page, as elsewhere.
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
      // SVG has no scroll of its own.
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
