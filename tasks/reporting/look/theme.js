// The colours: those of the reader's system, or what the button in the bar chose.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");

  // Theme: set before the first paint; a file opened from disk may have no storage, then the choice lasts until it closes.
  const remember = (value) => {
    try {
      if (value === undefined) return localStorage.getItem("longtake-theme");
      localStorage.setItem("longtake-theme", value);
    } catch (error) {
      if (!(error instanceof DOMException)) throw error;
    }
    return null;
  };
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);
  const remembered = remember();
  if (remembered === "dark" || remembered === "light") root.dataset.theme = remembered;

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const name = () => {
      button.textContent = isDark() ? "Light" : "Dark";
      button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
    };
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      remember(root.dataset.theme);
      name();
    });
    systemDark.addEventListener("change", name);
    name();
  });
})();
