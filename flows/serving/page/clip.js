// One captioned clip, or one shot of a film, in the markup of a report: attention_strip.js brings its words to life.
import { $, clock, make } from "./dom.js";

const SLACK = 0.02; // seconds

// Show a clip in its card; `seek` takes the second of a frame that is chosen, and is null where nothing can be played.
export function showClip(card, clip, seek) {
  $(".result", card).hidden = false;
  const frames = clip.frames.map((frame, n) => {
    const item = make("li");
    item.dataset.time = frame.time;
    const button = make("button", "frame");
    button.disabled = !seek;
    button.addEventListener("click", () => seek(frame.time));
    const image = make("img");
    image.src = frame.image;
    image.alt = `frame ${n + 1} at ${clock(frame.time)}`;
    button.append(image);
    item.append(button);
    if (clip.frames.length > 1) item.append(make("span", "", clock(frame.time)));
    return item;
  });
  const strip = $(".strip", card);
  strip.classList.toggle("photo", frames.length === 1);
  strip.style.setProperty("--n", Math.max(1, frames.length));
  $(".frames", card).replaceChildren(...frames);
  const buttons = clip.n_best.map((candidate) => {
    const button = make("button");
    button.append(make("span", "words", candidate.caption || "(no words)"), make("span", "log-prob", candidate.log_prob.toFixed(2).replace("-", "−")));
    button.addEventListener("click", () => choose(candidate));
    return button;
  });
  const choose = (candidate) => {
    clip.n_best.forEach((other, n) => buttons[n].setAttribute("aria-pressed", String(other === candidate)));
    showCaption(card, candidate, clip);
  };
  $(".candidates ol", card).replaceChildren(...buttons.map((button) => {
    const item = make("li");
    item.append(button);
    return item;
  }));
  $(".candidates", card).hidden = buttons.length < 2;
  choose(clip.n_best.find((candidate) => candidate.caption === clip.caption));
}

// Whether a clip is on display at this second; players round.
export const isOn = (clip, seconds) => seconds + SLACK >= clip.start && seconds + SLACK < clip.end;

// Mark the frame that is on display at this second, where the clip is.
export function markFrame(card, clip, seconds) {
  let now = null;
  for (const item of card.querySelectorAll(".frames li")) {
    item.classList.remove("now");
    if (isOn(clip, seconds) && (now === null || Number(item.dataset.time) <= seconds + SLACK)) now = item;
  }
  now?.classList.add("now");
}

function showCaption(card, candidate, clip) {
  const weights = clip.frames.length > 1 && candidate.attention && perPosition(candidate.attention, clip);
  const words = candidate.caption.split(" ").filter(Boolean).map((text, n) => {
    const word = make("span", weights ? "word" : "", text);
    if (weights) word.dataset.w = weights[n].join(" ");
    return word;
  });
  $(".caption", card).replaceChildren(...(words.length ? words.flatMap((word) => [word, " "]) : ["(no words)"]));
  const tallest = weights ? Math.max(1, ...weights.flat()) : 1;
  card.dataset.tallest = tallest;
  card.dataset.timeline = "";
  card.classList.remove("attending");
  const bars = (weights ? weights[0] : []).map((_, n) => {
    const bar = make("i");
    bar.style.setProperty("--h", weights.reduce((sum, row) => sum + row[n], 0) / weights.length / tallest);
    return bar;
  });
  $(".bars", card).replaceChildren(...bars);
  $(".bars", card).hidden = !weights;
  $(".attention", card).replaceWith(legend(weights, clip));
}

// A new one each time: attention_strip.js remembers what an old one said.
function legend(weights, clip) {
  const text = weights
    ? "Bars: attention over time, mean of all words. Point at a word, or tap it, to see where it looks."
    : clip.frames.length > 1 ? "This captioner has no attention over time to show." : "";
  const element = make("p", "attention", text);
  element.setAttribute("aria-live", "polite");
  return element;
}

// The weights of each word in thousandths, a number per frame: a position belongs to the frame nearest to it in time.
function perPosition(attention, clip) {
  if (!clip.times) return null;
  const nearest = clip.times.map((time) => {
    const distances = clip.frames.map((frame) => Math.abs(frame.time - time));
    return distances.indexOf(Math.min(...distances));
  });
  return attention.map((row) => {
    const shares = clip.frames.map(() => 0);
    nearest.forEach((frame, position) => { shares[frame] += row[position]; });
    return shares.map((share) => Math.round(1000 * share));
  });
}

