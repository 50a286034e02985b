// Starts jobs, follows them, and copies command lines. All else on the page works without it.
"use strict";

const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function sized(bytes) {
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${unit && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${units[unit]}`;
}

// Text with an escape for each character that cannot be seen, or that moves others: as the server writes it.
function shown(text) {
  return text.replace(/(?! )[\p{C}\p{Z}]/gu, (char) => {
    const number = char.codePointAt(0);
    const named = { "\n": "\\n", "\r": "\\r", "\t": "\\t" }[char];
    if (named !== undefined) return named;
    if (number >= 0xdc80 && number <= 0xdcff) return `\\x${(number - 0xdc00).toString(16)}`;
    const [letter, digits] = number < 0x100 ? ["x", 2] : number < 0x10000 ? ["u", 4] : ["U", 8];
    return `\\${letter}${number.toString(16).padStart(digits, "0")}`;
  });
}

const AWAY = { message: "'ciuic web' does not answer", hint: "It has ended, or the connection is gone." };

function fail(error) {
  const place = document.getElementById("failed");
  place.textContent = shown(error.hint ? `${error.message}. ${error.hint}` : error.message);
  place.hidden = false;
  place.scrollIntoView({ block: "nearest" });
}

async function ask(method, address, body) {
  let answer;
  try {
    answer = await fetch(address, {
      method,
      headers: { "X-Ciuic": "1", "Content-Type": "application/json" },
      body,
    });
  } catch {
    throw AWAY;
  }
  const found = await answer.json();
  if (!answer.ok) throw found.error;
  return found;
}

// Returns when the page is on the screen, or after a moment: a page in the background is never painted.
function painted() {
  return new Promise((done) => {
    const seen = (list) => { if (list.getEntriesByName("first-contentful-paint").length) done(); };
    new PerformanceObserver(seen).observe({ type: "paint", buffered: true });
    setTimeout(done, 3000);
  });
}

// Loads what draws a chart, after the first paint: running it takes longer than the rest of the page.
async function uplotFor(place) {
  await painted();
  const script = Object.assign(document.createElement("script"), { src: place.dataset.script });
  const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: place.dataset.style });
  await Promise.all([script, style].map((element) => new Promise((done, failed) => {
    element.addEventListener("load", done);
    element.addEventListener("error", () => failed(AWAY));
    document.head.append(element);
  })));
}

// The job of a form: its fixed part, with the fields that the user has filled in.
function jobOf(element) {
  const job = JSON.parse(element.dataset.job);
  if (element instanceof HTMLFormElement) {
    for (const field of element.querySelectorAll("input[name]")) {
      if (field.type === "checkbox") job[field.name] = field.checked;
      else if (field.dataset.list !== undefined) job[field.name] = [field.value];
      else if (field.value !== "") job[field.name] = field.value;
    }
  }
  // Lone surrogates stay as escapes: they are bytes of a path that are not UTF-8.
  return JSON.stringify(job);
}

async function start(element) {
  const buttons = element.matches("button") ? [element] : element.querySelectorAll("button");
  for (const button of buttons) button.disabled = true;
  try {
    const job = await ask("POST", "/v1/jobs", jobOf(element));
    location.assign(`/jobs/${job.id}`);
  } catch (error) {
    fail(error);
    for (const button of buttons) button.disabled = false;
  }
}

function follow(place) {
  const source = new EventSource(place.dataset.events);
  const bar = place.querySelector("progress");
  const part = (name) => place.querySelector(`[data-progress=${name}]`);
  source.addEventListener("running", (event) => {
    const { progress } = JSON.parse(event.data);
    part("files").textContent = progress.files.toLocaleString("en");
    const total = progress.total_bytes ? ` of ${sized(progress.total_bytes)}` : "";
    part("bytes").textContent = sized(progress.done_bytes) + total;
    part("path").textContent = shown(progress.path);
    if (progress.total_bytes) {
      bar.max = progress.total_bytes;
      bar.value = progress.done_bytes;
    }
  });
  for (const state of ["done", "failed", "cancelled"]) {
    source.addEventListener(state, () => {
      source.close();
      location.reload();
    });
  }
}

document.addEventListener("submit", (event) => {
  if (event.target.dataset.job !== undefined) {
    event.preventDefault();
    start(event.target);
  }
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button === null) return;
  if (button.dataset.job !== undefined) start(button);
  else if (button.dataset.stop !== undefined) {
    button.disabled = true;
    ask("DELETE", button.dataset.stop).catch(fail);
  } else if (button.dataset.copy !== undefined) {
    navigator.clipboard.writeText(button.dataset.copy).then(
      () => { button.textContent = "Copied"; },
      () => fail({ message: "The browser does not allow copying", hint: "" }),
    );
  }
});

document.addEventListener("keydown", (event) => {
  if (event.target instanceof HTMLInputElement) return;
  const field = document.querySelector(`[data-focus="${CSS.escape(event.key)}"]`);
  if (field !== null) {
    event.preventDefault();
    field.focus();
  }
});

for (const place of document.querySelectorAll("[data-events]")) follow(place);
