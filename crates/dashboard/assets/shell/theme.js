// Light or dark: the reader's choice, or the system's setting. The page loads this script before anything is drawn, so
// that the wrong colours never appear.
{
  const system = matchMedia("(prefers-color-scheme: dark)");
  const choose = () => {
    document.documentElement.dataset.theme = localStorage.getItem("theme") ?? (system.matches ? "dark" : "light");
  };
  choose();
  system.addEventListener("change", () => {
    choose();
    // Canvases still have the previous colours.
    window.dispatchEvent(new Event("theme"));
  });
}
