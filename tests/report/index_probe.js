// Runs behind the results page's own script, in a frame of the test's width, and sends the test what the page shows for
// each of the test's choices: /*choices*/.
"use strict";

const charts = [];
const PlainChart = TimelineChart;
TimelineChart = class extends PlainChart {
  constructor(...given) {
    super(...given);
    charts.push(this);
  }
};

const all = (selector) => [...document.querySelectorAll(selector)];
const pause = () => new Promise((resolve) => setTimeout(resolve, 100));

function coloredShare(canvas) {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let i = 0; i < pixels.length; i += 4) {
    const [r, g, b, a] = pixels.subarray(i, i + 4);
    count += a > 128 && Math.max(r, g, b) - Math.min(r, g, b) > 40;
  }
  return count / (canvas.width * canvas.height);
}

async function drawn() {
  do await pause(); while (document.documentElement.dataset.state === "drawing");
}

function whatIsShown() {
  const root = document.documentElement, failure = document.getElementById("failure");
  const canvas = document.querySelector("#timeline canvas");
  const textsOf = (cells) => [...cells].map(({textContent}) => textContent);
  return {
    width: innerWidth,
    state: root.dataset.state,
    theme: root.dataset.theme,
    failure: failure.hidden ? "" : failure.textContent,
    wider: root.scrollWidth - root.clientWidth,
    options: Object.fromEntries(all("select").map(({id, options}) => [id, [...options].map(({text}) => text)])),
    values: Object.fromEntries(all("select").map(({id, value}) => [id, value])),
    table: Object.fromEntries(all("#step tbody tr").map(({cells: [title, ...rest]}) => [title.textContent, textsOf(rest)])),
    comparison: document.querySelector("#step .hint").textContent,
    policies: all("#policies .policy").map((row) => textsOf(row.children).filter(Boolean)),
    tracks: all("#policies .track").map(({offsetWidth}) => offsetWidth),
    cut: document.querySelector("#step .wide").scrollWidth - document.querySelector("#step .wide").clientWidth,
    hidden: all("#pick label[hidden]").map(({offsetWidth, firstChild}) => [firstChild.textContent, offsetWidth]),
    floors: all("#policies .floor").map(({style}) => parseFloat(style.left)),
    pieces: all("#policies .policy.chosen .bar").map((bar) => [...bar.children].map(({title}) => title)),
    timeline: canvas ? charts.at(-1).timeline : null,
    colored: canvas ? coloredShare(canvas) : 0,
    hint: document.querySelector("#timeline").innerText,
    commands: all("#commands pre").map(({textContent}) => textContent),
    address: location.hash,
  };
}

// The views of the timeline after each key.
function viewsAfter(keys) {
  const chart = charts.at(-1);
  return keys.map((key) => {
    chart.canvas.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
    return [chart.view.from, chart.view.to];
  });
}

async function look() {
  await drawn();
  draw();  // once more, so that the chart is one that this script knows
  await drawn();
  const seen = {width: innerWidth, first: whatIsShown(), focusable: charts.at(-1).canvas.tabIndex};
  seen.views = viewsAfter(["+", "ArrowRight", "-", "Home"]);
  seen.chosen = [];
  for (const choices of /*choices*/) {
    for (const [id, value] of Object.entries(choices)) {
      const select = document.getElementById(id);
      select.value = value;
      select.dispatchEvent(new Event("change"));
    }
    await drawn();
    seen.chosen.push(whatIsShown());
  }
  parent.postMessage(JSON.stringify(seen), "*");
}
look();
