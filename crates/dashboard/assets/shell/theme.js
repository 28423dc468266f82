// Light or dark: what the reader has chosen, or else what the system has. The page loads this script before anything is
// drawn, so that it never shows the other one.
{
  const system = matchMedia("(prefers-color-scheme: dark)");
  const choose = () => {
    document.documentElement.dataset.theme = localStorage.getItem("theme") ?? (system.matches ? "dark" : "light");
  };
  choose();
  system.addEventListener("change", () => {
    choose();
    // Canvases are drawn with the colours of before.
    window.dispatchEvent(new Event("theme"));
  });
}
