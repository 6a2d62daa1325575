// Sections of the page of a multi-rank run: findings, figures, heat maps, bars, table of ranks.

const MEASURES = [
  ["compute_ns", "Compute"], ["span_ns", "Step"], ["exposed_communication_ns", "Exposed communication"],
  ["exposed_wait_ns", "Waiting"], ["input_late_ns", "Late input"], ["idle_ns", "Idle"],
];
const LEAST_RANGE = 0.05;
const ORDERS = [["rank", "By rank"], ["stage", "By stage"], ["cost", "Worst first"]];
const byRank = new Map(page.ranks.map((row) => [row.rank, row]));
const nameOf = (rank) => `rank ${rank}${byRank.get(rank)?.host ? `, ${byRank.get(rank).host}` : ""}`;

function verdictSection(choose) {
  const section = card("verdict", "Findings");
  section.classList.add("verdict");
  if (!page.findings.length) {
    section.classList.add("fine");
    section.append(make("p", { text: unbroken(page.no_findings.replace("none", "No findings")) }));
    return section;
  }
  section.append(make("ol", {}, ...page.findings.map((one) => make("li", {},
    make("span", { class: "cost", text: one.cost, title: `${one.cost_ms_per_step} ms per step`, "data-cost": one.cost_ms_per_step }),
    one.said,
    one.ranks.length ? make("button", { type: "button", text: `show rank ${one.ranks[0]}`, on: { click: () => choose(one.ranks[0]) } }) : null))));
  return section;
}

function missingRanks() {
  if (!page.missing.length) return null;
  const section = card("missing", `Only ${page.count} are complete`);
  section.append(make("ul", { class: "remarks" }, ...page.missing.slice(0, 20).map(([ranks, why]) => make("li", {}, make("span", { class: "odd", text: ranks }), why))));
  if (page.missing.length > 20) section.append(make("p", { class: "small soft", text: `and ${words.count(page.missing.length - 20)} more reasons` }));
  return section;
}

function runFigures() {
  const mean = page.run.mean_step;
  const part = (value) => (value === null || !mean.span_ns ? "" : `${words.percent((100 * value) / mean.span_ns)} of the step`);
  const found = [["Mean step", "span_ns", `${words.count(page.run.steps)} step${page.run.steps === 1 ? "" : "s"}, ${words.count(page.run.ranks_read)} ranks`],
    ["Compute", "compute_ns"], ["Exposed communication", "exposed_communication_ns"], ["Collective wait", "exposed_wait_ns"],
    ["Collective setup", "setup_ns"], ["Late input", "input_late_ns"], ["Idle", "idle_ns"]]
    .filter(([, key]) => mean[key] !== null && mean[key] !== undefined && (mean[key] > 0 || key !== "setup_ns"))
    .map(([what, key, note]) => figure(what, words.duration(mean[key]), note ?? part(mean[key]), `${mean[key]} ns`, key));
  return found.length ? make("div", { class: "figures" }, ...found) : null;
}

function orderOf(ranks, order) {
  const cost = (rank) => byRank.get(rank)?.saved_ns_per_step ?? 0;
  const place = (rank, key) => byRank.get(rank)?.[key] ?? 0;
  const index = ranks.map((_, number) => number);
  if (order === "cost") index.sort((a, b) => cost(ranks[b]) - cost(ranks[a]) || a - b);
  if (order === "stage") index.sort((a, b) => place(ranks[a], "pp") - place(ranks[b], "pp") || place(ranks[a], "dp") - place(ranks[b], "dp") || a - b);
  return index;
}

function stepsSection(choose) {
  const { ranks, steps, measures, steps_left_out: left } = page.cells;
  if (!ranks.length || !steps.length) return null;
  const known = MEASURES.filter(([key]) => measures[key] !== undefined);
  const values = Object.fromEntries(known.map(([key]) => [key, knownNumbers(measures[key], ranks.length * steps.length)]));
  let measure = known.some(([key]) => key === "compute_ns") ? "compute_ns" : known[0][0];
  let order = "rank";
  const holder = make("div");

  function show() {
    const column = values[measure];
    let low = Infinity;
    let high = -Infinity;
    for (const value of column) if (!Number.isNaN(value)) { low = Math.min(low, value); high = Math.max(high, value); }
    const darkest = Math.max(high, low * (1 + LEAST_RANGE)); // Similar values have similar colors.
    const shade = (one) => (darkest > low ? (one - low) / (darkest - low) : 0);
    const index = orderOf(ranks, order);
    const value = (row, step) => column[index[row] * steps.length + step];
    const title = known.find(([key]) => key === measure)[1];
    const map = heatMap({
      label: `${title} by rank (rows) and step (columns), ${words.duration(low * 1000)} to ${words.duration(high * 1000)}`,
      rows: ranks.length, columns: steps.length, value, worst: "most",
      colors: () => {
        const [from, to] = [cssColor("--low"), cssColor("--high")];
        return (one) => mixed(from, to, shade(one));
      },
      inWords: (row, step) => `${nameOf(ranks[index[row]])}, step ${steps[step]}: ${title.toLowerCase()} ${words.duration(value(row, step) * 1000)}`,
      pick: (row) => choose(ranks[index[row]]),
      side: [nameOf(ranks[index[0]]).split(",")[0], ranks.length > 1 ? nameOf(ranks[index[index.length - 1]]).split(",")[0] : ""],
      below: [`step ${steps[0]}`, steps.length > 1 ? `step ${steps[steps.length - 1]}` : ""],
    });
    holder.replaceChildren(map.element, scale(words.duration(low * 1000), words.duration(high * 1000), "var(--low)", `color-mix(in srgb, var(--low), var(--high) ${100 * shade(high)}%)`));
  }

  const section = card("steps", "Ranks and steps",
    choice("Measure", known, measure, (next) => { measure = next; show(); }),
    choice("Order of ranks", ORDERS, order, (next) => { order = next; show(); }));
  section.append(holder);
  if (left) section.append(make("p", { class: "small soft", text: `The longest ${words.count(steps.length)} steps; ${words.count(left)} shorter ones are left out (all: uprof cluster report --by step).` }));
  show();
  return section;
}

function linksSection(choose) {
  const { count, kinds, left_out: left } = page.links;
  if (!count) return null;
  const columns = Object.fromEntries(["src", "dst", "kind", "bytes"].map((key) => [key, numbersOf(page.links[key], count)]));
  const rate = knownNumbers(page.links.mb_per_s, count);
  const like = knownNumbers(page.links.like_mb_per_s, count);
  const size = Math.max(...page.ranks.map((row) => row.rank)) + 1;
  const holder = make("div");
  const state = { key: null, descending: false, search: "", all: false };

  function show(kind) {
    const cells = new Map();
    const rows = [];
    for (let index = 0; index < count; index += 1) {
      if (kinds[columns.kind[index]] !== kind) continue;
      const ratio = like[index] ? rate[index] / like[index] : NaN;
      cells.set(columns.src[index] * size + columns.dst[index], { index, ratio });
      if (rows.length < 200) rows.push({ name: `${columns.src[index]} → ${columns.dst[index]}`, bytes: columns.bytes[index], rate: Number.isNaN(rate[index]) ? null : rate[index], like: Number.isNaN(like[index]) ? null : like[index], ratio: Number.isNaN(ratio) ? null : ratio });
    }
    const speed = (value) => (value === null ? NOT_MEASURED : words.rate(value * 1e6));
    const map = heatMap({
      label: `Links from rank (rows) to rank (columns): bandwidth relative to similar links`,
      rows: size, columns: size, square: true, worst: "least",
      value: (row, column) => cells.get(row * size + column)?.ratio ?? NaN,
      colors: () => {
        const [fine, slow] = [cssColor("--fine"), cssColor("--slow")];
        return (one) => mixed(fine, slow, Math.max(0, Math.min(1, (1 - one) / 0.6)));
      },
      inWords: (row, column) => {
        const { index, ratio } = cells.get(row * size + column);
        return `${row} to ${column}: ${speed(rate[index])}, ${ratio.toFixed(2)} x similar links`;
      },
      stands: (one) => one < 0.75,
      pick: (row) => choose(row),
      side: ["from 0", `${size - 1}`], below: ["to 0", `${size - 1}`],
    });
    const table = sortableTable("Links, slowest relative to similar links first", [
      { key: "name", label: "link", kind: "text" },
      { key: "rate", label: "median", kind: "number", show: speed, exact: speed },
      { key: "like", label: "similar links", kind: "number", show: speed, exact: speed },
      { key: "ratio", label: "ratio", kind: "number", show: (value) => (value === null ? NOT_MEASURED : `${value.toFixed(2)} x`), exact: (value) => String(value) },
      { key: "bytes", label: "bytes", kind: "number", show: words.size, exact: (value) => `${value} bytes` },
    ], rows, state, announce);
    table.draw();
    holder.replaceChildren(make("div", { class: "two" }, make("div", {}, map.element, scale("same as similar links", "0.4 x or less", "var(--fine)", "var(--slow)")), table.element));
  }

  const section = card("links", "Links between ranks", kinds.length > 1 ? choice("Kind", kinds.map((kind) => [kind, kind]), kinds[0], show) : null);
  section.append(holder);
  if (left) section.append(make("p", { class: "small soft", text: `${words.count(left)} faster links are left out (all: uprof cluster report --by link).` }));
  show(kinds[0]);
  return section;
}

function groupsSection() {
  if (!page.groups.length) return null;
  const most = Math.max(...page.groups.map((row) => (row.transfer_ns ?? 0) + (row.wait_ns ?? 0) + (row.setup_ns ?? 0)), 1);
  const section = card("groups", "Collectives, per step and group");
  const parts = [["transfer_ns", "transfer", "communication"], ["wait_ns", "wait for the last rank", "wait"], ["setup_ns", "setup", "copy"]];
  const shown = parts.filter(([key]) => page.groups.some((row) => row[key] > 0));
  section.append(make("div", { class: "bars" }, ...page.groups.flatMap((row, number) => [
    make("span", { class: "name", text: `${page.group_labels[number]}: ${row.kind} ${words.size(row.bytes)}` }),
    make("div", { class: "strip", role: "img", "aria-label": parts.map(([key, name]) => `${name} ${words.duration(row[key])}`).join(", ") },
      ...parts.filter(([key]) => row[key] > 0).map(([key, name, color]) => make("span", { title: `${name}: ${words.duration(row[key])}`, "data-ns": row[key], style: { width: `${(100 * row[key]) / most}%`, background: `var(--${color})` } }))),
    make("span", { class: "note", text: [row.bus_gb_per_s === null ? null : `bus ${words.rate(row.bus_gb_per_s * 1e9)}`, row.slowest_gb_per_s === null ? null : `slowest ${words.rate(row.slowest_gb_per_s * 1e9)}`, row.transfer_ns === null ? "recordings of some ranks are missing" : null].filter(Boolean).join(", ") }),
  ])), shown.length ? make("ul", { class: "legend" }, ...shown.map(([, name, color]) => make("li", {}, make("span", { class: "swatch", style: { background: `var(--${color})` } }), name))) : "");
  if (page.groups_left_out) section.append(make("p", { class: "small soft", text: `and ${words.count(page.groups_left_out)} with lower cost` }));
  return section;
}

const RANK_COLUMNS = [
  ["stage", "pp"], ["step", "span_ns"], ["compute", "compute_ns"], ["vs stage", "work_ratio"], ["exposed communication", "exposed_communication_ns"],
  ["waits", "exposed_wait_ns"], ["late input", "input_late_ns"], ["idle", "idle_ns"], ["causes wait", "caused_wait_ns"], ["cost/step", "saved_ns_per_step"],
];
/** Value of a rank per step: only the wait that it causes is a sum over all steps. */
const perStep = (key, row) => (key === "caused_wait_ns" && row[key] ? Math.round(row[key] / (row.steps || 1)) : row[key]);
const inUnit = (key) => (value) => {
  if (value === null || value === undefined) return NOT_MEASURED;
  if (key === "work_ratio") return `${value.toFixed(2)} x`;
  return key.includes("_ns") ? words.duration(value) : words.count(value);
};

/** Ranks without figures, which the section of missing ranks names. */
const NO_RECORDING = new Set(["absent", "failed"]);

function ranksSection() {
  const rows = page.ranks.filter((row) => !NO_RECORDING.has(row.status)).map((row) => ({ ...row, name: `${row.rank}`, host: row.host ?? "", caused_wait_ns: perStep("caused_wait_ns", row), note: [row.status === "read" ? "" : row.status, row.cause ? row.cause.replaceAll("_", " ") : ""].filter(Boolean).join("; ") }));
  const state = { key: "saved_ns_per_step", descending: true, search: "", all: false };
  const has = (key) => rows.some((row) => row[key] !== null && row[key] !== undefined && row[key] !== "");
  const columns = [
    { key: "name", label: "rank", kind: "text", second: true },
    ...(has("host") ? [{ key: "host", label: "host", kind: "text", second: true }] : []),
    ...RANK_COLUMNS.filter(([, key]) => has(key)).map(([label, key]) => ({ key, label, kind: "number", show: inUnit(key), exact: (value) => (value === undefined ? "unknown" : String(value)) })),
    ...(has("note") ? [{ key: "note", label: "cause", kind: "text", second: true }] : []),
  ];
  const table = sortableTable("Ranks", columns, rows, state, announce);
  const input = make("input", { type: "search", placeholder: "Search hosts, causes", "aria-label": "Search the ranks", id: "search" });
  input.addEventListener("input", () => { state.search = input.value; announce(`${words.count(table.draw())} ranks`); });
  table.draw();
  const section = card("ranks", "Ranks", make("div", { class: "search" }, input));
  section.append(table.element);
  return section;
}

/** Figures of one rank and of its stage. */
function rankSection() {
  const section = card("rank", "One rank");
  section.classList.add("rank-detail");
  const holder = make("div");
  section.append(holder);

  function show(rank) {
    const row = byRank.get(rank);
    if (!row) return;
    section.querySelector("h2").textContent = `Rank ${rank}`;
    const stage = page.ranks.filter((one) => (one.pp ?? null) === (row.pp ?? null) && one.span_ns !== undefined);
    const median = (key) => {
      const found = stage.map((one) => one[key]).filter((value) => value !== undefined).sort((a, b) => a - b);
      return found.length ? (found[(found.length - 1) >> 1] + found[found.length >> 1]) / 2 : undefined;
    };
    const facts = [["host", row.host], ["device", row.device_id], ["role", ["tp", "dp", "pp", "ep", "cp"].filter((key) => row[key] !== undefined).map((key) => `${key} ${row[key]}`).join(", ")], ["steps", row.steps]];
    put(holder, make("dl", {},
      ...facts.filter(([, value]) => value !== undefined && value !== "").map(([name, value]) => make("div", {}, make("dt", { text: name }), make("dd", { text: String(value) }))),
      ...RANK_COLUMNS.slice(1).filter(([, key]) => row[key] !== undefined && key !== "work_ratio").map(([name, key]) => make("div", {},
        make("dt", { text: name }), make("dd", { "data-key": key, title: String(row[key]) }, inUnit(key)(perStep(key, row)), key.includes("saved") || key.includes("caused") ? null : make("span", { class: "soft small", text: ` (stage ${inUnit(key)(median(key))}${key === "compute_ns" && row.work_ratio ? `; kernels ${inUnit("work_ratio")(row.work_ratio)}` : ""})` }))))));
  }

  return { section, show };
}
