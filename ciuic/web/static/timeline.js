// Draws the curve of a field with the snapshots on it; the table on the page has the same.
"use strict";

const SHAPES = { whole: "circle", "in flux": "triangle", suspect: "square", damaged: "cross" };
const COLOURS = { whole: "--ok", "in flux": "--warning", suspect: "--suspect", damaged: "--problem" };
const NEAR_PX = 12;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function shape(context, kind, x, y, size) {
  context.beginPath();
  if (kind === "circle") context.arc(x, y, size, 0, 2 * Math.PI);
  else if (kind === "square") context.rect(x - size, y - size, 2 * size, 2 * size);
  else if (kind === "cross") {
    context.moveTo(x - size, y - size);
    context.lineTo(x + size, y + size);
    context.moveTo(x + size, y - size);
    context.lineTo(x - size, y + size);
    context.lineWidth = size / 2;
    context.stroke();
    return;
  } else {
    const down = kind === "diamond" ? [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]] : [[0, -1.2], [1.2, 1], [-1.2, 1]];
    down.forEach(([dx, dy], at) => context[at ? "lineTo" : "moveTo"](x + dx * size, y + dy * size));
    context.closePath();
  }
  // An edge in the color of the paper keeps it apart from the curve.
  context.strokeStyle = colour("--raised");
  context.lineWidth = 3 * devicePixelRatio;
  context.stroke();
  context.fill();
}

function sentence(marker) {
  const parts = [`step ${marker.step.toLocaleString("en")}`];
  if (marker.value !== null) parts.push(`value ${Number(marker.value.toPrecision(4))}`);
  parts.push(new Date(marker.taken).toLocaleString(), sized(marker.logical_bytes), marker.state);
  if (marker.pinned) parts.push("pinned");
  if (marker.placed_by === "stored") parts.push("placed by the log that it stores");
  return `${marker.id}: ${parts.join(", ")}`;
}

class Chart {
  constructor(place, timeline) {
    this.place = place;
    this.said = document.getElementById("chosen");
    this.markers = timeline.markers.filter((one) => one.step !== null).sort((a, b) => a.step - b.step);
    this.chosen = -1;
    const tables = timeline.curves.map((curve) => [curve.map(([x]) => x), curve.map(([, y]) => y)]);
    tables.push(...[Math.min, Math.max].map((choose) => this.extremes(choose)));
    this.data = uPlot.join(tables);
    this.count = timeline.curves.length;
    this.plot = new uPlot(this.options(), this.data, place);
    this.listen();
  }

  // Makes room for the snapshots: the value of one may be far from the curves.
  extremes(choose) {
    const found = new Map();
    this.markers.forEach(({ step, value }) => {
      const other = found.get(step) ?? value;
      found.set(step, value === null ? other : choose(value, other));
    });
    return [[...found.keys()], [...found.values()]];
  }

  options() {
    const axis = { stroke: () => colour("--soft"), grid: { stroke: () => colour("--line"), width: 1 } };
    const room = { stroke: "transparent", points: { show: false } };
    const curve = { stroke: () => colour("--accent"), width: 1.5, spanGaps: true, points: { show: this.data[0].length < 200 } };
    return {
      width: Math.max(240, this.place.clientWidth),
      height: 340,
      legend: { show: false },
      scales: { x: { time: false } },
      axes: [{ ...axis, label: "step" }, { ...axis, size: 64 }],
      series: [{}, ...Array.from({ length: this.count }, () => ({ ...curve })), room, room],
      cursor: { drag: { x: true, y: false } },
      hooks: {
        draw: [(plot) => this.drawMarkers(plot)],
        setCursor: [(plot) => this.hover(plot)],
      },
    };
  }

  at(plot, marker, onCanvas) {
    const x = plot.valToPos(marker.step, "x", onCanvas);
    const bottom = onCanvas ? plot.bbox.top + plot.bbox.height : plot.over.clientHeight;
    return [x, marker.value === null ? bottom : plot.valToPos(marker.value, "y", onCanvas)];
  }

  drawMarkers(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    const size = 4.5 * devicePixelRatio;
    this.markers.forEach((marker, at) => {
      const [x, y] = this.at(plot, marker, true);
      if (x < bbox.left || x > bbox.left + bbox.width) return;
      const pinned = marker.pinned && marker.state === "whole";
      ctx.fillStyle = ctx.strokeStyle = colour(pinned ? "--ink" : COLOURS[marker.state]);
      shape(ctx, pinned ? "diamond" : SHAPES[marker.state], x, y, at === this.chosen ? 1.8 * size : size);
    });
    ctx.restore();
  }

  nearest(plot) {
    const left = plot.cursor.left;
    if (left === null || left < 0) return -1;
    let best = -1;
    let least = NEAR_PX;
    this.markers.forEach((marker, at) => {
      const apart = Math.abs(plot.valToPos(marker.step, "x") - left);
      if (apart <= least) [best, least] = [at, apart];
    });
    return best;
  }

  hover(plot) {
    const found = this.nearest(plot);
    plot.over.style.cursor = found < 0 ? "" : "pointer";
    if (found >= 0) this.choose(found);
  }

  choose(at) {
    if (at === this.chosen) return;
    this.chosen = at;
    this.said.textContent = sentence(this.markers[at]);
    this.plot.redraw(false);
  }

  open(at) {
    if (at >= 0) location.assign(`/snapshots/${this.markers[at].id}`);
  }

  zoom(factor) {
    const { min, max } = this.plot.scales.x;
    const marker = this.markers[this.chosen];
    const middle = marker && marker.step >= min && marker.step <= max ? marker.step : (min + max) / 2;
    const half = ((max - min) * factor) / 2;
    this.plot.setScale("x", { min: middle - half, max: middle + half });
  }

  all() {
    const steps = this.data[0];
    this.plot.setScale("x", { min: steps[0], max: steps[steps.length - 1] });
  }

  key(event) {
    const last = this.markers.length - 1;
    const does = {
      ArrowLeft: () => last >= 0 && this.choose(Math.max(0, this.chosen < 0 ? last : this.chosen - 1)),
      ArrowRight: () => last >= 0 && this.choose(Math.min(last, this.chosen + 1)),
      Home: () => last >= 0 && this.choose(0),
      End: () => last >= 0 && this.choose(last),
      Enter: () => this.open(this.chosen),
      "+": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.all(),
    }[event.key];
    if (does === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    does();
  }

  listen() {
    this.place.addEventListener("keydown", (event) => this.key(event));
    let pressed = 0;
    this.plot.over.addEventListener("mousedown", (event) => { pressed = event.clientX; });
    this.plot.over.addEventListener("click", (event) => {
      if (Math.abs(event.clientX - pressed) < 4) this.open(this.nearest(this.plot));
    });
    new ResizeObserver(() => {
      this.plot.setSize({ width: Math.max(240, this.place.clientWidth), height: 340 });
    }).observe(this.place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.plot.redraw(false));
  }
}

const place = document.querySelector("[data-timeline]");
if (place !== null) {
  ask("GET", place.dataset.timeline).then((timeline) => new Chart(place, timeline), fail);
}
