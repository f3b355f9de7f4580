// The visitor's own file, shown by their browser: it is not loaded from the server. What the browser cannot show is left out.
import { $, make } from "./dom.js";

const JUST_AFTER = 0.001; // of the moment that a frame begins, which a player may round down to the frame before

export class Player {
  // `moved` is called with the second that is shown.
  constructor(place, file, moved) {
    this.place = place;
    this.stop = null; // {start, end} of the part that plays
    const address = URL.createObjectURL(file);
    this.video = file.type.startsWith("image/") ? null : make("video");
    const shown = this.video ?? make("img");
    shown.addEventListener("error", () => this.giveUp());
    if (this.video) {
      Object.assign(this.video, { controls: true, playsInline: true, preload: "auto" });
      this.video.addEventListener("loadedmetadata", () => { if (!this.video.videoWidth) this.giveUp(); }); // sound alone
      this.video.addEventListener("play", () => this.follow(moved));
      for (const event of ["timeupdate", "seeked"]) this.video.addEventListener(event, () => this.at(moved));
    } else {
      shown.alt = file.name;
    }
    shown.src = address;
    place.replaceChildren(shown);
  }

  giveUp() {
    this.place.replaceChildren(make("p", "", `This browser cannot ${this.video ? "play" : "show"} the file.`));
    this.video = null;
  }

  get playable() { return this.video !== null; }

  get failed() { return this.place.firstElementChild?.localName === "p"; }

  seek(seconds) {
    if (!this.video) return;
    this.stop = null;
    this.video.currentTime = seconds + JUST_AFTER;
  }

  playPart(start, end) {
    if (!this.video) return;
    this.stop = { start, end };
    this.video.currentTime = start + JUST_AFTER;
    this.video.play().catch(() => { this.stop = null; }); // a browser may want to be asked by its own button
  }

  at(moved) {
    if (!this.video) return;
    const now = this.video.currentTime;
    if (this.stop && (now < this.stop.start - 0.3 || now > this.stop.end + 1)) this.stop = null; // somebody went elsewhere
    if (this.stop && now >= this.stop.end) {
      this.stop = null;
      this.video.pause();
    }
    moved(now);
  }

  follow(moved) { // more often than the browser tells
    this.at(moved);
    if (this.video && !this.video.paused) requestAnimationFrame(() => this.follow(moved));
  }

  // Subtitles, as WebVTT.
  subtitle(vtt) {
    if (!this.video) return;
    $("track", this.video)?.remove();
    if (!vtt) return;
    const track = make("track");
    Object.assign(track, { kind: "captions", label: "Longtake", default: true, src: URL.createObjectURL(new Blob([vtt])) });
    this.video.append(track);
  }
}
