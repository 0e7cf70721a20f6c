// Runs behind the page's own script, in a frame of the test's width, and sends the test what the page shows. Every chart
// is drawn a second time here, so that the test can read the data of the uPlot objects and not only their pixels.
"use strict";

const charts = [];
const PlainPlot = uPlot;
uPlot = class extends PlainPlot {
  constructor(...given) {
    super(...given);
    charts.push(this);
  }
};

// Counts the pixels of a canvas with a color of their own: axes, grids and labels are grey.
function coloredPixels(canvas) {
  if (canvas.width === 0 || canvas.height === 0) return 0;
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let i = 0; i < pixels.length; i += 4) {
    const [r, g, b, a] = pixels.subarray(i, i + 4);
    count += a > 128 && Math.max(r, g, b) - Math.min(r, g, b) > 40;
  }
  return count;
}
const coloredShare = (canvas) => coloredPixels(canvas) / Math.max(1, canvas.width * canvas.height);

// Counts the lines that an element's text is broken into.
function linesOfText(shown) {
  const range = document.createRange();
  range.selectNodeContents(shown);
  return new Set([...range.getClientRects()].map((box) => Math.round(box.bottom))).size;
}

const all = (selector) => [...document.querySelectorAll(selector)];
const texts = (selector) => all(selector).map((found) => found.textContent);

function whatIsShown() {
  const root = document.documentElement;
  return {
    width: innerWidth,
    state: root.dataset.state || "none",
    theme: root.dataset.theme,
    taken: root.dataset.taken || "no",
    failure: document.getElementById("failure").hidden ? "" : document.getElementById("failure").textContent,
    line_charts: all(".uplot canvas").map(coloredPixels),
    heat_maps: all("#load canvas").map(coloredShare),
    timelines: all("#timelines canvas").map(coloredShare),
    images: all("img").length,
    titles: texts("#training h3, #speed h3, #experts .charts h3"),
    summary: all("#summary tr").map((row) => [...row.cells].map((cell) => cell.innerText.trim())),
    summary_lines: all("#summary td:not(:has(span)), #summary td .run > span:last-child").map(linesOfText),
    summary_cut: document.querySelector("#summary .wide").scrollWidth - document.querySelector("#summary .wide").clientWidth,
    notes: document.querySelector("#summary .notes").innerText,
    config: document.querySelector("#config").innerText,
    labels: texts(".u-legend .u-label"),
    wider: root.scrollWidth - root.clientWidth,
  };
}

setTimeout(() => {
  dispatchEvent(new ErrorEvent("error", {message: "ResizeObserver loop completed with undelivered notifications."}));
  draw();
  setTimeout(() => parent.postMessage(JSON.stringify(whatIsShown()), "*"), 300);
}, 300);
