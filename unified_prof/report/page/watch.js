// Page of a watched run: step time, parts, memory, ranks and events. A live page fetches them again.

const REFRESH_MS = 2000;
const PART_COLORS = { "data loading": "idle-input", forward: "compute", backward: "gradient", optimizer: "copy", "host wait": "idle-synchronising", other: "rest" };
UNIT_WORDS.ns = words.duration;

let shownData = page;
let zoomed = null;
let state = page.live ? "refreshed while the run goes on" : "";

const chosenRank = (run) => run.ranks.find((one) => one.rank === run.slowest_rank) ?? run.ranks[0];
const orRunning = (one) => (one.is_running ? "running" : one.exit_code === null ? "killed" : one.exit_code === 130 ? "interrupted" : `exit code ${one.exit_code}`);

function watchFigures(run) {
  const one = chosenRank(run);
  const found = [figure("Steps", words.count(one.steps), orRunning(one), String(one.steps), "steps")];
  if (one.length) {
    found.push(figure("Step", words.duration(one.length.median_ns), `median; p90 ${words.duration(one.length.p90_ns)}`, `${one.length.median_ns} ns`, "median_ns"));
    found.push(figure("Longest step", words.duration(one.length.max_ns), "", `${one.length.max_ns} ns`, "max_ns"));
  }
  if (one.length?.first_ns) found.push(figure("Drift", `${(100 * (one.length.last_ns / one.length.first_ns - 1)).toFixed(1)} %`, `from ${words.duration(one.length.first_ns)}`, "", "drift"));
  if (one.samples_per_second !== null) found.push(figure("Samples per second", words.count(Math.round(one.samples_per_second)), "", String(one.samples_per_second), "rate"));
  if (one.memory) {
    const growth = one.memory.growth_per_1000_steps_bytes;
    found.push(figure("Memory", words.size(one.memory.last_bytes), growth === null ? "" : `${growth < 0 ? "-" : "+"}${words.size(Math.abs(growth))} per 1,000 steps`, `${one.memory.last_bytes} bytes`, "memory"));
  }
  return make("div", { class: "figures" }, ...found);
}

function lineSection(chart, title, view) {
  const lines = shownData.lines.filter((line) => line.chart === chart && anything(line));
  return lines.length ? chartSection(chart, title, lines, view) : null;
}

function partsSection(run) {
  const one = chosenRank(run);
  if (!one.clocks.length) return null;
  const section = card("mean-step", `Mean step${run.ranks.length > 1 ? ` of rank ${one.rank}` : ""}`);
  section.append(...one.clocks.map(({ clock, step_ns: step, parts_ns: parts }) => strip(`by the clock of the ${clock}`, step,
    Object.entries(parts).map(([name, value]) => ({ name, value, color: PART_COLORS[name] })), words.duration)));
  return section;
}

function ranksSection(run) {
  if (run.ranks.length < 2) return null;
  const rows = run.ranks.filter((one) => one.length).map((one) => ({ rank: one.rank, steps: one.steps, median: one.length.median_ns, p90: one.length.p90_ns, memory: one.memory?.last_bytes ?? null, state: orRunning(one) }));
  const duration = { kind: "number", show: words.duration, exact: (value) => `${value} ns` };
  const columns = [
    { key: "rank", label: "rank", kind: "number", show: String, exact: String },
    { key: "steps", label: "steps", kind: "number", show: words.count, exact: String },
    { key: "median", label: "median", ...duration },
    { key: "p90", label: "p90", ...duration },
    { key: "memory", label: "memory", kind: "number", show: words.size, exact: (value) => `${value} bytes` },
    { key: "state", label: "state", kind: "text", second: true },
  ];
  const table = sortableTable("Ranks", columns, rows, { search: "", key: "median", descending: true, all: false }, announce);
  table.draw();
  const section = card("ranks", "Ranks");
  section.append(table.element);
  return section;
}

/** Captures are linked on a live page, whose server has their pages. */
function captureOf(event) {
  if (!event.capture) return null;
  const link = page.live && event.status === "ready" && /^captures\/[\w.-]+$/.test(event.capture);
  return make("div", { class: "small soft" }, link ? make("a", { href: event.capture, text: event.capture }) : event.capture, `: ${event.finding ?? event.status}`);
}

function eventsSection(run) {
  const events = run.ranks.flatMap((one) => one.events.map((event) => ({ ...event, rank: one.rank }))).sort((a, b) => b.time_ns - a.time_ns);
  if (!events.length) return null;
  const section = card("events", "Events, the latest first");
  section.append(make("ul", { class: "remarks" }, ...events.slice(0, 100).map((event) => make("li", {},
    make("span", { class: "missing", text: `${run.ranks.length > 1 ? `rank ${event.rank}, ` : ""}step ${words.count(event.step)}` }), event.text, captureOf(event)))));
  return section;
}

function watchView() {
  const { run, span_ns: span } = shownData;
  const view = makeView(span);
  if (zoomed) view.look(...zoomed);
  view.follow(() => { zoomed = view.from === view.whole[0] && view.to === view.whole[1] ? null : [view.from, view.to]; });
  const first = chosenRank(run);
  const intro = make("header", { class: "intro" },
    make("h1", { text: `${run.path}: watched run` }),
    make("p", { id: "headline", text: run.headline }),
    make("p", { class: "small", id: "try-first", text: `Try first: ${run.try_first}${run.capture ? ` (${run.capture})` : ""}` }),
    state ? make("p", { class: "small soft", id: "state", text: `${orRunning(first)}; ${state}` }) : null);
  return [intro, watchFigures(run), lineSection("steps", "Step time", view), partsSection(run), lineSection("parts", `Parts over time${run.ranks.length > 1 ? `, rank ${first.rank}` : ""}`, view),
    lineSection("memory", "Memory over time", view), ranksSection(run), eventsSection(run)].filter(Boolean);
}

const showWatched = startPage(null, watchView, page.live ? "Served from this machine." : undefined);

/** Draw again, and keep the pressed buttons and the focus. */
function drawAgain() {
  const all = (selector) => [...document.querySelectorAll(`main ${selector}`)];
  const pressed = all(".legend button").map((one) => one.getAttribute("aria-pressed"));
  const focused = all("a, button").indexOf(document.activeElement);
  showWatched();
  const buttons = all(".legend button");
  if (buttons.length === pressed.length) buttons.forEach((one, at) => { if (one.getAttribute("aria-pressed") !== pressed[at]) one.click(); });
  if (focused >= 0) all("a, button")[focused]?.focus({ preventScroll: true });
}

async function refresh() {
  try {
    const answer = await fetch(window.location.pathname);
    if (!answer.ok) throw new Error(answer.statusText);
    const fetched = new DOMParser().parseFromString(await answer.text(), "text/html");
    shownData = JSON.parse(fetched.getElementById("data").textContent);
  } catch {
    state = "uprof view has ended: this page is no longer refreshed";
    drawAgain();
    return;
  }
  const goesOn = shownData.run.ranks.some((one) => one.is_running);
  if (!goesOn) state = "the run has ended";
  drawAgain();
  if (goesOn || shownData.run.ranks.some((one) => one.events.some((event) => event.status === "converting"))) setTimeout(refresh, REFRESH_MS);
}

if (page.live) setTimeout(refresh, REFRESH_MS);
