// Draws the curve of a field with the snapshots on it; the table on the page has the same.
"use strict";

const SHAPES = { whole: "circle", "in flux": "triangle", suspect: "square", damaged: "cross" };
const COLOURS = { whole: "--ok", "in flux": "--warning", suspect: "--suspect", damaged: "--problem" };
const NEAR_PX = 12;
const TURNS = 2 * Math.PI;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Adds a shape to the path of a context.
function outline(context, kind, x, y, size) {
  if (kind === "circle") {
    context.moveTo(x + size, y);
    context.arc(x, y, size, 0, TURNS);
  } else if (kind === "square") context.rect(x - size, y - size, 2 * size, 2 * size);
  else if (kind === "cross") {
    context.moveTo(x - size, y - size);
    context.lineTo(x + size, y + size);
    context.moveTo(x + size, y - size);
    context.lineTo(x - size, y + size);
  } else {
    const down = kind === "diamond" ? [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]] : [[0, -1.2], [1.2, 1], [-1.2, 1]];
    down.forEach(([dx, dy], at) => context[at ? "lineTo" : "moveTo"](x + dx * size, y + dy * size));
    context.closePath();
  }
}

function looks(marker) {
  const pinned = marker.pinned && marker.state === "whole";
  return pinned ? { kind: "diamond", name: "--ink" } : { kind: SHAPES[marker.state], name: COLOURS[marker.state] };
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
    // Those that matter most are drawn last: a chart may have 10,000, one over the other.
    const states = Object.keys(SHAPES);
    const rank = (marker) => 2 * states.indexOf(marker.state) + Number(marker.pinned);
    this.drawn = [...this.markers].sort((a, b) => rank(a) - rank(b));
    this.ring = document.createElement("div");
    this.ring.className = "ring";
    this.ring.hidden = true;
    this.plot = new uPlot(this.options(), this.data, place);
    this.plot.over.append(this.ring);
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

  // All of a kind at once, in the order of their weight: the edges first, so that none hides a neighbor.
  drawMarkers(plot) {
    const { ctx, bbox } = plot;
    const size = 4.5 * devicePixelRatio;
    const kinds = new Map();
    this.drawn.forEach((marker) => {
      const [x, y] = this.at(plot, marker, true).map(Math.round);
      if (x < bbox.left || x > bbox.left + bbox.width) return;
      const { kind, name } = looks(marker);
      const found = kinds.get(name) ?? kinds.set(name, { kind, places: new Map() }).get(name);
      found.places.set(`${x} ${y}`, [x, y]);
    });
    const shown = [...kinds.values()].reduce((sum, { places }) => sum + places.size, 0);
    const edge = (shown * size > bbox.width ? 1 : 3) * devicePixelRatio;
    ctx.save();
    kinds.forEach(({ kind, places }, name) => {
      ctx.beginPath();
      places.forEach(([x, y]) => outline(ctx, kind, x, y, size));
      ctx.fillStyle = colour(name);
      ctx.strokeStyle = kind === "cross" ? ctx.fillStyle : colour("--raised");
      ctx.lineWidth = kind === "cross" ? size / 2 : edge;
      ctx.stroke();
      if (kind !== "cross") ctx.fill();
    });
    ctx.restore();
    this.encircle();
  }

  // A ring of its own: drawing all markers again at each step of the mouse would stall.
  encircle() {
    const marker = this.markers[this.chosen];
    if (marker === undefined || this.plot === undefined) return;
    const [x, y] = this.at(this.plot, marker, false);
    this.ring.hidden = x < 0 || x > this.plot.over.clientWidth;
    this.ring.style.left = `${x}px`;
    this.ring.style.top = `${y}px`;
  }

  nearest(plot) {
    const left = plot.cursor.left;
    if (left === null || left < 0 || !this.markers.length) return -1;
    const step = plot.posToVal(left, "x");
    let [low, high] = [0, this.markers.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.markers[middle].step < step) low = middle + 1;
      else high = middle;
    }
    const apart = (at) => Math.abs(plot.valToPos(this.markers[at].step, "x") - left);
    const near = [low - 1, low].filter((at) => at >= 0 && at < this.markers.length);
    const best = near.reduce((one, other) => (apart(other) < apart(one) ? other : one));
    return apart(best) <= NEAR_PX ? best : -1;
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
    this.encircle();
  }

  open(at) {
    if (at >= 0) location.assign(`/snapshots/${this.markers[at].id}`);
  }

  zoom(factor) {
    const { min, max } = this.plot.scales.x;
    const marker = this.markers[this.chosen];
    const middle = marker && marker.step >= min && marker.step <= max ? marker.step : (min + max) / 2;
    const half = ((max - min) * factor) / 2;
    const [first, last] = [this.data[0][0], this.data[0][this.data[0].length - 1]];
    if (2 * half >= last - first) return this.all();
    const begin = Math.min(Math.max(middle - half, first), last - 2 * half);
    this.plot.setScale("x", { min: begin, max: begin + 2 * half });
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
  uplotFor(place).then(() => ask("GET", place.dataset.timeline)).then((timeline) => new Chart(place, timeline), fail);
}
