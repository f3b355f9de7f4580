// Behaviour of the pages: the gallery's search, order and pages.
// The document is readable without it; clips beyond the first page wait as text in data blocks.
"use strict";
(() => {
  // Gallery: an order is "<what> asc" or "<what> desc"; what is the index in the file, the id, or a number of the card.
  const startGallery = () => {
    const gallery = document.getElementById("gallery");
    if (!gallery) return;
    const [query, split] = ["query", "split"].map((id) => document.getElementById(id));
    const form = query.form;
    const pager = document.getElementById("pager");
    const collator = new Intl.Collator(undefined, { numeric: true });
    const elements = [...gallery.children, ...document.querySelectorAll("#waiting > script")];
    const clips = elements.map((element, index) => ({
      index,
      data: element.dataset,
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
    const textOf = (clip) => (clip.text ??= `${clip.data.id} ${wordsOf(clip)}`.toLowerCase());
    const byNumber = (name, sign) => {
      const value = new Map(clips.map((clip) => [clip, name in clip.data ? sign * Number(clip.data[name]) : NaN]));
      return (a, b) => {
        const [x, y] = [value.get(a), value.get(b)];
        return Number.isNaN(x) - Number.isNaN(y) || x - y || a.index - b.index; // those without a number come last
      };
    };
    const ordered = () => {
      const [what, way] = form.elements.order.value.split(" ");
      if (what === "index") return (a, b) => a.index - b.index;
      if (what === "id") return (a, b) => collator.compare(a.data.id, b.data.id) || a.index - b.index;
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
      const wanted = (clip) => !split?.value || clip.data.split === split.value;
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
    startGallery();
    addEventListener("beforeprint", () => document.querySelectorAll("#recipe details").forEach((part) => { part.open = true; }));
  });
})();
