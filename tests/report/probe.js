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

function howItFits() {
  const root = document.documentElement, failure = document.getElementById("failure");
  return {wider: root.scrollWidth - root.clientWidth, failure: failure.hidden ? "" : failure.textContent};
}

function whatIsShown() {
  const root = document.documentElement;
  return {
    width: innerWidth,
    state: root.dataset.state || "none",
    theme: root.dataset.theme,
    taken: root.dataset.taken || "no",
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
    memory: texts("#plans .bar + .legend"),
    memory_bars: all("#plans .bar").map((bar) => [...bar.children].map((piece) => piece.offsetWidth / bar.offsetWidth)),
    labels: texts(".u-legend .u-label"),
    layers: texts("#load .hint"),
    ...howItFits(),
  };
}

// The first chart over steps: the loss.
function lossChart() {
  const chart = charts.findLast(({root}) => root.closest("#training .card:first-child"));
  if (!chart) return null;
  const named = chart.series.flatMap(({label}, i) => (i && label !== "Value" ? [i] : []));  // uPlot's word for a series without a label
  return {
    x: chart.axes[0].label,
    last_x: chart.data[0].at(-1),
    logarithmic: chart.scales.y.distr === 3,
    y: [chart.scales.y.min, chart.scales.y.max],
    labels: named.map((i) => chart.series[i].label),
    colors: named.map((i) => chart.series[i].stroke()),
    lasts: named.map((i) => chart.data[i].findLast((value) => typeof value === "number")),
    gaps: named.map((i) => chart.data[i].filter((value) => value === null).length),
    legend: [...chart.root.querySelectorAll(".u-legend .u-value")].map((value) => value.textContent),
  };
}

const pause = () => new Promise((resolve) => setTimeout(resolve, 200));

async function choose(id, value) {
  const control = document.getElementById(id);
  control.value = value;
  control.dispatchEvent(new Event("input"));
  await pause();
  return lossChart();
}

async function press(text) {
  const found = [...document.querySelectorAll("#training .card:first-child button")].find((button) => button.textContent === text);
  if (found) found.click();
  await pause();
  return lossChart();
}

// The text of the file that the CSV button of the loss saves.
async function savedFile() {
  let saved = null;
  const plain = URL.createObjectURL;
  URL.createObjectURL = (blob) => {
    saved = blob.text();
    return plain.call(URL, blob);
  };
  await press("CSV");
  URL.createObjectURL = plain;
  return saved;
}

async function look() {
  await pause();
  dispatchEvent(new ErrorEvent("error", {message: "ResizeObserver loop completed with undelivered notifications."}));
  draw();
  await pause();
  const seen = whatIsShown();
  seen.loss = lossChart();
  if (seen.loss) {
    seen.smoothed = await choose("smoothing", "0.9");
    seen.csv = await savedFile();
    seen.logarithmic = await press("log");
    seen.tokens = await choose("x", "tokens");
    seen.time = await choose("x", "time");
    seen.after = {...howItFits(), line_charts: all(".charts .uplot canvas").map(coloredPixels)};
  }
  parent.postMessage(JSON.stringify(seen), "*");
}
look();
