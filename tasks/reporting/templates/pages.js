// Behaviour of the pages: theme, attention of a word, and the gallery's search, order and pages.
// The document is readable without it; clips beyond the first page wait as text in data blocks.
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

  // Regions: "frame left top width height share,..." in percent; boxes are drawn over the frames.
  const drawBoxes = (clip, told) => {
    clip.querySelectorAll(".box").forEach((box) => box.remove());
    const shots = clip.querySelectorAll(".strip .shot");
    for (const [frame, ...place] of (told ? told.split(",") : []).map((one) => one.split(" ").map(Number))) {
      const box = document.createElement("i");
      box.className = "box";
      ["--l", "--t", "--w", "--h", "--p"].forEach((name, n) => box.style.setProperty(name, place[n]));
      shots[frame]?.append(box);
    }
  };

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
    drawBoxes(clip, word.dataset.r);
    // positions are spread over the frames: each frame is as bright as the attention that falls on it
    const frames = "timeline" in clip.dataset ? [...clip.querySelectorAll(".strip li")] : [];
    const shares = frames.map(() => 0);
    if (frames.length) weights.forEach((weight, n) => { shares[Math.floor((n * frames.length) / weights.length)] += weight; });
    const most = Math.max(...shares, 1);
    frames.forEach((frame, n) => { frame.querySelector("img").style.opacity = 0.35 + (0.65 * shares[n]) / most; });
    const seen = frames.length ? shares : weights;
    const top = seen.indexOf(Math.max(...seen));
    const time = frames[top]?.querySelector("span")?.textContent.replace("◆ ", "");
    const place = frames.length ? `frame ${top + 1}${time ? ` (${time})` : ""}` : `position ${top + 1} of ${weights.length}`;
    gaze.textContent = `“${word.textContent}” looks most at ${place}: ${Math.round(seen[top] / 10)} % of its attention.${word.dataset.r ? " Boxes: where in the frames." : ""}`;
  };
  const lookAway = (clip) => {
    if (!clip?.classList.contains("looking")) return;
    const { text, heights } = resting.get(clip);
    clip.classList.remove("looking");
    drawBoxes(clip, "");
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

  // Gallery: an order is "<what> asc" or "<what> desc"; what is the place in the file, the id, or a number of the card.
  const startGallery = () => {
    const gallery = document.getElementById("gallery");
    if (!gallery) return;
    const [query, split] = ["query", "split"].map((id) => document.getElementById(id));
    const form = query.form;
    const pager = document.getElementById("pager");
    const collator = new Intl.Collator(undefined, { numeric: true });
    const places = [...gallery.children, ...document.querySelectorAll("#waiting > script")];
    const clips = places.map((element, place) => ({
      place,
      facts: element.dataset,
      source: element.localName === "script" ? element : null,
      card: element.localName === "script" ? null : element,
    }));
    const cardOf = (clip) => {
      if (!clip.card) {
        const template = document.createElement("template");
        template.innerHTML = clip.source.textContent; // markup of our own template, in which all data is escaped
        clip.card = template.content.firstElementChild;
      }
      return clip.card;
    };
    const entities = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&#34;": '"', "&#39;": "'" };
    const wordsOf = ({ card, source }) => card?.textContent
      ?? source.textContent.replace(/<[^>]*>/g, " ").replace(/&(?:amp|lt|gt|#34|#39);/g, (name) => entities[name]);
    const textOf = (clip) => (clip.text ??= `${clip.facts.id} ${wordsOf(clip)}`.toLowerCase());
    const byNumber = (name, sign) => {
      const value = new Map(clips.map((clip) => [clip, name in clip.facts ? sign * Number(clip.facts[name]) : NaN]));
      return (a, b) => {
        const [x, y] = [value.get(a), value.get(b)];
        return Number.isNaN(x) - Number.isNaN(y) || x - y || a.place - b.place; // those without a number come last
      };
    };
    const ordered = () => {
      const [what, way] = form.elements.order.value.split(" ");
      if (what === "place") return (a, b) => a.place - b.place;
      if (what === "id") return (a, b) => collator.compare(a.facts.id, b.facts.id) || a.place - b.place;
      return byNumber(what, way === "desc" ? -1 : 1);
    };
    const size = Number(gallery.dataset.pageSize);
    let found = clips;
    let page = 0;
    const show = () => {
      const pages = Math.max(1, Math.ceil(found.length / size));
      page = Math.min(Math.max(page, 0), pages - 1);
      const visible = found.slice(page * size, (page + 1) * size);
      gallery.replaceChildren(...visible.map(cardOf));
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
      const wanted = (clip) => !split?.value || clip.facts.split === split.value;
      found = clips.filter((clip) => wanted(clip) && words.every((word) => textOf(clip).includes(word)));
      found.sort(ordered());
      page = 0;
      show();
    };
    let waiting;
    query.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(choose, 120); });
    form.addEventListener("change", (event) => { if (event.target !== query) choose(); });
    form.addEventListener("submit", (event) => event.preventDefault());
    pager.addEventListener("click", (event) => {
      const go = event.target.closest("button")?.dataset.go;
      if (!go) return;
      page = { first: 0, previous: page - 1, next: page + 1, last: Infinity }[go];
      show();
      gallery.scrollIntoView();
    });
    choose(); // a browser may have kept what was typed before a reload
  };

  document.addEventListener("DOMContentLoaded", () => {
    startTheme();
    startGallery();
    addEventListener("beforeprint", () => document.querySelectorAll("#recipe details").forEach((part) => { part.open = true; }));
  });
})();
