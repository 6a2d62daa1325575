// Steps as bars, and idle time by reason.

const MOST_STEPS = 400;
/** Maximum number of steps with a label below the bar. */
const MOST_NAMES = 8;
const REASONS = ["host", "input", "synchronising", "stream", "communication", "launched", "unrecorded", "unknown"];

/** Idle time of a device as parts of a strip, by reason if the reasons add up to it. */
function idleParts(report, device, idle, step = null) {
  const why = report.figures.why_idle.find((one) => one.device === device && one.step === step && one.idle_ns === idle);
  if (!why) return [{ name: "idle", value: idle, color: "idle" }];
  return idleReasons(report, why);
}

function idleReasons(report, why) {
  return REASONS.filter((reason) => why[`${reason}_ns`] > 0)
    .map((reason) => ({ name: `${reason === "unrecorded" ? "" : "idle: "}${report.idle_words[reason]}`, value: why[`${reason}_ns`], color: `idle-${reason}` }));
}

/** One bar per step with its parts, on the device that takes longest. */
function stepsSection(report) {
  const rows = report.figures.breakdowns.step?.rows ?? [];
  if (rows.length < 2) return null;
  const why = (row) => report.figures.why_idle.find((one) => one.step === row.name && one.idle_ns === row.idle_ns);
  const bars = rows.slice(0, MOST_STEPS).map((row) => ({ row, parts: row.idle_ns === undefined ? [{ name: "step", value: row.total_ns, color: "rest" }] : stepParts(report, row, why(row)) }));
  const longest = Math.max(1, ...bars.map(({ row }) => row.total_ns));
  const ordered = rows.map((row) => row.total_ns).sort((a, b) => a - b);
  const height = 180;
  const chosen = make("p", { class: "small", "aria-live": "polite", id: "step-chosen" });
  const say = ({ row, parts }) => `step ${row.name}: ${words.duration(row.total_ns)}; ${parts.map((one) => `${one.name} ${words.duration(one.value)}`).join(", ")}`;
  const buttons = bars.map((bar, number) => make("button", {
    type: "button", class: "step", "aria-label": say(bar), title: say(bar), tabindex: number ? -1 : 0, style: { height: `${(height * bar.row.total_ns) / longest}px` },
    on: {
      click() {
        chosen.textContent = say(bar);
        const span = report.steps[number];
        if (report.timeline && span && report.steps.length === rows.length) report.view.look(span.start_ns, span.end_ns);
      },
      focus() { chosen.textContent = say(bar); },
    },
  }, ...bar.parts.map((one) => make("span", { style: { "flex-grow": String(one.value), background: `var(--${one.color})` } }))));
  const holder = make("div", { class: "steps", role: "group", "aria-label": "Steps in order", style: { height: `${height}px` } }, ...buttons);
  holder.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(document.activeElement);
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (next === undefined || !buttons[next]) return;
    event.preventDefault();
    buttons[at].tabIndex = -1;
    buttons[next].tabIndex = 0;
    buttons[next].focus();
  });
  const names = new Map(bars.flatMap(({ parts }) => parts.map((one) => [one.name, one.color])));
  const section = card("steps", "Steps");
  section.append(holder,
    ...(bars.length > MOST_NAMES ? [] : [make("div", { class: "steps small soft", "aria-hidden": "true" }, ...bars.map(({ row }) => make("span", { class: "name", text: `${row.name}: ${words.duration(row.total_ns)}` })))]),
    make("ul", { class: "legend" }, ...[...names].map(([name, color]) => make("li", {}, make("span", { class: "swatch", style: { background: `var(--${color})` } }), name))),
    chosen,
    make("p", { class: "small soft", text: `${words.count(rows.length)} steps: shortest ${words.duration(ordered[0])}, longest ${words.duration(ordered[ordered.length - 1])}. ` +
      (rows.length > bars.length ? `Only the first ${words.count(bars.length)} are drawn. ` : "") + (report.timeline ? "Click or Enter: show the step in the timeline. Arrow keys: move." : "Arrow keys: move.") }));
  return section;
}

function stepParts(report, row, why) {
  return [
    { name: "compute", value: row.compute_ns, color: "compute" },
    { name: "exposed communication", value: row.exposed_communication_ns ?? 0, color: "communication" },
    { name: "exposed copies", value: row.exposed_copies_ns, color: "copy" },
    ...(why ? idleReasons(report, why) : [{ name: "idle", value: row.idle_ns, color: "idle" }]),
  ].filter((one) => one.value > 0);
}
