// Page of a device comparison: the step on both sides, then the differences.

const times = (value) => (value === null || value === undefined ? NOT_MEASURED : `${value >= 100 ? words.count(Math.round(value)) : value.toFixed(2)} x`);
const change = (value) => (value > 0 ? `+${words.duration(value)}` : words.duration(value));

/** Return the end of the first place, and the number of further places. */
function firstOf(text) {
  const [first, ...others] = text.split(", ");
  const end = first.length > PATH_ROOM ? `\u2026${first.slice(first.length - PATH_ROOM + 1)}` : first;
  return others.length ? `${end} (+${others.length})` : end;
}

/** Class of a change on one device model: better or worse, from 0.1 % of the step. */
const tone = (value) => (!page.same_devices || Math.abs(value) < page.least_ns || !value ? null : value > 0 ? "worse" : "better");

function headlines() {
  const ratio = page.base_ns ? page.new_ns / page.base_ns : null;
  return make("div", { class: "figures" },
    figure(`base, one ${page.unit}`, words.duration(page.base_ns), null, `${page.base_ns} ns`, "base_ns"),
    figure(`new, one ${page.unit}`, words.duration(page.new_ns), null, `${page.new_ns} ns`, "new_ns"),
    figure("change", change(page.new_ns - page.base_ns), ratio === null ? null : times(ratio), `${page.new_ns - page.base_ns} ns`, "delta_ns"));
}

/** Both sides as strips of one scale. */
function stepSection() {
  const longest = Math.max(page.base_ns, page.new_ns) || 1;
  const section = card("step", page.unit === "step" ? "Step" : "Recording");
  for (const side of ["base", "new"]) {
    const whole = page[`${side}_ns`];
    const drawn = strip(side, whole, page.parts.map((one) => ({ name: one.name, color: one.color, value: one[`${side}_ns`] })), words.duration);
    drawn.querySelector(".strip").style.setProperty("width", `${(100 * whole) / longest}%`);
    section.append(drawn);
  }
  const columns = [
    { key: "name", label: "part", kind: "text" },
    ...["base_ns", "base_percent", "new_ns", "new_percent", "delta_ns", "ratio"].map((key) => number(key)),
  ];
  const share = (side, one) => (page[`${side}_ns`] ? (100 * one[`${side}_ns`]) / page[`${side}_ns`] : null);
  const rows = [...page.parts, { name: "total", base_ns: page.base_ns, new_ns: page.new_ns }].map((one) => ({
    ...one, base_percent: share("base", one), new_percent: share("new", one), delta_ns: one.new_ns - one.base_ns,
    ratio: one.base_ns && one.new_ns ? one.new_ns / one.base_ns : null,
  }));
  const table = sortableTable(`Parts of a ${page.unit}`, columns, rows, { key: null, descending: true, search: "", all: false }, announce);
  table.draw();
  table.element.style.setProperty("margin-top", "14px");
  section.append(table.element);
  return section;
}

const LABELS = {
  class: "class", side: "recorded in", base_calls: "base calls", new_calls: "new calls", base_ns: "base", new_ns: "new", delta_ns: "change",
  base_percent: "base share", new_percent: "new share", ratio: "ratio", ratio_of_peaks: "attainable", module: "module", line: "line",
};

function number(key) {
  const ratio = key.startsWith("ratio");
  return {
    key,
    label: LABELS[key],
    kind: "number",
    show: ratio ? times : (value) => (key === "delta_ns" ? change(value) : words.of(key, value)),
    tone: key === "delta_ns" ? tone : null,
    exact: (value) => words.exactly(key, value),
  };
}

function columnsOf(by, rows) {
  const keys = new Set(rows.flatMap((row) => Object.keys(row)));
  return [
    { key: "name", label: by, kind: "text" },
    ...["base_calls", "new_calls", "base_ns", "new_ns", "delta_ns", "ratio", "ratio_of_peaks"].filter((key) => keys.has(key)).map(number),
    ...(by === "class" ? ["side"] : ["class", "side", "module", "line"]).filter((key) => keys.has(key) && (key !== "side" || rows.some((row) => row.side !== "both"))).map((key) => ({ key, label: LABELS[key], kind: "text", second: true, brief: firstOf })),
  ];
}

function workSection() {
  const bys = Object.keys(page.tables);
  if (!bys.length) return null;
  const input = make("input", { type: "search", placeholder: "Search names", "aria-label": "Search the table", id: "search" });
  input.value = link.get("q") ?? "";
  const holder = make("div");
  const count = make("p", { class: "small soft", id: "matches" });
  let by = bys.includes(link.get("by")) ? link.get("by") : page.by;
  let state = null;
  let table = null;

  function show(next) {
    by = next;
    const { rows } = page.tables[by];
    state = { key: link.get("sort"), descending: link.get("order") !== "up", search: input.value, all: false,
      sorted: () => link.set({ sort: state.key, order: state.descending ? null : "up" }) };
    const columns = columnsOf(by, rows);
    if (!columns.some((column) => column.key === state.key)) state.key = null;
    table = sortableTable(`Work by ${by}`, columns, rows, state, announce);
    put(holder, table.element);
    draw();
  }

  function draw() {
    const { rows, left_out: left } = page.tables[by];
    const found = table.draw();
    count.textContent = `${words.count(found)} of ${words.count(rows.length)} rows, largest change first` +
      (left ? `; ${words.count(left)} rows with smaller changes are left out (all: uprof diff --format csv)` : "");
  }

  input.addEventListener("input", () => { state.search = input.value; link.set({ q: input.value }); draw(); announce(count.textContent); });
  const section = card("work", "Comparison",
    choice("Group by", bys.map((one) => [one, one]), by, (one) => { link.set({ by: one === page.by ? null : one, sort: null, order: null }); show(one); }),
    make("div", { class: "search" }, input));
  section.append(holder, count);
  show(by);
  return section;
}

function remarksSection() {
  const lines = [
    ...page.warnings.map((text) => make("li", {}, make("span", { class: "odd", text: "warning" }), text)),
    ...page.remarks.map((text) => make("li", { text: unbroken(text) })),
  ];
  const section = card("remarks", "Notes");
  section.append(make("ul", { class: "remarks" }, ...lines));
  return section;
}

startPage(null, () => [
  make("header", { class: "intro" }, make("h1", { text: page.title }),
    make("p", { text: unbroken(page.verdict) }),
    make("ul", { class: "facts soft" }, ...page.headline.filter(([what]) => what !== page.unit).map(([what, text]) => make("li", { text: unbroken(`${what}: ${text}`) })))),
  headlines(), stepSection(), workSection(), remarksSection(),
].filter(Boolean));
