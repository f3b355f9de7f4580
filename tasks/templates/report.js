// Behaviour of a report: theme, attention of a word, and the gallery's search, order and pages.
// The document is readable without it; clips beyond the first page wait in <template> elements.
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

  const resting = new WeakMap(); // clip -> what its bars and its line of text say while no word is pointed at

  // Attention: pointing at a word of a caption (mouse, touch or arrow keys) shows where it looks.
  const look = (word) => {
    const clip = word.closest(".clip");
    const weights = word.dataset.w ? word.dataset.w.split(" ").map(Number) : [];
    const tallest = Number(clip.dataset.tallest) || 1;
    const bars = clip.querySelectorAll(".bars i");
    if (!bars.length) return;
    const gaze = clip.querySelector(".gaze");
    if (!resting.has(clip)) {
      resting.set(clip, { text: gaze.textContent, heights: Array.from(bars, (bar) => bar.style.getPropertyValue("--h")) });
    }
    for (const other of clip.querySelectorAll(".word.on")) other.classList.remove("on");
    word.classList.add("on");
    clip.classList.add("looking");
    bars.forEach((bar, n) => bar.style.setProperty("--h", (weights[n] || 0) / tallest));
    const most = Math.max(...weights, 1);
    const frames = clip.querySelectorAll(".strip.aligned li");
    frames.forEach((frame, n) => { frame.firstElementChild.style.opacity = 0.3 + 0.7 * (weights[n] || 0) / most; });
    const top = weights.indexOf(Math.max(...weights));
    const time = frames[top]?.querySelector("span")?.textContent;
    const place = frames.length ? `frame ${top + 1}${time ? ` (${time})` : ""}` : `position ${top + 1} of ${weights.length}`;
    gaze.textContent = `“${word.textContent}” looks most at ${place}: ${Math.round(weights[top] / 10)} % of its attention.`;
  };
  const lookAway = (clip) => {
    if (!clip?.classList.contains("looking")) return;
    const { text, heights } = resting.get(clip);
    clip.classList.remove("looking");
    clip.querySelectorAll(".word.on").forEach((word) => word.classList.remove("on"));
    clip.querySelectorAll(".bars i").forEach((bar, n) => bar.style.setProperty("--h", heights[n]));
    clip.querySelectorAll(".strip img").forEach((image) => image.style.removeProperty("opacity"));
    clip.querySelector(".gaze").textContent = text;
  };
  const wordAt = (event) => event.target.closest?.(".word");
  document.addEventListener("pointerover", (event) => { if (wordAt(event)) look(wordAt(event)); });
  document.addEventListener("click", (event) => { if (wordAt(event)) look(wordAt(event)); });
  document.addEventListener("pointerout", (event) => {
    const walk = event.target.closest?.(".walk");
    if (walk && event.pointerType === "mouse" && !walk.contains(event.relatedTarget)) lookAway(walk.closest(".clip"));
  });
  document.addEventListener("focusout", (event) => {
    if (event.target.matches?.(".walk")) lookAway(event.target.closest(".clip"));
  });
  document.addEventListener("keydown", (event) => {
    if (!event.target.matches?.(".walk")) return;
    if (event.key === "Escape") return lookAway(event.target.closest(".clip"));
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -1e9, End: 1e9 }[event.key];
    if (!step) return;
    const words = [...event.target.querySelectorAll(".word")];
    const now = words.findIndex((word) => word.classList.contains("on"));
    look(words[Math.min(Math.max(now + step, 0), words.length - 1)]);
    event.preventDefault();
  });

  const startTheme = () => {
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
  };

  // Gallery: the clips in the order of the file are the most ordinary first; the other orders are made here.
  const startGallery = () => {
    const gallery = document.getElementById("gallery");
    if (!gallery) return;
    const [query, order, split] = ["query", "order", "split"].map((id) => document.getElementById(id));
    const pager = document.getElementById("pager");
    const cards = [...gallery.children];
    for (const template of document.querySelectorAll("#waiting > template")) cards.push(template.content.firstElementChild);
    const collator = new Intl.Collator(undefined, { numeric: true });
    const sign = "ascending" in gallery.dataset ? -1 : 1;
    const clips = cards.map((card, place) => {
      const { id, caption, split: part, rank } = card.dataset;
      const score = rank === undefined ? NaN : sign * Number(rank);
      return { card, place, id, part, score, text: `${id} ${caption}`.toLowerCase() };
    });
    const unscoredLast = (a, b) => Number.isNaN(a.score) - Number.isNaN(b.score);
    const orders = {
      ordinary: (a, b) => a.place - b.place,
      best: (a, b) => unscoredLast(a, b) || b.score - a.score || a.place - b.place,
      worst: (a, b) => unscoredLast(a, b) || a.score - b.score || a.place - b.place,
      id: (a, b) => collator.compare(a.id, b.id) || a.place - b.place,
    };
    const size = Number(gallery.dataset.pageSize);
    let found = clips;
    let page = 0;
    const show = () => {
      const pages = Math.max(1, Math.ceil(found.length / size));
      page = Math.min(Math.max(page, 0), pages - 1);
      const visible = found.slice(page * size, (page + 1) * size);
      gallery.replaceChildren(...visible.map((clip) => clip.card));
      const some = found.length ? `${(page * size + 1).toLocaleString("en")} to ${(page * size + visible.length).toLocaleString("en")} of ` : "";
      const kept = found.length === clips.length ? "" : ` found among ${clips.length.toLocaleString("en")}`;
      document.getElementById("shown").textContent = found.length
        ? `${some}${found.length.toLocaleString("en")} clip${found.length === 1 ? "" : "s"}${kept}.`
        : `No clip among ${clips.length.toLocaleString("en")} matches.`;
      document.getElementById("where").textContent = `Page ${page + 1} of ${pages}`;
      pager.hidden = pages === 1;
      for (const button of pager.querySelectorAll("button")) {
        const back = button.dataset.go === "first" || button.dataset.go === "previous";
        button.disabled = back ? page === 0 : page === pages - 1;
      }
    };
    const choose = () => {
      const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
      found = clips.filter((clip) => (!split?.value || clip.part === split.value) && words.every((word) => clip.text.includes(word)));
      found.sort(orders[order.value]);
      page = 0;
      show();
    };
    let waiting;
    query.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(choose, 120); });
    order.addEventListener("change", choose);
    split?.addEventListener("change", choose);
    query.form.addEventListener("submit", (event) => event.preventDefault());
    pager.addEventListener("click", (event) => {
      const go = event.target.closest("button")?.dataset.go;
      if (!go) return;
      page = { first: 0, previous: page - 1, next: page + 1, last: Infinity }[go];
      show();
      document.getElementById("clips").scrollIntoView();
    });
    choose(); // a browser may have kept what was typed before a reload
  };

  document.addEventListener("DOMContentLoaded", () => {
    startTheme();
    startGallery();
    addEventListener("beforeprint", () => document.querySelectorAll("#recipe details").forEach((part) => { part.open = true; }));
  });
})();
