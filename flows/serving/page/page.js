// The page to try a run: files are sent one after the other, and every text from the server becomes a text node, never markup.
import { isOn, markFrame, showClip } from "./clip.js";
import { $, clock, make } from "./dom.js";
import { Player } from "./player.js";

const RETRIES = 40; // of a busy server
const FORMATS = { text: "Text", csv: "CSV", srt: "SRT", vtt: "VTT" };
const wait = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

let limits = { megabytes: Infinity, n_best: 3 };

async function loadRun() {
  $("#address").textContent = location.origin;
  const answer = await fetch("/api/run");
  limits = await answer.json();
  $("#run").textContent = `${limits.recipe} on ${limits.dataset}, run ${limits.run.slice(-6)}`;
  $("#run").title = limits.run;
  $("#limits").textContent = `up to ${limits.megabytes} MB and ${limits.seconds} seconds of work`;
  $("#about-sample").textContent = limits.sample.about;
  $("#sample").disabled = false;
}

// Files wait here for each other, rather than at the server; the first waits for the limits.
let queue = loadRun().catch((error) => { $("#run").textContent = `the server does not answer: ${error.message}`; });

function enqueue(file, truth = []) {
  const card = $("#card").content.firstElementChild.cloneNode(true);
  $(".clip-id", card).textContent = file.name;
  if (truth.length) showReferences(card, truth);
  $("#cards").prepend(card);
  const film = { file, card, shown: null, player: null };
  request(film, false);
}

// What people wrote of a sample: some of it, the rest on request, as in a report.
function showReferences(card, texts) {
  const [some, rest] = [texts.slice(0, 3), texts.slice(3)].map((few) => {
    const list = make("ul");
    list.append(...few.map((text) => make("li", "", text)));
    return list;
  });
  const more = make("details");
  more.append(make("summary", "", `${texts.length - 3} more`), rest);
  $(".references", card).hidden = false;
  $(".references", card).append(some, ...(texts.length > 3 ? [more] : []));
}

// Ask for the captions of a file, as a whole or shot by shot, once it is its turn.
function request(film, shots) {
  setState(film.card, "waiting for its turn");
  queue = queue
    .then(() => caption(film, shots))
    .catch((error) => refuse(film.card, `the server does not answer: ${error.message}`));
}

function setState(card, text) {
  $(".state", card).hidden = !text;
  $(".state", card).classList.remove("bad");
  $(".state .text", card).textContent = text;
}

function refuse(card, reason) {
  setState(card, reason);
  $(".state", card).classList.add("bad");
}

async function caption(film, shots) {
  const { file, card } = film;
  if (file.size > 1e6 * limits.megabytes) return refuse(card, `it is larger than ${limits.megabytes} MB; use 'longtake caption' instead`);
  film.player ??= new Player($(".player", card), file, (seconds) => follow(film, seconds));
  setState(card, shots ? "looking for shots" : "captioning");
  for (let attempt = 0; attempt < RETRIES; attempt += 1) {
    const body = new FormData();
    body.append("file", file);
    const answer = await fetch(`/api/captions?n_best=${Math.min(5, limits.n_best)}&shots=${shots}`, { method: "POST", body });
    if (answer.status === 503) {
      setState(card, "others are first; trying again soon");
      await wait(Number(answer.headers.get("Retry-After")) || 5);
      continue;
    }
    const result = await answer.json();
    return answer.ok ? show(film, result, shots) : refuse(card, result.reason || `the server says ${answer.status}`);
  }
  refuse(card, "the server is busy; try again later");
}

function show(film, result, shots) {
  const { card } = film;
  setState(card, result.problems.join("; "));
  $(".state", card).classList.toggle("bad", result.problems.length > 0);
  const parts = `${result.clips.length} shot${result.clips.length > 1 ? "s" : ""}, `;
  $(".details", card).textContent = `${result.duration.toFixed(1)} s, ${shots ? parts : ""}captioned in ${result.seconds.toFixed(1)} s`;
  film.result = result;
  const list = $(".shots", card);
  list.hidden = result.clips.length < 2;
  list.replaceChildren(...(list.hidden ? [] : result.clips.map((clip) => shotRow(film, clip))));
  film.player.subtitle(list.hidden ? "" : result.texts.vtt);
  choose(film, result.clips[0]);
  showTools(film, shots);
}

function shotRow(film, clip) {
  const button = make("button");
  const frame = clip.frames[Math.floor(clip.frames.length / 2)];
  if (frame) {
    const image = make("img");
    image.src = frame.image;
    image.alt = "";
    button.append(image);
  }
  button.append(make("span", "span-of", `${clock(clip.start)} – ${clock(clip.end)}`), make("span", "words", clip.caption || "(no words)"));
  button.addEventListener("click", () => {
    choose(film, clip);
    film.player.playPart(clip.start, clip.end);
  });
  const item = make("li");
  item.append(button);
  return item;
}

const shotButtons = (film) => film.card.querySelectorAll(".shots button");

function choose(film, clip) {
  film.shown = clip;
  shotButtons(film).forEach((button, n) => button.setAttribute("aria-pressed", String(film.result.clips[n] === clip)));
  showClip(film.card, clip, film.player.playable ? (seconds) => film.player.seek(seconds) : null);
  // a picture is large already, unless the browser cannot show it
  $(".strip", film.card).hidden = clip.frames.length < 2 && !film.player.failed;
}

function follow(film, seconds) {
  if (!film.shown) return;
  markFrame(film.card, film.shown, seconds);
  shotButtons(film).forEach((button, n) => button.classList.toggle("now", isOn(film.result.clips[n], seconds)));
}

function showTools(film, shots) {
  const { card, file, result } = film;
  const saved = Object.entries(FORMATS).map(([format, title]) => {
    const link = make("a", "", title);
    link.href = URL.createObjectURL(new Blob([result.texts[format]], { type: "text/plain" }));
    link.download = `${file.name.replace(/\.[^.]*$/, "")}.${format === "text" ? "txt" : format}`;
    return link;
  });
  const tools = $(".tools", card);
  tools.hidden = false;
  tools.replaceChildren("Save as ", ...saved);
  if (result.duration > 1) {
    const button = make("button", "cut", shots ? "One caption for all of it" : "Cut into shots");
    button.addEventListener("click", () => {
      button.disabled = true;
      request(film, !shots);
    });
    tools.prepend(button);
  }
}

const drop = $("#drop");
for (const kind of ["dragenter", "dragover"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
}
for (const kind of ["dragleave", "drop"]) document.addEventListener(kind, () => drop.classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  for (const file of event.dataTransfer.files) enqueue(file);
});
$("#file").addEventListener("change", (event) => {
  for (const file of event.target.files) enqueue(file);
});
$("#sample").addEventListener("click", async () => {
  try {
    const answer = await fetch("/api/sample");
    if (!answer.ok) throw new Error(`${answer.status}`);
    const video = await answer.blob();
    enqueue(new File([video], limits.sample.name, { type: video.type }), limits.sample.captions);
  } catch (error) {
    $("#about-sample").textContent = `the sample does not come: ${error.message}`;
  }
});
