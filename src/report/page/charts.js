// The kinds of chart: lines over steps (uPlot), heat map, timeline. Each takes an element to draw in and plain data.
"use strict";

const runColors = ["#3b74d9", "#e07b28", "#2a9d74", "#c24d8e", "#8b66d6", "#a8952a", "#3fa3c4", "#d24a54"];
// "#rrggbb"; hue in degrees, the rest from 0 to 1.
function hexOf(hue, saturation, lightness) {
  const channel = (n) => {
    const k = (n + hue / 30) % 12, part = saturation * Math.min(lightness, 1 - lightness);
    return Math.round(255 * (lightness - part * Math.max(-1, Math.min(k - 3, 9 - k, 1)))).toString(16).padStart(2, "0");
  };
  return "#" + channel(0) + channel(8) + channel(4);
}

// If there are more runs than chosen colors, each run gets a hue of its own, and neighbours differ in lightness.
function colorOf(index, count) {
  return count <= runColors.length ? runColors[index] : hexOf(360 * index / count, 0.6, index % 2 ? 0.6 : 0.42);
}

const kindColors = {forward: "#3b74d9", dx: "#2a9d74", dw: "#e07b28", update: "#8b66d6", sync: "#8a94a3", recompute: "#c2516b"};
const dashes = [[], [6, 4], [2, 3]];

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

// Text is set as text only, so that text from files cannot become markup.
function element(tag, classes, text) {
  const made = document.createElement(tag);
  if (classes) made.className = classes;
  if (text !== undefined) made.textContent = text;
  return made;
}

function swatch(color) {
  const made = element("span", "swatch");
  made.style.background = color;
  return made;
}

function legend(entries) {
  const made = element("div", "legend");
  for (const [name, color] of entries) {
    const entry = element("span");
    entry.append(swatch(color), name);
    made.append(entry);
  }
  return made;
}

// 1234567 -> "1.23M": axes and legends have little space.
function brief(value) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return +(value / 1e9).toPrecision(3) + "G";
  if (size >= 1e6) return +(value / 1e6).toPrecision(3) + "M";
  if (size >= 1e4) return +(value / 1e3).toPrecision(3) + "k";
  if (size > 0 && size < 1e-3) return value.toExponential(1);
  return String(+value.toPrecision(4));
}

const tip = {
  show(event, text) {
    const box = document.getElementById("tip");
    box.textContent = text;
    box.hidden = false;
    const left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8);
    const above = event.clientY + 18 + box.offsetHeight > innerHeight;
    box.style.left = left + "px";
    box.style.top = (above ? event.clientY - box.offsetHeight - 10 : event.clientY + 18) + "px";
  },
  hide() { document.getElementById("tip").hidden = true; },
};

// Has as many digits as fit in a table: 10234 -> "10,234".
function exact(value) {
  return value !== null && Math.abs(value) >= 1000 && Math.abs(value) < 1e9 ? Math.round(value).toLocaleString("en") : brief(value);
}

// Calls action in the frame after a change of the element's width: a size that changes inside the observer's own call
// would have to be observed again in the same frame.
function onWidthChange(watched, action) {
  let width = watched.clientWidth;
  new ResizeObserver(() => requestAnimationFrame(() => {
    if (watched.clientWidth === width) return;
    width = watched.clientWidth;
    action();
  })).observe(watched);
}

// Returns the indices of values between gaps, which need a point since no line passes through them. Joined tables hold
// undefined where only another line has a point.
function isolated(chart, series) {
  const values = chart.data[series];
  const missing = (at, step) => {
    while (values[at] === undefined && at >= 0 && at < values.length) at += step;
    return values[at] === undefined || values[at] === null;
  };
  const found = [];
  for (let i = 0; i < values.length; ++i)
    if (typeof values[i] === "number" && missing(i - 1, -1) && missing(i + 1, 1)) found.push(i);
  return found.length ? found : null;
}

// The exponential moving average, divided by the sum of its weights, so that the start is not pulled to 0. A gap (null)
// stays a gap and changes nothing.
function smoothed(values, weight) {
  let sum = 0, weights = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    weights = weight * weights + 1 - weight;
    return sum / weights;
  });
}

// The columns of a line: x, values and, if a point stands for several steps, their most and least.
const columnsOf = ({x, mean, low, high}) => [x, mean, ...(low ? [high, low] : [])];

function csvOf(lines, xLabel) {
  const quoted = (text) => '"' + text.replaceAll('"', '""') + '"';
  const titles = lines.flatMap(({label, low}) => [label, ...(low ? [label + ", most", label + ", least"] : [])]);
  const columns = uPlot.join(lines.map(columnsOf));
  const rows = columns[0].map((_, i) => columns.map((column) => column[i] ?? "").join(","));
  return [[xLabel, ...titles].map(quoted).join(","), ...rows].join("\n") + "\n";
}

// lines: [{label, color, dash, sparse, x: [...], mean: [...], low, high}] over a common x. smoothing: the weight of
// earlier values, from 0 to below 1; sparse lines are not smoothed. Returns the uPlot.
function lineChart(parent, {lines, unit, xLabel, xText = brief, log = false, smoothing = 0, height = 230, sync = "steps"}) {
  const last = (values) => values.findLast((value) => typeof value === "number");
  const atCursor = (text) => (u, value, series, index) => (index === null ? text(last(u.data[series])) : text(value));
  const tables = [], series = [{label: xLabel, value: (u, value) => (value === null ? "last" : exact(value))}], bands = [];
  const unnamed = (column, stroke) => {
    tables.at(-1).push(column);
    series.push({label: "", stroke, width: 1, points: {show: false}});
  };
  for (const line of lines) {
    const smooth = smoothing > 0 && !line.sparse;
    const drawn = (values) => (log ? values.map((value) => (value > 0 ? value : null)) : values);
    tables.push([line.x, drawn(smooth ? smoothed(line.mean, smoothing) : line.mean)]);
    series.push({label: line.label, stroke: line.color, width: 1.6, dash: line.dash, value: atCursor(brief),
                 points: {size: 5, fill: line.color, show: Boolean(line.sparse) && line.x.length <= 40, filter: line.sparse ? null : isolated}});
    if (line.low) {  // the range behind the mean
      bands.push({series: [series.length, series.length + 1], fill: line.color + "2e"});
      unnamed(drawn(line.high), "transparent");
      unnamed(drawn(line.low), "transparent");
    } else if (smooth) {
      unnamed(drawn(line.mean), line.color + "40");
    }
  }
  const axis = {stroke: css("--soft"), grid: {stroke: css("--grid"), width: 1}, ticks: {stroke: css("--line"), width: 1}, font,
                labelFont: font, labelSize: 18};
  const labels = (text) => (u, ticks) => ticks.map((value) => (value === null ? "" : text(value)));  // a log axis names few of its ticks
  const width = () => Math.max(200, parent.clientWidth);
  const chart = new uPlot({
    width: width(), height, series, bands,
    scales: {x: {time: false}, y: log ? {distr: 3, range: (u, low, high) => [low / 1.1, high * 1.1]} : {}},
    axes: [{...axis, label: xLabel, size: 30, values: labels(xText)}, {...axis, label: unit, size: 64, values: labels(brief)}],
    cursor: {sync: {key: sync}, points: {size: 6}},
    legend: {live: true},
    padding: [8, 30, 0, 0],
  }, uPlot.join(tables), parent);
  // The edges of bands and the unsmoothed values have no row in the legend.
  chart.root.querySelectorAll(".u-legend .u-series").forEach((row, i) => { if (series[i].label === "") row.remove(); });
  onWidthChange(parent, () => chart.setSize({width: width(), height}));
  return chart;
}

// A canvas that is as sharp as the screen and is drawn again when its width changes. draw(context, width, height)
function ownCanvas(parent, height, draw) {
  const canvas = element("canvas", "own");
  canvas.style.height = height + "px";
  parent.append(canvas);
  const redraw = () => {
    const ratio = devicePixelRatio || 1, width = canvas.clientWidth;
    if (width === 0) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = font;
    draw(context, width, height);
  };
  redraw();
  onWidthChange(canvas, redraw);
  return {canvas, redraw};
}

function shortened(text, most) { return text.length > most ? text.slice(0, Math.max(most - 1, 0)) + "…" : text; }

// Returns about `count` round values between low and high.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  if (!(rough > 0)) return [low];
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough);
  const all = [];
  for (let i = Math.ceil(low / step); i * step <= high; ++i) all.push(+(i * step).toPrecision(12));
  return all;
}

function channels(color) {
  const hex = color.replace("#", "");
  return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

// The color of a share relative to an even one: blue from a quarter down, neutral at 1, orange from 4 up.
function loadColors() {
  const [low, even, high] = ["--low", "--even", "--high"].map((name) => channels(css(name)));
  return (ratio) => {
    const at = ratio > 0 ? Math.max(-1, Math.min(1, Math.log2(ratio) / 2)) : -1;
    const end = at < 0 ? low : high;
    return "rgb(" + even.map((value, i) => Math.round(value + (end[i] - value) * Math.abs(at))).join(",") + ")";
  };
}

// load: {from, to: steps of each column}; layer: {experts, percent: column after column, of an even share}
function heatMap(parent, load, layer) {
  const left = 64, right = 12, bottom = 36, count = load.from.length;
  const row = Math.max(2, Math.min(18, Math.floor(220 / layer.experts))), height = row * layer.experts + bottom + 4;
  const first = load.from[0], last = load.to[count - 1];
  const x = (step, width) => left + (step - first) / Math.max(1, last - first + 1) * (width - left - right);
  const color = loadColors();
  const {canvas} = ownCanvas(parent, height, (context, width) => {
    context.clearRect(0, 0, width, height);
    for (let c = 0; c < count; ++c) {
      const begin = x(load.from[c], width), end = x(c + 1 < count ? load.from[c + 1] : load.to[c] + 1, width);
      for (let e = 0; e < layer.experts; ++e) {
        context.fillStyle = color(layer.percent[c * layer.experts + e] / 100);
        context.fillRect(begin, 4 + e * row, end - begin + 0.5, row - (row > 5 ? 1 : 0));
      }
    }
    context.fillStyle = css("--soft");
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = Math.ceil(14 / row);
    for (let e = 0; e < layer.experts; e += every) context.fillText(String(e), left - 8, 4 + (e + 0.5) * row);
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const step of ticks(first, last, width / 110)) context.fillText(String(step), x(step + 0.5, width), height - bottom + 6);
    context.fillText("step", (left + width - right) / 2, height - 15);
    context.save();
    context.translate(14, 4 + row * layer.experts / 2);
    context.rotate(-Math.PI / 2);
    context.textBaseline = "middle";
    context.fillText("expert", 0, 0);
    context.restore();
  });
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    const step = first + (event.clientX - box.left - left) / (box.width - left - right) * (last - first + 1);
    const e = Math.floor((event.clientY - box.top - 4) / row);
    let c = 0;
    while (c + 1 < count && load.from[c + 1] <= step) ++c;
    if (step < first || step > last + 1 || e < 0 || e >= layer.experts) return tip.hide();
    const steps = load.from[c] === load.to[c] ? "step " + load.from[c] : "steps " + load.from[c] + " to " + load.to[c];
    tip.show(event, "expert " + e + ", " + steps + "\n" + (layer.percent[c * layer.experts + e] / 100).toFixed(2) +
                        " times an even share");
  });
  canvas.addEventListener("mouseleave", tip.hide);
}

// A step's streams as rows of bars, to be moved and zoomed.
// timeline: {names, kinds, rows: [{process, stream, events: start, length, name, kind, start, ...}]}, in microseconds.
class TimelineChart {
  static right = 12;
  static top = 4;
  static row = 24;
  static gap = 10;  // between processes
  static bottom = 38;

  constructor(parent, timeline) {
    this.timeline = timeline;
    this.left = Math.min(190, parent.clientWidth * 0.35);
    this.whole = 1;
    for (const {events} of timeline.rows)
      for (let i = 0; i < events.length; i += 4) this.whole = Math.max(this.whole, events[i] + events[i + 1]);
    this.view = {from: 0, to: this.whole};
    this.layOutRows();
    Object.assign(this, ownCanvas(parent, this.height, (context, width) => this.draw(context, width)));
    this.listen();
  }

  layOutRows() {
    const {top, row, gap, bottom} = TimelineChart;
    this.tops = [];
    let y = top, before = null;
    for (const {process} of this.timeline.rows) {
      if (before !== null && process !== before) y += gap;
      before = process;
      this.tops.push(y);
      y += row;
    }
    this.height = y + bottom;
  }

  // Pixels per microsecond.
  scale(width) { return (width - this.left - TimelineChart.right) / (this.view.to - this.view.from); }
  timeAt(event) {
    const box = this.canvas.getBoundingClientRect();
    return this.view.from + (event.clientX - box.left - this.left) / this.scale(box.width);
  }

  draw(context, width) {
    context.clearRect(0, 0, width, this.height);
    context.textBaseline = "middle";
    this.drawAxis(context, width);
    this.timeline.rows.forEach((row, i) => {
      this.drawLabel(context, row, this.tops[i]);
      this.drawBars(context, width, row.events, this.tops[i]);
    });
  }

  drawAxis(context, width) {
    const {right, top, bottom} = TimelineChart, {left} = this, {from, to} = this.view;
    context.textAlign = "center";
    for (const ms of ticks(from / 1000, to / 1000, width / 110)) {
      const at = left + (ms * 1000 - from) * this.scale(width);
      context.strokeStyle = css("--line");
      context.beginPath();
      context.moveTo(at, top);
      context.lineTo(at, this.height - bottom + 4);
      context.stroke();
      context.fillStyle = css("--soft");
      context.fillText(String(ms), at, this.height - bottom + 12);
    }
    context.fillText("milliseconds from the step's start", (left + width - right) / 2, this.height - 10);
  }

  drawLabel(context, {process, stream}, y) {
    context.fillStyle = css("--soft");
    context.textAlign = "right";
    const most = 28, whole = process + " · " + stream;
    // The last words of a process tell it from its neighbours: "rank 3 · receive_previous".
    const text = whole.length > most ? process.slice(process.lastIndexOf(", ") + 1).trim() + " · " + stream : whole;
    context.fillText(shortened(text, most), this.left - 8, y + TimelineChart.row / 2, this.left - 10);
  }

  drawBars(context, width, events, y) {
    const {right, row} = TimelineChart, {left} = this, factor = this.scale(width);
    context.fillStyle = css("--grid");
    context.fillRect(left, y + 2, width - left - right, row - 4);
    let covered = -1;  // where the last bar ends; a bar that ends in the same pixel would not be seen
    for (let i = 0; i < events.length; i += 4) {
      const begin = left + (events[i] - this.view.from) * factor, end = begin + events[i + 1] * factor;
      if (end < left || begin > width - right || end - covered < 0.35) continue;
      const from = Math.max(begin, left), to = Math.min(Math.max(end, begin + 0.6), width - right);
      context.fillStyle = kindColors[this.timeline.kinds[events[i + 3]]] || "#8a94a3";
      context.fillRect(from, y + 2, to - from, row - 4);
      covered = end;
      if (to - from < 48) continue;
      context.fillStyle = "#ffffff";
      context.textAlign = "left";
      context.fillText(shortened(this.timeline.names[events[i + 2]], Math.floor((to - from - 8) / 6.4)), from + 4, y + row / 2);
    }
  }

  listen() {
    const {canvas} = this;
    let grabbed = null;
    canvas.classList.add("drag");
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;  // a plain wheel scrolls the page
      event.preventDefault();
      this.zoom((event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8, this.timeAt(event));
    }, {passive: false});
    canvas.addEventListener("mousedown", (event) => { grabbed = {x: event.clientX, ...this.view}; });
    addEventListener("mouseup", () => { grabbed = null; });
    canvas.addEventListener("mousemove", (event) => {
      if (!grabbed) return this.describe(event);
      const by = (grabbed.x - event.clientX) / this.scale(canvas.clientWidth);
      this.move(grabbed.from + by, grabbed.to + by);
    });
    canvas.addEventListener("mouseleave", tip.hide);
    canvas.tabIndex = 0;
    canvas.addEventListener("keydown", (event) => this.obey(event));
  }

  obey(event) {
    const {from, to} = this.view, some = (to - from) / 8;
    const actions = {ArrowLeft: () => this.move(from - some, to - some), ArrowRight: () => this.move(from + some, to + some),
                     "+": () => this.zoom(0.8), "-": () => this.zoom(1.25), Home: () => this.all()};
    if (!Object.hasOwn(actions, event.key) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
  }

  // Shows the event under the mouse.
  describe(event) {
    const {names, kinds, rows} = this.timeline, time = this.timeAt(event), slack = 1 / this.scale(this.canvas.clientWidth);
    const y = event.clientY - this.canvas.getBoundingClientRect().top;
    const at = this.tops.findIndex((top) => y >= top && y < top + TimelineChart.row);
    const events = at < 0 ? [] : rows[at].events;
    for (let i = 0; i < events.length; i += 4) {
      const [start, length, name, kind] = events.slice(i, i + 4);
      if (time < start - slack || time > start + length + slack) continue;
      return tip.show(event, names[name] + "\n" + kinds[kind] + ", " + (length / 1000).toFixed(3) + " ms from " +
                                 (start / 1000).toFixed(3) + " ms");
    }
    tip.hide();
  }

  move(from, to) {
    const length = Math.min(this.whole, Math.max(to - from, this.whole / 5000));
    this.view.from = Math.max(0, Math.min(from, this.whole - length));
    this.view.to = this.view.from + length;
    this.redraw();
  }
  // still: the time that keeps its position.
  zoom(factor, still = (this.view.from + this.view.to) / 2) {
    this.move(still - (still - this.view.from) * factor, still + (this.view.to - still) * factor);
  }
  all() { this.move(0, this.whole); }
}
