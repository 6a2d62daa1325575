// Table with sorting and search.

const FIRST_ROWS = 100;
const PATH_ROOM = 34;
/** Texts up to this length keep to one line in a table that is wider than the window. */
const MOST_WHOLE = 44;
/** More hidden columns are not named. */
const MOST_NAMED = 6;
/** Texts longer than this are cut after three lines. */
const MOST_SHOWN = 160;

/** Columns of figures that stay longest in a narrow window; 10 always stays. */
const IMPORTANCE = {
  total_ns: 10, percent: 9, count: 8, forward_ns: 7, backward_ns: 7, size_bytes: 6, average_ns: 3, detail: 4,
  base_ns: 10, new_ns: 10, delta_ns: 10, ratio: 9, class: 6, base_calls: 4, new_calls: 4, line: 3, module: 2,
  saved_ns_per_step: 10, span_ns: 9, caused_wait_ns: 8,
};

/**
 * @param offered [{key, label, kind: "text" | "number" | "share", show(value, row), exact(value), importance}]
 * @param rows plain objects
 */
function sortableTable(label, offered, rows, state, announce) {
  const isAbsent = (value) => value === null || value === undefined || value === "";
  const columns = offered.filter(({ key }, number) => !number || !rows.length || rows.some((row) => !isAbsent(row[key])));
  const head = make("tr");
  const body = make("tbody");
  const more = make("button", { type: "button", on: { click: () => { state.all = true; draw(); } } });
  const headers = columns.map((column) => {
    // Few names are broken: room for most of them, up to a third of the window.
    const lengths = rows.slice(0, FIRST_ROWS).map((row) => briefly(column, row).length).filter(Boolean).sort((a, b) => a - b);
    const usual = lengths[Math.floor(0.8 * lengths.length)] ?? 0;
    const cell = make("th", { scope: "col", class: column.kind === "text" ? "text" : null, "aria-sort": "none", "data-key": column.key,
      style: column.kind === "text" ? { "min-width": `min(${0.6 * usual + 1.6}em, ${column.second ? "max(18vw, 43em - 33vw)" : "33vw"})` } : {} },
      make("button", { type: "button", text: column.label, on: { click: () => sortBy(column) } }));
    head.append(cell);
    return cell;
  });
  const scroll = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    make("table", {}, make("caption", { class: "hidden", text: label }), make("thead", {}, head), body));
  const isWide = () => scroll.scrollWidth > scroll.clientWidth;
  const importanceOf = (column) => column.importance ?? IMPORTANCE[column.key] ?? 5;
  const filled = new Map(columns.map((column) => [column, rows.filter((row) => !isAbsent(row[column.key])).length]));
  const dropped = new Set();
  /** Drop columns until the others fit: the least important and emptiest first, from the right. */
  function fit() {
    dropped.clear();
    scroll.classList.remove("wide");
    showColumns();
    const value = (column) => importanceOf(column) * filled.get(column);
    const rest = columns.slice(1).filter((column) => column.key !== state.key && importanceOf(column) < 10).reverse();
    while (!state.wide && isWide() && rest.length) {
      // Widths are read once: each layout of many rows takes long.
      const widths = new Map(columns.map((column, number) => [column, head.cells[number].offsetWidth]));
      for (let excess = scroll.scrollWidth - scroll.clientWidth; excess > 0 && rest.length;) {
        const least = rest.reduce((one, column) => (value(column) < value(one) ? column : one));
        rest.splice(rest.indexOf(least), 1);
        dropped.add(least);
        excess -= widths.get(least);
      }
      showColumns();
    }
    // Breaking names gains nothing if the table is wider than the window anyway.
    scroll.classList.toggle("wide", isWide());
    all.hidden = !dropped.size && !state.wide;
    const hidden = dropped.size > MOST_NAMED ? `${dropped.size} more columns` : [...dropped].map((column) => column.label).join(", ");
    all.textContent = state.wide ? "Fit to the window" : `Show ${hidden}`;
  }
  function showColumns() {
    for (const row of [head, ...body.rows]) [...row.cells].forEach((cell, number) => { cell.hidden = dropped.has(columns[number]); });
  }
  const all = make("button", { type: "button", hidden: true, on: { click: () => { state.wide = !state.wide; fit(); } } });
  let width = 0; // The height changes with the columns.
  new ResizeObserver(() => { if (width !== scroll.clientWidth) { width = scroll.clientWidth; fit(); } }).observe(scroll);

  function sortBy(column) {
    const text = column.kind === "text";
    state.descending = state.key === column.key ? !state.descending : !text;
    state.key = column.key;
    draw();
    state.sorted?.();
    announce(`sorted by ${column.label}, ${state.descending ? "largest" : "smallest"} first`);
  }

  function ordered(found) {
    if (!state.key) return found;
    const factor = state.descending ? -1 : 1;
    return [...found].sort((a, b) => {
      const [x, y] = [a[state.key], b[state.key]];
      if (isAbsent(x) || isAbsent(y)) return isAbsent(x) - isAbsent(y); // what is not measured stands last
      return factor * (typeof x === "number" ? x - y : String(x).localeCompare(String(y)));
    });
  }

  /** All matching rows in order. */
  function chosen() {
    const wanted = state.search.trim().toLowerCase();
    const texts = columns.filter((column) => column.kind === "text").map((column) => column.key);
    return ordered(wanted ? rows.filter((row) => texts.some((key) => String(row[key] ?? "").toLowerCase().includes(wanted))) : rows);
  }

  function draw() {
    const wanted = state.search.trim().toLowerCase();
    const found = chosen();
    const shown = found.slice(0, state.all ? undefined : FIRST_ROWS);
    headers.forEach((cell) => {
      const sorted = cell.dataset.key === state.key;
      cell.setAttribute("aria-sort", sorted ? (state.descending ? "descending" : "ascending") : "none");
    });
    body.replaceChildren(...shown.map((row) => make("tr", {}, ...columns.map((column) => cellOf(column, row, wanted)))));
    if (!shown.length) body.append(make("tr", {}, make("td", { class: "text", colspan: columns.length, text: "No matches." })));
    more.hidden = shown.length === found.length;
    more.textContent = `Show all ${words.count(found.length)}`;
    if (dropped.size) showColumns(); // A change of the width chooses columns again.
    return found.length;
  }

  function cellOf(column, row, wanted) {
    const value = row[column.key];
    if (column.kind === "text") {
      const whole = String(value ?? "");
      // Long symbols are shortened unless the search matches another part.
      const brief = briefly(column, row);
      const text = !wanted || brief.toLowerCase().includes(wanted) ? brief : whole;
      const long = text.length > MOST_SHOWN;
      const cell = make("td", { class: `text${column.second ? " second" : ""}${text.length <= MOST_WHOLE ? " whole" : ""}`, "data-value": value, title: text === whole && !long ? null : whole },
        ...(long ? [make("div", { class: "long" }, ...highlighted(text, wanted))] : highlighted(text, wanted)));
      if (column.extra) cell.append(...column.extra(row));
      return cell;
    }
    const none = value === null || value === undefined;
    return make("td", {
      class: none ? "none" : column.kind === "share" ? "share" : column.tone?.(value) ?? null,
      text: column.show(value),
      title: column.exact(value),
      style: column.kind === "share" && !none ? { "--part": Math.min(1, value / 100) } : {},
    });
  }

  const button = (text, label, call) => make("button", { type: "button", text, "aria-label": label, on: { click: call } });
  const tools = make("p", { class: "tools" }, more, all,
    button("Copy", `Copy the table ${label}`, async () => {
      announce(await copied(asText(columns, chosen(), "\t")) ? `copied ${words.count(chosen().length)} rows` : "the browser blocked copying");
    }),
    button("CSV", `Save the table ${label} as CSV`, () => {
      saved(`${label.toLowerCase().replace(/[^a-z0-9]+/g, "-")}.csv`, asText(columns, chosen(), ","));
      announce(`saved ${words.count(chosen().length)} rows`);
    }));
  return { element: make("div", {}, scroll, tools), draw };
}

function briefly(column, row) {
  const whole = String(row[column.key] ?? "");
  if (column.key === "name" && row.short) return row.short;
  return column.brief?.(whole) ?? (column.second ? cutInFront(whole, PATH_ROOM) : whole);
}

/** Rows as text, figures in ns and bytes, with the keys of JSON. */
function asText(columns, rows, separator) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    // Spreadsheets execute such cells as formulas; an apostrophe makes them text.
    let text = typeof value === "string" && /^[=+\-@]/.test(value.slice(0, 1).normalize("NFKC")) ? `'${value}` : String(value);
    if (separator === "\t") text = text.replace(/[\t\r\n]+/g, " ");
    return separator === "," && /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns.map((column) => column.key), ...rows.map((row) => columns.map((column) => row[column.key]))]
    .map((cells) => `${cells.map(cell).join(separator)}\n`).join("");
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea", { class: "hidden", "aria-hidden": "true" });
    const before = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    before?.focus();
    return done;
  }
}

function saved(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

function highlighted(text, wanted) {
  const at = wanted ? text.toLowerCase().indexOf(wanted) : -1;
  // Names are broken after their parts, if they have to be.
  if (at < 0) return text.split(/(?<=::|[./])/).flatMap((part, number) => (number ? [make("wbr"), part] : [part]));
  return [text.slice(0, at), make("mark", { text: text.slice(at, at + wanted.length) }), text.slice(at + wanted.length)];
}

const COLUMN_LABELS = {
  total_ns: "time", percent: "share", average_ns: "average", forward_ns: "forward", backward_ns: "backward",
  size_bytes: "memory", weight_bytes: "weights", gradient_bytes: "gradients", activation_bytes: "activations", allocated_bytes: "allocated",
  waited_ns: "waiting for CPU", cpu_ns: "CPU time",
};

function breakdownColumns(by, rows, report) {
  const keys = new Set(rows.flatMap((row) => Object.keys(row)));
  if (by === "step") ["count", "average_ns"].forEach((key) => keys.delete(key)); // of one step
  // Without backward passes, forward is the time.
  if (rows.every((row) => row.forward_ns === undefined || row.forward_ns === row.total_ns)) keys.delete("forward_ns");
  const sizes = ["weight_bytes", "gradient_bytes", "activation_bytes", "allocated_bytes"].filter((key) => keys.has(key));
  const order = ["count", "total_ns", "percent", "average_ns", "forward_ns", "backward_ns", ...(sizes.length > 1 && !keys.has("allocated_bytes") ? ["size_bytes"] : []), ...sizes];
  const known = new Set([...order, "size_bytes", "name", "short", "kind", "detail"]);
  const extras = [...keys].filter((key) => !known.has(key));
  const source = (row) => (by === "line" && report.source?.[row.name] ? [make("pre", { text: report.source[row.name] })] : []);
  const kind = (row) => (row.kind && row.kind !== by ? [make("span", { class: "kind", text: row.kind })] : []);
  return [
    { key: "name", label: by, kind: "text", extra: (row) => [...kind(row), ...source(row)] },
    ...[...order, ...extras].filter((key) => keys.has(key)).map((key) => ({
      key,
      label: key === "count" ? report.words[by].count : COLUMN_LABELS[key] ?? key.replace(/_(ns|bytes)$/, "").replaceAll("_", " "),
      kind: key === "percent" ? "share" : "number",
      show: (value) => words.of(key, value),
      exact: (value) => words.exactly(key, value),
    })),
    ...(keys.has("detail") ? [{ key: "detail", label: report.words[by].detail, kind: "text", second: true }] : []),
  ];
}

function tableSection(report, announce) {
  const bys = Object.keys(report.figures.breakdowns);
  if (!bys.length) return null;
  const input = make("input", { type: "search", placeholder: "Search names", "aria-label": "Search the table", id: "search" });
  const holder = make("div");
  const count = make("p", { class: "small soft", id: "matches" });
  let by = bys.includes(link.get("by")) ? link.get("by") : bys[0];
  input.value = link.get("q") ?? "";
  let state = null;
  let table = null;

  function show(next) {
    by = next;
    const breakdown = report.figures.breakdowns[by];
    state = {
      key: null, descending: true, search: input.value, all: false,
      sorted: () => link.set({ sort: state.key, order: state.descending ? null : "up" }),
    };
    const columns = breakdownColumns(by, breakdown.rows, report);
    if (columns.some((column) => column.key === link.get("sort"))) {
      state.key = link.get("sort");
      state.descending = link.get("order") !== "up";
    }
    table = sortableTable(`By ${by}`, columns, breakdown.rows, state, announce);
    holder.replaceChildren(table.element);
    draw();
  }

  function draw() {
    const breakdown = report.figures.breakdowns[by];
    const found = table.draw();
    const left = breakdown.rows_left_out;
    count.textContent = `${words.count(found)} of ${words.count(breakdown.rows.length)} rows` +
      (left ? `; ${words.count(left)} smaller rows are left out (all: uprof report --format csv)` : "");
  }

  input.addEventListener("input", () => { state.search = input.value; link.set({ q: input.value }); draw(); announce(count.textContent); });
  const section = card("table", "Tables",
    choice("Group by", bys.map((one) => [one, report.words[one].title]), by, (one) => { link.set({ by: one === bys[0] ? null : one, sort: null, order: null }); show(one); }),
    make("div", { class: "search" }, input));
  section.append(holder, count);
  show(by);
  return section;
}

function pmuSection(report, announce) {
  const counted = new Set(report.figures.pmu.filter((one) => one.mean !== 0).map((one) => one.counter));
  const types = new Set(report.figures.pmu.filter((one) => one.mean !== 0).map((one) => one.op_type));
  const figures = report.figures.pmu.filter((one) => counted.has(one.counter) && types.has(one.op_type));
  if (!figures.length) return null;
  const counters = [...counted];
  const left = [["counter", counted, "counters"], ["op_type", types, "operator types"]].flatMap(([key, kept, what]) => {
    const all = new Set(report.figures.pmu.map((one) => one[key])).size;
    return all > kept.size ? [`${words.count(all - kept.size)} of ${words.count(all)} ${what} are always 0 and left out`] : [];
  });
  const rows = new Map();
  for (const one of figures) {
    if (!rows.has(one.op_type)) rows.set(one.op_type, { name: one.op_type, tasks: one.tasks });
    rows.get(one.op_type)[one.counter] = one.mean;
  }
  const precise = (value) => (value === null || value === undefined ? NOT_MEASURED : value.toLocaleString("en-US", { maximumSignificantDigits: 4 }));
  const [isTotal, isRatio] = ["_total_time", "_ratio"].map((end) => (key) => key.endsWith(end));
  // Total times stay in a narrow window, then the largest ratios: they say which unit is busy.
  const importanceOf = (key) => (key === "tasks" || isTotal(key) ? 10 : isRatio(key) ? 5 + Math.max(...[...rows.values()].map((row) => row[key] ?? 0)) : 3);
  const cost = (row) => row.tasks * counters.filter(isTotal).reduce((sum, key) => sum + (row[key] ?? 0), 0);
  const number = (key) => ({ key, importance: importanceOf(key), label: report.units[key] && !isRatio(key) ? `${key} (${report.units[key]})` : key, kind: "number", show: key.endsWith("_time") ? words.duration : isRatio(key) ? (value) => words.percent((value ?? null) && value * 100) : precise, exact: (value) => (value === undefined ? "not measured" : String(value)) });
  const columns = [{ key: "name", label: "operator type", kind: "text" }, number("tasks"), ...counters.map(number)];
  const state = { key: null, descending: true, search: "", all: false };
  const table = sortableTable("Hardware counters, mean per task", columns, [...rows.values()].sort((a, b) => cost(b) - cost(a)), state, announce);
  table.draw();
  const section = card("counters", "Hardware counters by operator type");
  section.append(table.element, make("p", { class: "small soft", text: ["Mean per task of each type, as counted by the device, longest total time first", ...left].join("; ") + "." }));
  return section;
}
