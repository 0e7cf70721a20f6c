// Fills the page from the points and timelines inside it.
"use strict";

function fail(why) {
  const failure = document.getElementById("failure");
  failure.textContent = "This page could not be drawn: " + why;
  failure.hidden = false;
  document.documentElement.dataset.state = "failed";
}
addEventListener("error", ({message}) => {
  if (message.startsWith("ResizeObserver loop")) return;  // a notice that sizes change once more in the next frame
  fail(message);
});
addEventListener("unhandledrejection", ({reason}) => fail(reason));  // of a timeline that cannot be unpacked

const points = JSON.parse(document.getElementById("points").textContent);
const timelines = JSON.parse(document.getElementById("timelines").textContent);  // packed, by the id of a point

const places = {this: "ranks on one machine", emulated: "hosts emulated on one machine"};
// What a person picks, in this order: each choice is among the points that the choices before it leave.
const facets = [
  {id: "cluster", label: "cluster", of: (p) => (places[p.hardware] || p.hardware) + " (" + p.network + ")"},
  {id: "setting", label: "batch or routing", of: (p) => p.label || "default"},
  {id: "model", label: "model", of: (p) => p.model},
  {id: "gate", label: "gate", of: (p) => p.gate.replace("_", "-")},
  {id: "ranks", label: "GPUs or ranks", of: (p) => String(p.ranks), first: "32"},
];
const policies = [
  {id: "policy", label: "policy", first: "Lancet"},
  {id: "beside", label: "beside it", first: "sequential"},
];
const policyOf = (p) => p.family;
const parts = [["computation alone", "#2a9d74"], ["overlapped", "#a8952a"], ["communication alone", "#d24a54"]];
const streams = {compute: "compute", expert: "all-to-all", reduce: "all-reduce"};
// The choices, kept in the page's address.
const wanted = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

const ms = (value) => value.toLocaleString("en", {minimumFractionDigits: 1, maximumFractionDigits: 1}) + " ms";

function number(text, kind) {
  const made = element("span", "", text);
  if (kind) made.append(element("span", "kind", kind));
  return made;
}

// Fills a select with options and returns what it then has: what is wanted, if it is there, or else the first.
function choose(id, options, first = options[0]) {
  const select = document.getElementById(id);
  select.replaceChildren(...options.map((text) => new Option(text)));
  select.value = options.includes(wanted[id]) ? wanted[id] : options.includes(first) ? first : options[0];
  select.parentElement.hidden = options.length < 2 && id === "setting";
  return select.value;
}

// Returns the points of the place that the controls name.
function placeOfChoices() {
  let left = points;
  for (const {id, of, first} of facets) {
    const options = [...new Set(left.map(of))];
    const value = choose(id, id === "ranks" ? options.sort((a, b) => a - b) : options, first);
    left = left.filter((p) => of(p) === value);
  }
  return left;
}

function chosenOf(here) {
  const names = policies.map(({id, first}) => choose(id, here.map(policyOf), first));
  return names.map((name) => here.find((p) => policyOf(p) === name));
}

// What no order of the whole operations goes below, or null; buckets of gradients differ between policies.
function floorOf(here) {
  const floors = here.flatMap(({bound_ms}) => bound_ms ?? []);
  return floors.length ? Math.min(...floors) : null;
}

// An interval behind a number, of its hardware or of its runs.
function intervalText(p, name) {
  const [low, high] = [p[name + "_low"], p[name + "_high"]];
  if (low !== undefined) return ", " + ms(low) + " to " + ms(high) + " with the machine's uncertain numbers";
  if (name !== "step_ms" || p.least_step_ms === undefined) return "";
  return ", runs from " + ms(p.least_step_ms) + " to " + ms(p.most_step_ms);
}

function timeOf(name) {
  return (p) => (p[name] === undefined ? "–" : number(ms(p[name]) + intervalText(p, name), p.network));
}

function rowsOf(floor) {
  return [
    ["step", (p) => (p.status === "ok" ? timeOf("step_ms")(p) : p.status)],
    ["predicted step", (p) => (p.predicted_ms === undefined ? "–" : number(ms(p.predicted_ms), "simulated"))],
    ["floor of whole operations", () => (floor === null ? "–" : number(ms(floor), "simulated"))],
    ["exposed communication", timeOf("exposed_ms")],
    ["compute stream, busy", timeOf("compute_ms")],
    ["all-to-alls", timeOf("all_to_all_ms")],
    ["all-reduces", timeOf("all_reduce_ms")],
    ["schedule", (p) => (p.runs || "–") + (p.k > 1 ? ", k = " + p.k : "")],
    ["memory of a rank", (p) => (p.memory_gib ? number(p.memory_gib.toFixed(1) + " GiB", p.network) : "–")],
  ];
}

function drawStep(chosen, floor) {
  const table = element("table"), head = table.createTHead().insertRow(), body = table.createTBody();
  const columns = [...new Set(chosen)];
  head.append(element("th"), ...columns.map((p) => element("th", "number", policyOf(p))));
  for (const [title, valueOf] of rowsOf(floor)) {
    const values = columns.map(valueOf);
    if (values.every((value) => value === "–")) continue;
    const row = body.insertRow();
    row.append(element("th", "", title));
    for (const value of values) {
      const cell = element("td", "number");
      cell.append(value);
      row.append(cell);
    }
  }
  document.querySelector("#step .wide").replaceChildren(table);
  document.querySelector("#step .hint").textContent = comparison(chosen);
}

function comparison([a, b]) {
  if (a === b || a.step_ms === undefined || b.step_ms === undefined) return "";
  const times = (b.step_ms / a.step_ms).toFixed(2);
  return policyOf(b) + "'s step takes " + times + " times as long as " + policyOf(a) + "'s (" + a.network + ").";
}

// Computation alone, both, communication alone, as far as they are known.
function partsOf(p) {
  if (p.communication_ms === undefined) return [["step", runColors[0], p.step_ms]];
  const overlapped = p.communication_ms - p.exposed_ms;
  return [p.compute_ms - overlapped, overlapped, p.exposed_ms].map((value, i) => [...parts[i], Math.max(0, value)]);
}

function policyRow(p, most, floor, isChosen) {
  const row = element("div", isChosen ? "policy chosen" : "policy");
  const track = element("div", "track"), bar = element("div", "bar");
  if (p.step_ms !== undefined)
    for (const [name, color, value] of partsOf(p)) {
      const piece = element("div");
      piece.style.width = 100 * value / most + "%";
      piece.style.background = color;
      piece.title = name + " " + ms(value);
      bar.append(piece);
    }
  track.append(bar);
  if (floor !== null) {
    const mark = element("div", "floor");
    mark.style.left = 100 * floor / most + "%";
    track.append(mark);
  }
  row.append(element("div", "", policyOf(p)), track,
             number(...(p.step_ms === undefined ? [p.status] : [ms(p.step_ms), p.network])));
  return row;
}

function drawPolicies(here, chosen, floor) {
  const most = Math.max(...here.map((p) => p.step_ms || 0), floor || 0) * 1.02 || 1;
  const key = legend(parts);
  if (floor !== null) key.append(element("span", "", "│ floor of whole operations"));
  const sorted = [...here].sort((a, b) => (a.step_ms ?? Infinity) - (b.step_ms ?? Infinity));
  const rows = sorted.map((p) => policyRow(p, most, floor, chosen.includes(p)));
  document.querySelector("#policies .card").replaceChildren(key, ...rows);
}

// A timeline is deflated JSON as base64: {names, kinds, rows: [[stream, [gap, length, name, kind, ...]]]}.
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(stream).text());
}

// Adds a policy's rows to a timeline as TimelineChart draws it.
function addRows(timeline, process, {names, kinds, rows}) {
  const [firstName, firstKind] = [timeline.names.length, timeline.kinds.length];
  timeline.names.push(...names);
  timeline.kinds.push(...kinds);
  for (const [stream, packed] of rows) {
    const events = [];
    let end = 0;
    for (let i = 0; i < packed.length; i += 4) {
      const begin = end + packed[i];
      end = begin + packed[i + 1];
      events.push(begin, packed[i + 1], firstName + packed[i + 2], firstKind + packed[i + 3]);
    }
    timeline.rows.push({process, stream: streams[stream], events});
  }
}

function button(text, action) {
  const made = element("button", "", text);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}

let drawing = 0;  // the number of the drawing under way: an older one that is still unpacking is dropped
async function drawTimeline(chosen) {
  const mine = ++drawing, card = document.querySelector("#timeline .card");
  const drawable = [...new Set(chosen)].filter(({id}) => timelines[id]);
  const found = await Promise.all(drawable.map(({id}) => unpacked(timelines[id])));
  if (mine !== drawing) return;
  if (!drawable.length) {
    const why = "No timeline is stored for these points: only simulated steps of even routing on 32 GPUs get one.";
    card.replaceChildren(element("p", "hint", why));
    return finish();
  }
  const timeline = {names: [], kinds: [], rows: []};
  drawable.forEach((p, i) => addRows(timeline, policyOf(p), found[i]));
  const buttons = element("div", "legend");
  card.replaceChildren(legend([...new Set(timeline.kinds)].map((kind) => [kind, kindColors[kind]])), buttons);
  const chart = new TimelineChart(card, timeline);
  chart.canvas.setAttribute("aria-label", "Simulated timeline of " + drawable.map(policyOf).join(" and "));
  const how = "Simulated. Drag, or arrow keys, to move; Ctrl and the wheel, or + and −, to zoom.";
  buttons.append(button("Closer", () => chart.zoom(0.5)), button("Wider", () => chart.zoom(2)),
                 button("Whole step", () => chart.all()), element("span", "", how));
  finish();
}

function drawCommands(chosen) {
  const commands = [...new Set(chosen)].filter((p) => p.command).map((p) => element("pre", "card", p.command));
  const none = element("p", "hint", "No plan alone gives these steps: they were run, or their routing is not even.");
  document.querySelector("#commands > div").replaceChildren(...(commands.length ? commands : [none]));
}

function finish() { document.documentElement.dataset.state = "drawn"; }

function draw() {
  document.documentElement.dataset.state = "drawing";
  const here = placeOfChoices(), chosen = chosenOf(here), floor = floorOf(here);
  drawStep(chosen, floor);
  drawPolicies(here, chosen, floor);
  drawCommands(chosen);
  drawTimeline(chosen);
}

function addControls() {
  const form = document.getElementById("pick");
  for (const {id, label} of [...facets, ...policies]) {
    const made = element("label", "", label), select = element("select");
    select.id = id;
    select.autocomplete = "off";
    select.addEventListener("change", () => {
      wanted[id] = select.value;
      draw();
      history.replaceState(null, "", "#" + new URLSearchParams(wanted));
    });
    made.append(select);
    form.append(made);
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  draw();
}

addControls();
const dark = matchMedia("(prefers-color-scheme: dark)");
document.getElementById("theme").addEventListener("click",
    () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
setTheme(dark.matches ? "dark" : "light");
