// Report page: findings, headline figures, then their breakdowns.

const CLOCKS = { device: "Device work", host: "Host time", operation: "Operations", none: "Time" };
/** Minimum share of kernel time with known shapes for a rate, as in texts. */
const RATED_SHARE = 0.5;
function figures(report) {
  const { totals, devices, clock, launch_delay: delay } = report.figures;
  const found = [];
  const add = (what, key, note) => {
    const value = totals[key];
    if (value !== null) found.push(figure(what, words.of(key, value), note, words.exactly(key, value), key));
  };
  const part = (value) => (value === null || !totals.total_ns ? "" : `${words.percent((100 * value) / totals.total_ns)} of ${CLOCKS[clock].toLowerCase()}`);
  if (totals.iteration_ns !== null) add(devices.length ? "Step" : "Iteration", "iteration_ns", totals.iterations === 1 ? "n = 1" : `median${totals.iteration_p90_ns === null ? "" : `; ${totals.iterations > 9 ? "p90" : "max"} ${words.duration(totals.iteration_p90_ns)}`} (n = ${words.count(totals.iterations)})`);
  const run = clock === "operation" ? totals.iteration_ns - (totals.iteration_waited_ns ?? 0) : 0; // of which rows are shares
  const share = run > totals.total_ns ? `; ${words.percent((100 * totals.total_ns) / run)} of an iteration${totals.iteration_waited_ns ? " without waits" : ""} (${words.duration(run)})` : "";
  const stepped = clock === "device" && devices.some((one) => one.steps);
  const within = (stepped ? " of the whole recording" : "") + (clock === "device" && devices.length > 1 ? ` on ${devices.length} devices` : "");
  add(CLOCKS[clock], "total_ns", `${words.count(totals.count)} calls${within}${share}`);
  add("Forward", "forward_ns", part(totals.forward_ns));
  add("Backward", "backward_ns", part(totals.backward_ns));
  add("Optimizer and other", "other_ns", part(totals.other_ns));
  const passes = [totals.forward_ns, totals.backward_ns, totals.recomputed_ns, totals.other_ns].filter((one) => one !== null);
  const rest = passes.length ? totals.total_ns - passes.reduce((sum, one) => sum + one, 0) : 0;
  if (rest >= 0.001 * totals.total_ns && rest) found.push(figure("Unattributed", words.duration(rest), part(rest), `${rest} ns`, "rest_ns"));
  const summed = report.figures.memory.some((one) => /^allocated .*[+]/.test(one.name)); // The chart has sums of allocators, too.
  add("Peak memory", "peak_bytes", summed ? "PyTorch's allocator only" : "");
  for (const device of devices.slice(0, 1)) {
    const of = device.steps ?? device;
    const why = report.figures.why_idle.find((one) => one.device === device.device && one.step === null);
    const idle = of.idle_ns - (why?.unrecorded_ns ?? 0);
    found.push(figure(device.steps ? "Idle in steps" : "Idle in window", words.percent((100 * idle) / Math.max(1, of.window_ns)), `${words.duration(idle)} of the ${device.steps ? "steps" : "window"}`, `${idle} ns`, "idle_ns"));
  }
  for (const use of (report.figures.model_use ?? []).slice(0, 1)) {
    if (use.known_share < RATED_SHARE) { // A rate over the whole time would be that of a part of the work.
      found.push(figure("Compute", words.flops(use.flops), `in the ${words.percent(100 * use.known_share)} of kernel time with known shapes`, `${use.flops} FLOP`, "model_use"));
      continue;
    }
    const rate = `${words.flops((use.flops / use.time_ns) * 1e9)}/s`;
    const within = use.steps === null ? "of the window" : "of the steps";
    const known = use.share === null ? rate : words.percent(100 * use.share);
    found.push(figure(use.share === null ? "Compute rate" : "MFU", known, `${words.flops(use.flops)}, ${rate} ${within}${use.peak ? `, peak ${use.peak} TFLOP/s` : ""}`, `${use.flops} FLOP`, "model_use"));
  }
  if (delay) found.push(figure("Launch to start", words.duration(delay.median_ns), `median, with queueing; p90 ${words.duration(delay.p90_ns)}`, `${delay.median_ns} ns`, "launch_delay"));
  return found.length ? make("div", { class: "figures" }, ...found) : null;
}

const ITERATION_COLORS = {
  data_loading: "idle-input", forward: "compute", backward: "gradient", recomputation: "communication", optimizer: "copy",
  gradient_clipping: "idle-launched", zero_grad: "idle-stream", forward_without_gradients: "activation", compilation: "idle-unknown", saving: "idle-communication", synchronizing_reads: "idle-synchronising", other: "rest", waiting_for_cpu: "idle-host",
};
const MEMORY_COLORS = { weights: "weight", "optimizer state": "communication", gradients: "gradient", activations: "activation" };

function splitSection(report) {
  const { devices, totals } = report.figures;
  const strips = devices.map((device) => {
    const one = device.steps ?? device;
    const overlap = one.overlap_ns ?? 0;
    // The parts of the strip do not overlap: exposed communication, then the overlapped one.
    const communication = one.communication_ns === null ? null : one.communication_ns - overlap;
    const copies = one.busy_ns - one.compute_ns - (communication ?? 0);
    return strip(`${device.device}, ${device.steps ? "in its steps" : "window"}`, one.window_ns, [
      { name: one.communication_ns === null ? "compute" : "compute (with overlap)", value: one.compute_ns, color: "compute" },
      { name: "exposed communication", value: communication, color: "communication" },
      { name: "exposed copies", value: copies, color: "copy" },
      ...idleParts(report, device.device, one.idle_ns),
      { name: "overlapped communication", value: one.overlap_ns, color: "", within: true },
    ], words.duration);
  });
  const named = (parts, colors) => Object.entries(parts).map(([name, value]) => ({ name: name === "other" ? "other code" : name.replaceAll("_", " ").replace("cpu", "CPU"), value, color: colors[name] ?? "rest" }));
  const steps = Object.keys(totals.iteration_parts_ns).length && !devices.length;
  if (steps) strips.push(strip("median iteration", totals.iteration_ns, named(totals.iteration_parts_ns, ITERATION_COLORS), words.duration));
  const peak = named(totals.peak_parts_bytes, MEMORY_COLORS);
  const known = ["weight", "gradient", "activation"].filter((name) => totals[`${name}_bytes`] !== null);
  if (peak.length) strips.push(strip("peak memory", totals.peak_bytes, peak, words.size));
  else if (known.length) {
    const sizes = known.map((name) => ({ name: `${name}s`, value: totals[`${name}_bytes`], color: name }));
    strips.push(strip("memory", sizes.reduce((total, one) => total + one.value, 0), sizes, words.size));
  }
  if (!strips.length) return null;
  const section = card("split", devices.length ? "Device time" : steps ? "Time and memory" : "Memory");
  section.append(...strips);
  return section;
}

/** Findings by cost: text, advice, and evidence; a click on a name searches the timeline. */
function adviceSection(report) {
  const { advice } = report.figures;
  if (!advice || !(advice.findings.length || advice.judged.length)) return null;
  const section = card("advice", "Findings");
  const notes = report.advice_notes.map((text) => make("p", { class: "small soft" }, ...prose(text)));
  if (!advice.findings.length) {
    section.append(make("p", { text: `${[`No findings: none of ${words.count(advice.judged.length)} rules applies`, ...report.composition].join("; ")}.` }), ...notes);
    return section;
  }
  const most = Math.max(1e-9, ...advice.findings.map((one) => one.cost_ms_per_step));
  section.append(make("ol", { class: "findings" }, ...advice.findings.map((one) => findingRow(report, one, most))));
  const priced = advice.findings.filter((one) => one.cost_ms_per_step);
  if (advice.together_ms && priced.length > 1) {
    const share = advice.step_ms ? ` (${words.percent((100 * advice.together_ms) / advice.step_ms)})` : "";
    section.append(make("p", { class: "small soft", text: `All together save up to ${words.duration(advice.together_ms * 1e6)}${advice.steps ? " per step" : ""}${share}.` }));
  }
  section.append(...notes);
  return section;
}

function findingRow(report, finding, most) {
  const { step_ms: step, steps, statistic } = report.figures.advice;
  const isSum = steps > 1 && statistic === "average" && !["slow_steps", "steps_grow", "kernels_slow_down"].includes(finding.kind);
  const cost = finding.cost_ms_per_step;
  // The cost has its own place, and a prefix of the text is used as the title.
  const text = finding.text.split("; ").filter((one) => !cost || !one.startsWith("saves ")).join("; ");
  const [, title, rest] = /^([a-z][\w -]{2,30}): (.*)$/.exec(text) ?? [null, finding.kind.replaceAll("_", " "), text];
  const share = step && cost ? `${words.percent((100 * cost) / step)} of ${steps ? "a step" : "the recorded time"}` : "";
  return make("li", {},
    make("div", { class: "cost" },
      make("strong", { text: cost ? `${words.duration(cost * 1e6)}${steps ? "/step" : ""}` : text.includes("only together") ? "no saving alone" : "saving unknown" }),
      make("div", { class: "meter" }, make("span", { style: { width: `${(100 * cost) / most}%` } })),
      make("div", { class: "small soft", text: [share, finding.sure].filter(Boolean).join(", ") })),
    make("div", {},
      make("strong", { text: title }),
      title === finding.kind ? null : make("span", { class: "small soft", text: ` [${finding.kind}]` }),
      make("div", {}, ...prose(rest)),
      finding.advice ? make("div", { class: "soft" }, "Try: ", ...prose(finding.advice)) : null,
      finding.evidence.length ? make("details", {}, make("summary", { class: "small", text: `Evidence${isSum ? ` in ${steps} steps` : ""} (${words.count(finding.evidence.length)})` }),
        evidenceTable(report, finding.evidence)) : null));
}

function evidenceTable(report, rows) {
  const columns = [["count", "count"], ["total_ns", "total"], ["operation", "operation"], ["line", "line"], ["next", "next"]]
    .filter(([key]) => rows.some((row) => row[key] !== undefined));
  const tone = (key) => (key === "count" || key === "total_ns" ? null : "text");
  const short = new Map((report.figures.breakdowns.kernel?.rows ?? []).map((row) => [row.name, row.short]));
  return make("table", { class: "evidence" },
    make("thead", {}, make("tr", {}, make("th", { class: "text", text: "name" }), ...columns.map(([key, title]) => make("th", { class: tone(key), text: title })))),
    make("tbody", {}, ...rows.map((row) => make("tr", {},
      make("td", { class: "text" }, (report.timeline || report.host) && !row.name.startsWith("(")
        ? make("button", { type: "button", class: "plain mono", title: "Search the timeline", text: short.get(row.name) ?? row.name, on: { click: () => searchTimeline(row.name.replace(/^before /, "")) } })
        : row.name),
      ...columns.map(([key]) => make("td", { class: key === "line" ? "text line" : tone(key) }, ...(tone(key) ? highlighted(row[key] ?? "", "") : [words.of(key, row[key])])))))));
}

function searchTimeline(text) {
  const input = document.getElementById("find");
  input.value = text;
  input.dispatchEvent(new Event("input"));
  document.getElementById("timeline").scrollIntoView();
  input.focus({ preventScroll: true });
}

/** Text with parts in backticks as code; numbers keep their units. */
function prose(text) {
  return unbroken(text).split("`").map((part, number) => (number % 2 ? make("code", { text: part }) : part));
}

function remarksSection(report) {
  const { anomalies, not_measured: missing } = report.figures;
  if (!anomalies.length && !missing.length) return null;
  const section = card("remarks", "Warnings");
  section.append(make("ul", { class: "remarks" },
    ...anomalies.map((one) => make("li", {},
      make("span", { class: "odd", text: one.count === 1 ? "warning" : `warning, ${words.count(one.count)} times` }),
      `${one.words}${one.detail ? `: ${one.detail}` : ""}`)),
    ...missing.map((one) => make("li", {}, make("span", { class: "missing", text: "not measured" }), `${one.what}: ${one.why}`))));
  return section;
}

/** Missing reports, above everything else. */
function missingSection() {
  const { headline, missing } = page.coverage;
  if (!missing.length) return null;
  const section = card("missing", `Only ${headline} could be read`);
  section.append(make("ul", { class: "remarks" },
    ...missing.map((one) => make("li", {}, make("span", { class: "odd", text: one.rank === null ? "missing" : one.what }), one.why))));
  return section;
}

/** Describe the sensitive content of the page, so that it can be checked before sharing. */
function contents(report) {
  const kinds = [["operation", "operations"], ["module", "modules"], ["line", "source files"], ["kernel", "kernels"]]
    .filter(([by]) => report.figures.breakdowns[by]?.rows.length).map(([, words]) => words);
  const facts = Object.keys(report.figures.facts);
  const sensitive = [["command", "the command line"], ["host", "the host name"], ["working_directory", "the working directory"]]
    .filter(([name]) => facts.includes(name)).map(([, words]) => words);
  const lines = Object.keys(report.source ?? {}).length;
  const list = (parts) => (parts.length > 1 ? `${parts.slice(0, -1).join(", ")} and ${parts[parts.length - 1]}` : parts.join(""));
  return [
    kinds.length ? `the names of ${list(kinds)}` : null,
    sensitive.length ? `${list(sensitive)}, with secrets masked` : null,
    lines ? `${words.count(lines)} lines of source code` : null,
  ].filter(Boolean).join("; ") + (lines ? "." : "; no source code.");
}

function provenanceSection(report) {
  const facts = Object.entries(report.figures.facts);
  const section = card("provenance", "Provenance");
  section.append(make("dl", { class: "provenance" },
    ...[["file", report.figures.path], ["format", report.format], ...facts]
      .flatMap(([name, value]) => [make("dt", { text: name.replaceAll("_", " ") }), make("dd", { class: "mono" }, longText(value))])),
  make("p", { class: "small soft", id: "contents", text: `This page contains the figures above; ${contents(report)}` }));
  return section;
}

/** Collapse a long value. */
function longText(text) {
  if (text.length <= 300) return text;
  return make("details", {}, make("summary", { text: `${text.slice(0, 120)}\u2026` }), text);
}

function factText(name, value) {
  if (/^device/.test(name)) return value;
  return `${name} ${name === "started" ? value.replace(/\.\d+/, "") : value}`;
}

/** Sections with sums and idle time, which a sampled trace does not have. */
const SAMPLED = ["split", "steps", "icicle", "table"];

function reportView(report) {
  const figuresShown = report.figures;
  report.view = makeView(report.span_ns);
  const { view } = report;
  const [from, to] = ["from", "to"].map((key) => Number(link.get(key) ?? NaN));
  const [begin, end] = report.work_ns ?? view.whole;
  if (from < to) view.look(from, to);
  else if (end > begin && end - begin < 0.8 * view.whole[1]) view.look(begin, end);
  view.follow(whenQuiet(() => {
    const whole = view.from === view.whole[0] && view.to === view.whole[1];
    if (page.reports[shown].view === view) link.set({ from: whole ? null : Math.round(view.from), to: whole ? null : Math.round(view.to) });
  }));
  document.title = report.title;
  const facts = ["device", "device 0", "backend", "torch", "host", "started"].filter((name) => figuresShown.facts[name] && !report.title.includes(figuresShown.facts[name]));
  const intro = make("header", { class: "intro" },
    make("h1", { text: report.title.replace(/ - uprof$/, "") }),
    make("ul", { class: "facts soft" }, make("li", { text: report.format }),
      ...facts.map((name) => make("li", { text: factText(name, figuresShown.facts[name]) }))));
  const sections = [splitSection(report), stepsSection(report), icicleSection(report), tableSection(report, announce), rooflineSection(report), timelineSection(report, announce),
    ...chartSections(report), pmuSection(report, announce), remarksSection(report), provenanceSection(report)].filter(Boolean);
  const sample = figuresShown.anomalies.find((one) => one.name === "sampled_trace");
  const caveat = () => (sample ? make("p", { class: "small sampled" }, make("span", { class: "odd", text: "sampled trace" }), `${sample.detail}: idle time and sums are not those of the program.`) : null);
  for (const one of sample ? sections.filter((section) => SAMPLED.includes(section.id)) : []) one.firstChild.after(caveat());
  const charts = sections.filter((one) => one.querySelector(".chart:not(.roofline)"));
  if (charts.length > 1) {
    const pair = make("div", { class: "two" });
    charts[0].before(pair);
    sections.splice(sections.indexOf(charts[0]), charts.length, make("div", { class: "two" }, ...charts));
  }
  return [intro, missingSection(), adviceSection(report), caveat(), figures(report), ...sections].filter(Boolean);
}

/** Paths without their common directory. */
function withoutCommonFolder(paths) {
  const parts = paths.map((path) => path.split("/"));
  let same = 0;
  while (parts.every((one) => same < one.length - 1 && one[same] === parts[0][same])) same += 1;
  return parts.map((one) => one.slice(same).join("/"));
}

const shortened = withoutCommonFolder(page.reports.map((report) => report.figures.path));
const asked = () => Math.min(page.reports.length - 1, Math.max(0, Math.trunc(Number(link.get("report"))) || 0));
let shown = asked();
const chooser = page.reports.length > 1
  ? make("select", { "aria-label": "Report", on: { change: (event) => { shown = Number(event.target.value); forget(); link.set({ report: shown || null }); drawPage(); } } },
    ...page.reports.map((report, number) => make("option", { value: number, selected: number === shown, text: shortened[number] })))
  : null;
/** Selections of one report do not apply to another. */
const forget = () => link.set({ by: null, sort: null, order: null, q: null, from: null, to: null, find: null, span: null });
window.addEventListener("hashchange", () => {
  shown = asked();
  if (chooser) chooser.value = String(shown);
  drawPage();
});
const drawPage = startPage(chooser, () => reportView(page.reports[shown]));
