// The attention strip: pointing at a word of a caption shows its own weights and boxes instead of the mean of all words.
"use strict";
(() => {
  const resting = new WeakMap(); // clip -> its bars and its legend while no word is pointed at

  // Regions: "frame left top width height share,..." in percent; boxes are drawn over the frames.
  const drawBoxes = (clip, regions) => {
    clip.querySelectorAll(".box").forEach((box) => box.remove());
    const frames = clip.querySelectorAll(".frames .frame");
    for (const [frame, ...values] of (regions ? regions.split(",") : []).map((one) => one.split(" ").map(Number))) {
      const box = document.createElement("i");
      box.className = "box";
      ["--l", "--t", "--w", "--h", "--p"].forEach((name, n) => box.style.setProperty(name, values[n]));
      frames[frame]?.append(box);
    }
  };

  // Heat: "cells of frame 1,cells of frame 2,...", a character per cell of a square grid, row by row. Dark is what a word passes over.
  const LEVELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const drawHeat = (clip, heat) => {
    clip.querySelectorAll(".heat").forEach((map) => map.remove());
    if (!heat) return;
    const maps = heat.split(",");
    clip.querySelectorAll(".frames .frame").forEach((frame, n) => {
      const cells = maps[n] || "A";
      const side = Math.round(Math.sqrt(cells.length));
      const map = document.createElement("canvas");
      map.className = "heat";
      map.width = map.height = side;
      const context = map.getContext("2d");
      const pixels = context.createImageData(side, side);
      [...cells].forEach((cell, at) => {
        const share = LEVELS.indexOf(cell) / (LEVELS.length - 1);
        pixels.data.set([255 * share, 176 * share, 32 * share, 255 * (0.66 - 0.36 * share)], 4 * at);
      });
      context.putImageData(pixels, 0, 0);
      frame.append(map);
    });
  };

  // Attention: pointing at a word of a caption (mouse, touch or arrow keys) shows its weights.
  const showAttention = (word) => {
    const clip = word.closest(".clip");
    const weights = word.dataset.w ? word.dataset.w.split(" ").map(Number) : [];
    const tallest = Number(clip.dataset.tallest) || 1;
    const bars = clip.querySelectorAll(".bars i");
    if (!bars.length && !word.dataset.m) return;
    const legend = clip.querySelector(".attention");
    if (!resting.has(clip)) {
      resting.set(clip, { text: legend.textContent, heights: Array.from(bars, (bar) => bar.style.getPropertyValue("--h")) });
    }
    for (const other of clip.querySelectorAll(".word.on")) other.classList.remove("on");
    word.classList.add("on");
    clip.classList.add("attending");
    bars.forEach((bar, n) => bar.style.setProperty("--h", (weights[n] || 0) / tallest));
    drawBoxes(clip, word.dataset.r);
    drawHeat(clip, word.dataset.m);
    if (!bars.length) {
      legend.textContent = `“${word.textContent}” looks where the picture is bright.`;
      return;
    }
    // positions are spread over the frames: each frame is as bright as the attention that falls on it
    const frames = "timeline" in clip.dataset ? [...clip.querySelectorAll(".frames li")] : [];
    const shares = frames.map(() => 0);
    if (frames.length) weights.forEach((weight, n) => { shares[Math.floor((n * frames.length) / weights.length)] += weight; });
    const most = Math.max(...shares, 1);
    if (!word.dataset.m) frames.forEach((frame, n) => { frame.querySelector("img").style.opacity = 0.35 + (0.65 * shares[n]) / most; });
    const attended = frames.length ? shares : weights;
    const top = attended.indexOf(Math.max(...attended));
    const time = frames[top]?.querySelector("span")?.textContent.replace("◆ ", "");
    const where = frames.length ? `frame ${top + 1}${time ? ` (${time})` : ""}` : `position ${top + 1} of ${weights.length}`;
    legend.textContent = `“${word.textContent}” looks most at ${where}: ${Math.round(attended[top] / 10)} % of its attention.${word.dataset.r ? " Boxes: where in the frames." : ""}${word.dataset.m ? " Bright: where in the frames." : ""}`;
  };
  const hideAttention = (clip) => {
    if (!clip?.classList.contains("attending")) return;
    const { text, heights } = resting.get(clip);
    clip.classList.remove("attending");
    drawBoxes(clip, "");
    drawHeat(clip, "");
    clip.querySelectorAll(".word.on").forEach((word) => word.classList.remove("on"));
    clip.querySelectorAll(".bars i").forEach((bar, n) => bar.style.setProperty("--h", heights[n]));
    clip.querySelectorAll(".frames img").forEach((image) => image.style.removeProperty("opacity"));
    clip.querySelector(".attention").textContent = text;
  };
  const wordAt = (event) => event.target.closest?.(".word");
  document.addEventListener("pointerover", (event) => { if (wordAt(event)) showAttention(wordAt(event)); });
  document.addEventListener("click", (event) => { if (wordAt(event)) showAttention(wordAt(event)); });
  document.addEventListener("pointerout", (event) => {
    const words = event.target.closest?.(".caption-words");
    if (words && event.pointerType === "mouse" && !words.contains(event.relatedTarget)) hideAttention(words.closest(".clip"));
  });
  document.addEventListener("focusout", (event) => {
    if (event.target.matches?.(".caption-words")) hideAttention(event.target.closest(".clip"));
  });
  document.addEventListener("keydown", (event) => {
    if (!event.target.matches?.(".caption-words")) return;
    if (event.key === "Escape") return hideAttention(event.target.closest(".clip"));
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -1e9, End: 1e9 }[event.key];
    if (!step) return;
    const words = [...event.target.querySelectorAll(".word")];
    const now = words.findIndex((word) => word.classList.contains("on"));
    showAttention(words[Math.min(Math.max(now + step, 0), words.length - 1)]);
    event.preventDefault();
  });
})();
