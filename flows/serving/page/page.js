// The page to try a run: files are sent one after the other, and every text from the server becomes a text node, never markup.
"use strict";

const PATIENCE = 40; // times that a busy server is asked again
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

async function greet() {
  $("#address").textContent = location.origin;
  const answer = await fetch("/api/run");
  limits = await answer.json();
  $("#run").textContent = `${limits.recipe} on ${limits.dataset}, run ${limits.run}`;
  $("#limits").textContent = `up to ${limits.megabytes} MB and ${limits.seconds} seconds of work`;
}

// Files wait here for each other, rather than at the server; the first waits for the limits.
let line = greet().catch((error) => { $("#run").textContent = `the server does not answer: ${error.message}`; });

function welcome(files) {
  for (const file of files) {
    const card = $("#card").content.firstElementChild.cloneNode(true);
    $(".file", card).textContent = file.name;
    tell(card, "waiting for its turn");
    $("#cards").prepend(card);
    line = line.then(() => caption(file, card)).catch((error) => refuse(card, `the server does not answer: ${error.message}`));
  }
}

function tell(card, words) {
  $(".state .words", card).textContent = words;
}

function refuse(card, reason) {
  $(".state", card).classList.add("bad");
  tell(card, reason);
}

async function caption(file, card) {
  if (file.size > 1e6 * limits.megabytes) return refuse(card, `it is larger than ${limits.megabytes} MB; use 'longtake caption' instead`);
  tell(card, "looking at it");
  for (let attempt = 0; attempt < PATIENCE; attempt += 1) {
    const headers = { "Content-Type": "application/octet-stream" };
    const answer = await fetch(`/api/captions?n_best=${Math.min(5, limits.n_best)}`, { method: "POST", body: file, headers });
    if (answer.status === 503) {
      tell(card, "others are first; trying again soon");
      await wait(Number(answer.headers.get("Retry-After")) || 5);
      continue;
    }
    const said = await answer.json();
    return answer.ok ? show(card, said) : refuse(card, said.reason || `the server says ${answer.status}`);
  }
  refuse(card, "the server is busy; try again later");
}

function show(card, said) {
  $(".state", card).remove();
  $(".facts", card).textContent = `${said.duration.toFixed(1)} s, captioned in ${said.seconds.toFixed(1)} s`;
  $(".result", card).hidden = false;
  const frames = said.frames.map((frame) => {
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
  const buttons = said.n_best.map((saying) => {
    const button = make("button", "");
    button.type = "button";
    button.append(make("span", "", saying.caption), make("span", "chance", chance(saying.log_prob)));
    button.addEventListener("click", () => choose(saying, button));
    const item = make("li", "");
    item.append(button);
    $(".others ol", card).append(item);
    return button;
  });
  const choose = (saying, button) => {
    for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
    say(card, saying, said.times, frames);
  };
  $(".others", card).hidden = buttons.length < 2;
  choose(said.n_best[0], buttons[0]);
}

function chance(logProb) {
  const percent = 100 * Math.exp(logProb);
  return percent >= 0.1 ? `${percent.toFixed(1)} %` : `e^${logProb.toFixed(1)}`;
}

function say(card, saying, times, frames) {
  const attention = saying.attention && times && saying.attention.map((row) => gather(row, times, frames));
  const words = saying.caption.split(" ").map((text, n) => {
    const word = make("button", attention ? "word looks" : "word", text);
    word.type = "button";
    word.disabled = !attention;
    if (attention) {
      const look = () => gaze(card, frames, attention[n], text);
      word.addEventListener("pointerenter", look);
      word.addEventListener("focus", look);
      word.addEventListener("click", () => {
        for (const other of words) other.classList.toggle("chosen", other === word && !word.classList.contains("chosen"));
        look();
      });
      word.addEventListener("pointerleave", () => words.some((other) => other.classList.contains("chosen")) || rest());
    }
    return word;
  });
  const mean = attention && frames.map((_, f) => attention.reduce((sum, row) => sum + row[f], 0) / attention.length);
  const rest = () => gaze(card, frames, mean, "");
  $(".caption", card).replaceChildren(...words.flatMap((word) => [word, " "]));
  rest();
}

// Positions of the features that lie nearest to a frame are that frame's.
function gather(row, times, frames) {
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

function gaze(card, frames, shares, word) {
  if (!shares || !frames.length) {
    $(".gaze", card).textContent = "This captioner has no attention over time to show.";
    return;
  }
  const most = Math.max(...shares);
  const top = shares.indexOf(most);
  frames.forEach(({ figure }, n) => {
    figure.style.setProperty("--share", most > 0 ? shares[n] / most : 0);
    figure.classList.toggle("top", Boolean(word) && n === top);
    $(".share", figure).textContent = `${Math.round(100 * shares[n])} %`;
  });
  $(".gaze", card).textContent = word
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
  welcome(event.dataTransfer.files);
});
$("#file").addEventListener("change", (event) => {
  welcome(event.target.files);
});
