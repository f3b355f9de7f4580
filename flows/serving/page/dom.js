// Small things that the other scripts share.
export const $ = (selector, within = document) => within.querySelector(selector);

// An element; text becomes a text node, never markup.
export const make = (name, kind = "", text = "") => {
  const element = document.createElement(name);
  if (kind) element.className = kind;
  if (text) element.textContent = text;
  if (name === "button") element.type = "button";
  return element;
};

export const clock = (seconds) => `${Math.floor(seconds / 60)}:${(seconds % 60).toFixed(1).padStart(4, "0")}`;
