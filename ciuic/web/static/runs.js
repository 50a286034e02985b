// Draws the curves of runs over each other; the table on the page has the same.
"use strict";

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A dash tells two runs apart for those who cannot by the color.
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];

function draw(place, comparison) {
  const tables = comparison.runs.map(({ curve }) => [curve.map(([x]) => x), curve.map(([, y]) => y)]);
  const axis = { stroke: () => colour("--soft"), grid: { stroke: () => colour("--line"), width: 1 } };
  const size = () => ({ width: Math.max(240, place.clientWidth), height: 340 });
  const series = comparison.runs.map(({ run, curve }, at) => ({
    label: run,
    stroke: () => colour(`--run-${at % 6}`),
    dash: DASHES[Math.floor(at / 6) % DASHES.length],
    width: 1.8,
    spanGaps: true,
    points: { show: curve.length < 100 },
  }));
  const plot = new uPlot({
    ...size(),
    legend: { show: false },
    scales: { x: { time: false } },
    axes: [{ ...axis, label: "step" }, { ...axis, size: 64 }],
    series: [{}, ...series],
    cursor: { drag: { x: true, y: false } },
  }, uPlot.join(tables), place);
  new ResizeObserver(() => plot.setSize(size())).observe(place);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot.redraw(false));
}

const place = document.querySelector("[data-runs]");
if (place !== null) {
  uplotFor(place).then(() => ask("GET", `/v1/runs/compare${location.search}`)).then((found) => draw(place, found), fail);
}
