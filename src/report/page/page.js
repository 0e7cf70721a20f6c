// Fills the page from the data inside it.
"use strict";

addEventListener("error", (event) => {
  if (event.message.startsWith("ResizeObserver loop")) return;  // a notice that sizes change once more in the next frame
  const failure = document.getElementById("failure");
  failure.textContent = "This page could not be drawn: " + event.message;
  failure.hidden = false;
  document.documentElement.dataset.state = "failed";
});

const {runs} = JSON.parse(document.getElementById("data").textContent);
const several = runs.length > 1;
const runColor = (run) => colorOf(runs.indexOf(run), runs.length);

const [timeUnit, unitSeconds] = (() => {
  const longest = Math.max(...runs.map(({means}) => means.seconds || 0));
  return longest < 600 ? ["seconds", 1] : longest < 36000 ? ["minutes", 60] : ["hours", 3600];
})();
// The choices of x. of: the column of a run's series, or undefined if its records lack it.
const xAxes = {
  step: {label: "step", text: String, of: ({steps}) => steps},
  tokens: {label: "tokens", text: brief, of: ({tokens}) => tokens},
  time: {label: timeUnit + " in steps", text: brief, of: ({seconds}) => seconds && seconds.map((value) => value / unitSeconds)},
};
const chosen = {x: xAxes.step, smoothing: 0};  // by the controls

// The charts of a section, in order. keys: of a record; a chart is left out if no run has any of them. log: present if the
// axis may be logarithmic, and true if it is.
const sections = {
  training: [
    {title: "Loss", unit: "nats a token", log: false, keys: [["loss", "loss"], ["held_out_loss", "held-out loss"]]},
    {title: "Learning rate", unit: "learning rate", log: false, keys: [["lr", "learning rate"]]},
    {title: "Gradient norm", unit: "norm, before clipping", log: false, keys: [["grad_norm", "norm"]]},
  ],
  speed: [
    {title: "Throughput", unit: "tokens a second", log: false, keys: [["tokens_per_s", "tok/s"]]},
    {title: "Step time, measured and predicted", unit: "milliseconds", log: false, keys: [["step_ms", "measured"], ["predicted_ms", "predicted"]]},
    {title: "Exposed communication", unit: "milliseconds a step", log: false, keys: [["exposed_ms", "exposed"]]},
    {title: "Hidden communication", unit: "% of communication", keys: [["hidden_pct", "hidden"]]},
    {title: "Model FLOPs utilisation", unit: "% of peak", keys: [["mfu", "MFU"]]},
    {title: "Streams of rank 0, busy", unit: "milliseconds a step",
     keys: [["compute_ms", "compute"], ["a2a_ms", "all-to-all"], ["allreduce_ms", "all-reduce"]]},
  ],
  experts: [
    {title: "Load of the fullest expert", unit: "times the mean", keys: [["load_max_over_mean", "max/mean"]]},
    {title: "Dropped choices", unit: "% of choices", keys: [["drop_pct", "dropped"]]},
    {title: "Rounds without drops", unit: "rounds of the fullest layer", keys: [["rounds", "rounds"]]},
    {title: "Dead experts", unit: "experts without a token", keys: [["dead_experts", "dead"]]},
    {title: "Router entropy", unit: "nats, mean over layers", keys: [["router_entropy", "entropy"]]},
    {title: "Auxiliary loss", unit: "sum over layers", keys: [["aux_loss", "auxiliary"]]},
    {title: "Experts of a token", unit: "choices, mean over layers", keys: [["experts_per_token", "experts"]]},
    {title: "Router z-loss", unit: "sum over layers", keys: [["z_loss", "z-loss"]]},
    {title: "Spread of the experts' biases", unit: "largest minus smallest", keys: [["bias_spread", "spread"]]},
  ],
};

function table(head, rows) {
  const made = element("table"), top = made.createTHead().insertRow(), body = made.createTBody();
  for (const {text, numeric} of head) top.append(element("th", numeric ? "number" : "", text));
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((cell, i) => {
      const made = element("td", head[i].classes || (head[i].numeric ? "number" : "name"));
      made.append(cell);
      line.append(made);
    });
  }
  return made;
}

function named(run) {
  const made = element("span", "run");
  made.append(swatch(runColor(run)), element("span", "", run.name));
  return made;
}

// 75.5 -> "1 min 16 s"
function duration(seconds) {
  if (seconds < 60) return brief(seconds) + " s";
  const whole = Math.round(seconds), minutes = Math.floor(whole / 60), hours = Math.floor(minutes / 60);
  return hours ? hours + " h " + minutes % 60 + " min" : minutes + " min " + whole % 60 + " s";
}

const numeric = (text) => ({text, numeric: true});
const textOr = (value, text = String) => (value === undefined || value === null || value === "" || value === 0 ? "–" : text(value));

function drawSummary() {
  const of = (run, key, which = "mean") => exact(run.means[key] ? run.means[key][which] : null);
  const predicted = ({means}) => {
    if (!means.predicted_ms || !means.step_ms) return "–";
    const p = means.predicted_ms.mean, m = means.step_ms.mean;
    return exact(p) + " (" + (p >= m ? "+" : "−") + Math.abs(100 * (p / m - 1)).toFixed(1) + "%)";
  };
  const ends = table([{text: "run"}, {text: "policy", classes: "tight"}, ...["ranks", "last step", "tokens", "time in steps", "last loss", "lowest loss",
                      "last held-out", "lowest held-out"].map(numeric)],
    runs.map((run) => [named(run), textOr(run.plan && run.plan.policy), textOr(run.plan && run.plan.ranks), textOr(run.means.last_step),
                       textOr(run.means.tokens, brief), textOr(run.means.seconds, duration), of(run, "loss", "last"), of(run, "loss", "least"),
                       of(run, "held_out_loss", "last"), of(run, "held_out_loss", "least")]));
  const means = table([{text: "run, mean of a step"}, ...["tok/s", "step ms", "predicted ms", "exposed ms", "hidden %", "MFU %", "load max/mean", "drop %",
                       "entropy", "a save, ms"].map(numeric)],
    runs.map((run) => [named(run), of(run, "tokens_per_s"), of(run, "step_ms"), predicted(run), of(run, "exposed_ms"), of(run, "hidden_pct"), of(run, "mfu"),
                       of(run, "load_max_over_mean"), of(run, "drop_pct"), of(run, "router_entropy"), of(run, "save_ms")]));
  document.querySelector("#summary .wide").replaceChildren(ends, means);
  const notes = ["Means leave out the first step. Time in steps is without start, evaluation and saving."];
  for (const run of runs) {
    if (run.series.width > 1) notes.push(run.name + ": a point of a chart is the mean of " + run.series.width +
                                         " steps; the shade runs from the least to the most.");
    for (const reason of run.left_out) notes.push(run.name + ": left out: " + reason + ".");
    if (run.cut_short) notes.push(run.name + ": the last line of metrics.jsonl is cut short and is skipped.");
    if (run.broken.count) notes.push(run.name + ": " + run.broken.count + " broken line" + (run.broken.count > 1 ? "s" : "") +
                                     " of metrics.jsonl skipped; " + run.broken.first + ".");
    if (run.not_finite.count) notes.push(run.name + ": loss or gradient norm is not finite in " + run.not_finite.count +
                                         " record(s), first at step " + run.not_finite.first + "; charts have gaps there.");
  }
  document.querySelector("#summary .notes").replaceChildren(...notes.map((note) => element("div", "", note)));
}

// A line of few values is drawn through the gaps between them.
function withoutGaps(line) {
  const kept = line.mean.map((value) => value !== null), only = (values) => values && values.filter((_, i) => kept[i]);
  return {...line, x: only(line.x), mean: only(line.mean), low: only(line.low), high: only(line.high)};
}

function linesOf(keys) {
  const present = keys.filter(([key]) => runs.some((run) => run.series[key]));
  const lines = [];
  for (const run of runs)
    present.forEach(([key, label], i) => {
      const points = run.series[key], x = chosen.x.of(run.series), sparse = key === "held_out_loss";
      if (!points || !x) return;
      const line = {label: several ? run.name + (present.length > 1 ? ", " + label : "") : label, sparse,
                    color: several ? runColor(run) : runColors[i], dash: several ? dashes[i] : key === "predicted_ms" ? dashes[1] : [],
                    x, ...points};
      lines.push(sparse ? withoutGaps(line) : line);
    });
  return lines;
}

function button(text, action) {
  const made = element("button", "", text);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}

function download(name, text) {
  const link = element("a"), address = URL.createObjectURL(new Blob([text], {type: "text/csv"}));
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// A line chart below its title and buttons. chart: {title, log, ...}; options() returns the other arguments of lineChart.
function chartBlock(parent, chart, options) {
  const head = element("div", "head"), plot = element("div");
  const redraw = () => {
    plot.style.minHeight = plot.offsetHeight + "px";  // the page keeps its place
    plot.replaceChildren();
    lineChart(plot, {unit: chart.unit, log: chart.log, ...options()});
  };
  head.append(element("h3", "", chart.title));
  if (chart.log !== undefined) {
    const log = button("log", () => {
      chart.log = !chart.log;
      log.ariaPressed = chart.log;
      redraw();
    });
    log.ariaPressed = chart.log;
    head.append(log);
  }
  head.append(button("CSV", () => {
    const {lines, xLabel} = options();
    download(chart.title + ".csv", csvOf(lines, xLabel));
  }));
  parent.append(head, plot);
  redraw();
}

function drawSection(id) {
  const container = document.querySelector("#" + id + " .charts");
  container.style.minHeight = container.offsetHeight + "px";
  container.replaceChildren();
  for (const chart of sections[id]) {
    if (linesOf(chart.keys).length === 0) continue;
    const card = element("div", "card");
    container.append(card);
    chartBlock(card, chart, () => ({lines: linesOf(chart.keys), xLabel: chosen.x.label, xText: chosen.x.text, smoothing: chosen.smoothing}));
  }
  if (!container.hasChildNodes()) container.append(element("p", "hint", "No record has these."));
  container.style.minHeight = "";
}

// The numbers of a layer in the last record, as words.
const layerWords = [["load_max_over_mean", "fullest expert ", " times the mean"], ["drop_pct", "dropped ", "%"],
                    ["dead_experts", "dead experts ", ""], ["router_entropy", "entropy ", " nats"],
                    ["experts_per_token", "experts of a token ", ""], ["z_loss", "z-loss ", ""],
                    ["bias_spread", "spread of biases ", ""]];
function lastOfLayer({last}) {
  const given = layerWords.filter(([key]) => typeof last[key] === "number");
  return given.map(([key, before, after]) => before + brief(last[key]) + after).join(", ");
}

function drawLoad() {
  const container = document.getElementById("load");
  container.replaceChildren();
  for (const run of runs) {
    if (run.load.layers.length === 0 || run.load.from.length === 0) continue;
    const card = element("div", "card stacked");
    card.style.marginTop = "16px";
    const title = element("h3", "", "Load of each expert" + (several ? ", " + run.name : ""));
    const key = element("div", "legend");
    const scale = element("span", "", "a quarter of an even share, or less");
    scale.append(element("span", "scale"), "four times, or more");
    key.append(scale);
    card.append(title, key);
    container.append(card);
    const grid = element("div", "columns");
    card.append(grid);
    run.load.layers.forEach((layer, i) => {
      const cell = element("div");
      cell.append(element("h3", "unit", "MoE layer " + i));
      grid.append(cell);
      heatMap(cell, run.load, layer);
      const last = lastOfLayer(layer);
      if (last) cell.append(element("p", "hint", "Step " + run.means.last_step + ": " + last + "."));
    });
  }
}

const megabytes = (bytes) => (bytes / 1e6).toFixed(1) + " MB";

// Returns [[part, bytes], ...] of a rank: the recorded parts, or else those in the plan.
function memoryOf({memory, plan}) {
  if (memory) return Object.entries(memory).filter(([, bytes]) => bytes > 0);
  return plan ? [["parameters", plan.parameters], ["optimizer", plan.state], ["arena", plan.arena]] : [];
}
const bytesIn = (parts) => parts.reduce((sum, [, bytes]) => sum + bytes, 0);

// most: the bytes of a full bar.
function memoryBar(run, most) {
  const made = element("div"), bar = element("div", "bar"), parts = memoryOf(run), total = "a rank: " + megabytes(bytesIn(parts));
  parts.forEach(([, bytes], i) => {
    const piece = element("div");
    piece.style.width = 100 * bytes / most + "%";
    piece.style.background = runColors[i];
    bar.append(piece);
  });
  const key = legend(parts.map(([name, bytes], i) => [name + " " + megabytes(bytes), runColors[i]]));
  key.prepend(element("span", "", run.memory ? total : total + " in its plan, without workspace, process and saving, which this run did not record"));
  made.append(bar, key);
  return made;
}

function drawArena(card, plan) {
  const columns = element("div", "columns"), left = element("div"), right = element("div", "wide");
  columns.append(left, right);
  card.append(columns);
  const x = plan.live.map((_, i) => i * plan.width), flat = (value) => plan.live.map(() => value / 1e6);
  chartBlock(left, {title: "Arena in use along the step", unit: "MB"}, () => ({xLabel: "instruction", sync: "instructions", lines: [
    {label: "in use", color: runColors[2], x, mean: plan.live.map((bytes) => bytes / 1e6)},
    {label: "arena", color: css("--soft"), dash: dashes[1], x, mean: flat(plan.arena)}]}));
  right.append(table([{text: "largest"}, {text: "type", classes: "value tight"}, {text: "made by"}, {text: "MB", numeric: true}],
                     plan.largest.map((t) => [t.name, t.type, t.made_by, (t.bytes / 1e6).toFixed(2)])));
}

function drawMemory() {
  const container = document.getElementById("plans");
  container.replaceChildren();
  const most = Math.max(...runs.map((run) => bytesIn(memoryOf(run))), 1);
  for (const run of runs) {
    if (memoryOf(run).length === 0) continue;
    const card = element("div", "card stacked");
    container.append(card);
    if (several) card.append(element("h3", "", run.name));
    card.append(memoryBar(run, most));
    if (run.plan) drawArena(card, run.plan);
  }
  if (!container.hasChildNodes()) container.append(element("p", "hint", "No run has a plan.ir that can be read."));
}

// Milliseconds of each stream and kind: predicted, the mean over pipeline stages, and the mean over measured ranks.
function timesOf(timeline) {
  const sums = new Map(), stages = new Set(), ranks = new Set();
  for (const {process, stream, events} of timeline.rows) {
    const predicted = process.startsWith("predicted");
    (predicted ? stages : ranks).add(process);
    for (let i = 0; i < events.length; i += 4) {
      const key = stream + ", " + timeline.kinds[events[i + 3]];
      if (!sums.has(key)) sums.set(key, {predicted: 0, measured: 0});
      sums.get(key)[predicted ? "predicted" : "measured"] += events[i + 1] / 1000;
    }
  }
  return [...sums].map(([key, sum]) => {
    const mean = sum.measured / Math.max(ranks.size, 1), predicted = sum.predicted / Math.max(stages.size, 1);
    return [key, predicted ? predicted.toFixed(2) : "–", mean.toFixed(2), predicted && mean ? (100 * (predicted / mean - 1)).toFixed(1) : "–"];
  });
}

function drawTimelines() {
  const container = document.getElementById("timelines");
  container.replaceChildren();
  for (const run of runs) {
    const {timeline} = run;
    if (!timeline || timeline.rows.length === 0) continue;
    const card = element("div", "card stacked"), buttons = element("div", "legend");
    if (several) card.append(element("h3", "", run.name));
    card.append(legend(timeline.kinds.map((kind) => [kind, kindColors[kind] || "#8a94a3"])), buttons);
    container.append(card);
    const chart = new TimelineChart(card, timeline);
    buttons.append(button("Closer", () => chart.zoom(0.5)), button("Wider", () => chart.zoom(2)), button("Whole step", () => chart.all()));
    buttons.append(element("span", "", "Drag, or arrow keys, to move; Ctrl or Shift and the wheel, or + and −, to zoom. A message's span holds its wait for the other ranks."));
    if (timeline.left_out) card.append(element("p", "hint", "trace.json has " + timeline.left_out + " more, predicted or measured."));
    const wide = element("div", "wide");
    wide.style.marginTop = "12px";
    wide.append(table([{text: "stream, kind"}, numeric("predicted ms"), numeric("measured ms, mean over ranks"), numeric("difference %")],
                      timesOf(timeline)));
    card.append(wide);
  }
  if (!container.hasChildNodes()) container.append(element("p", "hint", "No run has a trace.json that can be read; log.trace=N writes step N's."));
}

// The computation that hides each communication, predicted beside measured.
function drawOverlap() {
  const container = document.getElementById("hidden");
  container.replaceChildren();
  const share = ({ms, hidden_ms}) => (ms ? (100 * hidden_ms / ms).toFixed(0) : "–");
  const cells = (hidden) => (hidden ? [hidden.ms.toFixed(2), share(hidden), hidden.by] : ["–", "–", "–"]);
  for (const run of runs) {
    if (run.communications.length === 0) continue;
    const card = element("div", "card stacked"), wide = element("div", "wide");
    if (several) card.append(element("h3", "", run.name));
    const staged = run.communications.some(({stage}) => stage !== null);
    const head = [...(staged ? [numeric("stage")] : []), {text: "communication"}, {text: "pass", classes: "tight"}, numeric("parts")];
    for (const what of ["predicted", "measured"]) head.push(numeric(what + " ms"), numeric("hidden %"), {text: "by (ms)", classes: "value"});
    wide.append(table(head, run.communications.map(({stage, site, pass, parts, predicted, measured}) =>
      [...(staged ? [String(stage)] : []), site, pass, String(parts), ...cells(predicted), ...cells(measured)])));
    card.append(wide);
    if (!run.communications.some(({measured}) => measured)) card.append(element("p", "hint", "Measured: log.trace=N writes the times of step N."));
    container.append(card);
  }
  if (!container.hasChildNodes()) container.append(element("p", "hint", "No run has a plan.ir with predicted times and communication."));
}

function drawConfig() {
  const container = document.querySelector("#config .wide");
  container.replaceChildren();
  const fields = [...new Set(runs.flatMap((run) => Object.keys(run.config)))].sort();
  const value = (run, field) => (Object.hasOwn(run.config, field) ? run.config[field] : "–");
  const head = [{text: "field"}, ...runs.map((run) => ({text: several ? run.name : "value", classes: "value"}))];
  const rows = (some) => some.map((field) => [field, ...runs.map((run) => value(run, field))]);
  if (several) {
    const differing = fields.filter((field) => runs.some((run) => value(run, field) !== value(runs[0], field)));
    container.append(differing.length ? table(head, rows(differing)) : element("p", "hint", "The configs are the same."));
  }
  const all = element("details");
  all.append(element("summary", "", "All " + fields.length + " fields"), table(head, rows(fields)));
  all.open = !several;
  container.append(all);
}

function draw() {
  drawSummary();
  for (const id of Object.keys(sections)) drawSection(id);
  drawLoad();
  drawMemory();
  drawTimelines();
  drawOverlap();
  drawConfig();
  document.documentElement.dataset.state = "drawn";
}

for (const id of ["x", "smoothing"])
  document.getElementById(id).addEventListener("input", ({target}) => {
    chosen[id] = id === "x" ? xAxes[target.value] : Number(target.value);
    for (const section of Object.keys(sections)) drawSection(section);
  });

const dark = matchMedia("(prefers-color-scheme: dark)");
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  draw();
}
document.getElementById("theme").addEventListener("click",
    () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
document.title = "Lancet report: " + runs.map((run) => run.name).join(", ");
setTheme(dark.matches ? "dark" : "light");
