// The page to try a run: files are sent one after the other, and every text from the server becomes a text node, never markup.
"use strict";

const RETRIES = 40; // of a busy server
const $ = (selector, within = document) => within.querySelector(selector);
const make = (name, kind, text = "") => {
  const element = document.createElement(name);
  element.className = kind;
  element.textContent = text;
  return element;
};
const wait = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
const clock = (seconds) => `${Math.floor(seconds / 60)}:${(seconds % 60).toFixed(1).padStart(4, "0")}`;

let limits = { megabytes: Infinity, n_best: 3 };

async function loadRun() {
  $("#address").textContent = location.origin;
  const answer = await fetch("/api/run");
  limits = await answer.json();
  $("#run").textContent = `${limits.recipe} on ${limits.dataset}, run ${limits.run}`;
  $("#limits").textContent = `up to ${limits.megabytes} MB and ${limits.seconds} seconds of work`;
}

// Files wait here for each other, rather than at the server; the first waits for the limits.
let queue = loadRun().catch((error) => { $("#run").textContent = `the server does not answer: ${error.message}`; });

function enqueue(files) {
  for (const file of files) {
    const card = $("#card").content.firstElementChild.cloneNode(true);
    $(".file", card).textContent = file.name;
    setState(card, "waiting for its turn");
    $("#cards").prepend(card);
    queue = queue.then(() => caption(file, card)).catch((error) => refuse(card, `the server does not answer: ${error.message}`));
  }
}

function setState(card, text) {
  $(".state .text", card).textContent = text;
}

function refuse(card, reason) {
  $(".state", card).classList.add("bad");
  setState(card, reason);
}

async function caption(file, card) {
  if (file.size > 1e6 * limits.megabytes) return refuse(card, `it is larger than ${limits.megabytes} MB; use 'longtake caption' instead`);
  setState(card, "captioning");
  for (let attempt = 0; attempt < RETRIES; attempt += 1) {
    const headers = { "Content-Type": "application/octet-stream" };
    const answer = await fetch(`/api/captions?n_best=${Math.min(5, limits.n_best)}`, { method: "POST", body: file, headers });
    if (answer.status === 503) {
      setState(card, "others are first; trying again soon");
      await wait(Number(answer.headers.get("Retry-After")) || 5);
      continue;
    }
    const result = await answer.json();
    return answer.ok ? show(card, result) : refuse(card, result.reason || `the server says ${answer.status}`);
  }
  refuse(card, "the server is busy; try again later");
}

function show(card, result) {
  $(".state", card).remove();
  $(".details", card).textContent = `${result.duration.toFixed(1)} s, captioned in ${result.seconds.toFixed(1)} s`;
  $(".result", card).hidden = false;
  const frames = result.frames.map((frame) => {
    const figure = make("figure", "frame");
    const image = make("img", "");
    image.src = frame.image;
    image.alt = `the video at ${clock(frame.time)}`;
    const bar = make("div", "bar");
    bar.append(make("i", ""));
    const below = make("figcaption", "");
    below.append(make("span", "", clock(frame.time)), make("span", "share"));
    figure.append(image, bar, below);
    $(".frames", card).append(figure);
    return { figure, time: frame.time };
  });
  const buttons = result.n_best.map((candidate) => {
    const button = make("button", "");
    button.type = "button";
    button.append(make("span", "", candidate.caption), make("span", "probability", probability(candidate.log_prob)));
    button.addEventListener("click", () => choose(candidate, button));
    const item = make("li", "");
    item.append(button);
    $(".others ol", card).append(item);
    return button;
  });
  const choose = (candidate, button) => {
    for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
    showCaption(card, candidate, result.times, frames);
  };
  $(".others", card).hidden = buttons.length < 2;
  choose(result.n_best[0], buttons[0]);
}

function probability(logProb) {
  const percent = 100 * Math.exp(logProb);
  return percent >= 0.1 ? `${percent.toFixed(1)} %` : `e^${logProb.toFixed(1)}`;
}

function showCaption(card, candidate, times, frames) {
  const attention = candidate.attention && times && candidate.attention.map((row) => sharePerFrame(row, times, frames));
  const words = candidate.caption.split(" ").map((text, n) => {
    const word = make("button", attention ? "word attends" : "word", text);
    word.type = "button";
    word.disabled = !attention;
    if (attention) {
      const attend = () => showAttention(card, frames, attention[n], text);
      word.addEventListener("pointerenter", attend);
      word.addEventListener("focus", attend);
      word.addEventListener("click", () => {
        for (const other of words) other.classList.toggle("chosen", other === word && !word.classList.contains("chosen"));
        attend();
      });
      word.addEventListener("pointerleave", () => words.some((other) => other.classList.contains("chosen")) || rest());
    }
    return word;
  });
  const mean = attention && frames.map((_, f) => attention.reduce((sum, row) => sum + row[f], 0) / attention.length);
  const rest = () => showAttention(card, frames, mean, "");
  $(".caption", card).replaceChildren(...words.flatMap((word) => [word, " "]));
  rest();
}

// The attention on a position belongs to the frame nearest to it in time.
function sharePerFrame(row, times, frames) {
  const shares = frames.map(() => 0);
  times.forEach((time, position) => {
    let nearest = 0;
    frames.forEach((frame, n) => {
      if (Math.abs(frame.time - time) < Math.abs(frames[nearest].time - time)) nearest = n;
    });
    shares[nearest] += row[position];
  });
  return shares;
}

function showAttention(card, frames, shares, word) {
  if (!shares || !frames.length) {
    $(".attention", card).textContent = "This captioner has no attention over time to show.";
    return;
  }
  const most = Math.max(...shares);
  const top = shares.indexOf(most);
  frames.forEach(({ figure }, n) => {
    figure.style.setProperty("--share", most > 0 ? shares[n] / most : 0);
    figure.classList.toggle("top", Boolean(word) && n === top);
    $(".share", figure).textContent = `${Math.round(100 * shares[n])} %`;
  });
  $(".attention", card).textContent = word
    ? `“${word}” looks most at ${clock(frames[top].time)}: ${Math.round(100 * most)} % of its attention.`
    : "Bars: where the captioner looks, mean of all words. Point at a word, or tap it, to see its own.";
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
  enqueue(event.dataTransfer.files);
});
$("#file").addEventListener("change", (event) => {
  enqueue(event.target.files);
});
