// Roofline: operations by FLOP per byte and FLOP/s, both axes logarithmic.

/** Maximum number of labeled dots, longest time first. */
const LABELED = 4;
const ROOM = { left: 92, right: 26, top: 14, bottom: 40, height: 340 };

/** Distinct limits of the rows: FLOP/s are flat lines, bytes/s are slopes. */
function limitsOf(rows) {
  const found = new Map();
  for (const { detail } of rows) {
    const match = /^([^,;]+), ([\d,.]+) (TFLOP|GB)\/s( \(uncertain\))?/.exec(detail ?? "");
    if (!match) continue;
    const flat = match[3] === "TFLOP";
    const rate = Number(match[2].replaceAll(",", "")) * (flat ? 1e12 : 1e9);
    found.set(match[0], { name: match[0], flat, rate });
  }
  return [...found.values()];
}

/** Return the first place for a label beside, above or below its dot that covers no dot and no label. */
function placeOf(dot, long, plot, dots, written) {
  const side = dot.r + 4;
  const within = (from) => Math.min(Math.max(from, plot.from), plot.until - long);
  const [middle, above, below] = [dot.y + 4, dot.y - side, dot.y + side + 10];
  const places = [[dot.x + side, middle], [dot.x - side - long, middle], ...[dot.x, dot.x - long / 2, dot.x - long].flatMap((from) => [[within(from), above], [within(from), below]])]
    .map(([from, level]) => ({ from, until: from + long, top: level - 11, bottom: level + 3 }));
  const isInside = (box) => box.from >= plot.from && box.until <= plot.until && box.top >= plot.top && box.bottom <= plot.bottom;
  const covers = (box, one) => Math.hypot(one.x - Math.min(Math.max(one.x, box.from), box.until), one.y - Math.min(Math.max(one.y, box.top), box.bottom)) < one.r;
  const meets = (box, one) => box.from < one.until && one.from < box.until && box.top < one.bottom && one.top < box.bottom;
  return places.find((box) => isInside(box) && !dots.some((one) => covers(box, one)) && !written.some((one) => meets(box, one)));
}

function rooflineSection(report) {
  const all = report.figures.breakdowns.roofline?.rows ?? [];
  const rows = all.filter((row) => row.intensity_flops_per_byte > 0 && row.compute_tflop_per_s > 0);
  if (!rows.length) return null;
  const limits = limitsOf(all);
  const most = Math.max(...rows.map((row) => row.total_ns));
  const picture = makeSvg("svg", {
    class: "chart roofline", tabindex: 0, role: "application", "aria-roledescription": "plot", "aria-describedby": "roofline-keys",
    "aria-label": `Roofline of ${rows.length} operations; figures are in the table below it and in the breakdown Roofline`,
  });
  const chosen = make("p", { class: "small", id: "roofline-chosen", "aria-live": "polite" });
  let at = -1;
  const say = (row) => `${row.name}: ${words.of("compute_tflop_per_s", row.compute_tflop_per_s)}, ${words.of("intensity_flops_per_byte", row.intensity_flops_per_byte)} FLOP/byte, ` +
    `${words.duration(row.total_ns)} in ${words.count(row.count)} ${row.count === 1 ? "call" : "calls"}${row.of_peak_percent === undefined ? "" : `, ${words.percent(row.of_peak_percent)} roofline efficiency`}${row.detail ? `; ${row.detail}` : ""}`;
  const power = (value, round) => 10 ** round(Math.log10(value));
  const span = (values) => [power(Math.min(...values), Math.floor), power(Math.max(...values) * 1.01, Math.ceil)];
  const across = span(rows.map((row) => row.intensity_flops_per_byte));
  const up = span([...rows.map((row) => row.compute_tflop_per_s * 1e12), ...limits.filter((one) => one.flat).map((one) => one.rate)]);

  function draw() {
    const width = picture.clientWidth || 800;
    const { left, right, top, bottom, height } = ROOM;
    const part = (value, [low, high]) => (Math.log10(value) - Math.log10(low)) / (Math.log10(high) - Math.log10(low));
    const x = (value) => left + part(value, across) * (width - left - right);
    const y = (value) => height - bottom - part(value, up) * (height - top - bottom);
    const parts = [makeSvg("clipPath", { id: "roofline-clip" }, makeSvg("rect", { x: left, y: top, width: width - left - right, height: height - top - bottom }))];
    const write = (text, where) => { const node = makeSvg("text", where); node.textContent = text; parts.push(node); };
    for (let value = up[0]; value <= up[1] * 1.01; value *= 10) {
      parts.push(makeSvg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value) }));
      write(`${words.flops(value).replace(".00", "").replace(".0", "")}/s`, { x: left - 8, y: y(value) + 4, "text-anchor": "end" });
    }
    for (let value = across[0]; value <= across[1] * 1.01; value *= 10) {
      parts.push(makeSvg("line", { x1: x(value), x2: x(value), y1: top, y2: height - bottom }));
      write(String(Number(value.toPrecision(1))), { x: x(value), y: height - bottom + 16, "text-anchor": "middle" });
    }
    write("FLOP per byte", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" });
    limits.forEach((limit, number) => {
      const [from, to] = limit.flat ? [limit.rate, limit.rate] : across.map((one) => one * limit.rate);
      const path = makeSvg("path", { class: "limit", d: `M${x(across[0])} ${y(from)}L${x(across[1])} ${y(to)}`, "clip-path": "url(#roofline-clip)", "data-limit": limit.name, "stroke-dasharray": limit.flat ? "" : "7 4" });
      path.style.stroke = `hsl(${LINE_HUES[number % LINE_HUES.length]} 62% 50%)`;
      parts.push(path);
    });
    const dots = rows.map((row) => ({ x: x(row.intensity_flops_per_byte), y: y(row.compute_tflop_per_s * 1e12), r: 4 + 9 * Math.sqrt(row.total_ns / most) }));
    rows.forEach((row, number) => {
      const dot = makeSvg("circle", {
        class: number === at ? "dot chosen" : "dot", cx: dots[number].x, cy: dots[number].y, r: dots[number].r, "data-name": row.name, on: { click: () => choose(number) },
      });
      const title = makeSvg("title");
      title.textContent = say(row);
      dot.append(title);
      parts.push(dot);
    });
    const written = [];
    rows.slice(0, LABELED).forEach((row, number) => {
      const text = (row.short ?? row.name).replace(/ [[(].*/, "");
      const box = placeOf(dots[number], CHARACTER_WIDTH * text.length, { from: left, until: width - right, top, bottom: height - bottom }, dots, written);
      if (!box) return; // Its dot has a title.
      written.push(box);
      write(text, { x: box.from, y: box.bottom - 3, "data-label": row.name });
    });
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.replaceChildren(...parts);
  }

  function choose(number) {
    at = Math.min(rows.length - 1, Math.max(0, number));
    chosen.textContent = say(rows[at]);
    draw();
  }

  picture.addEventListener("keydown", (event) => {
    const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    choose(next);
  });
  const columns = [
    { key: "name", label: "operation", kind: "text" },
    ...[["total_ns", "time"], ["compute_tflop_per_s", "rate"], ["intensity_flops_per_byte", "FLOP per byte"], ["of_peak_percent", "of peak"]].map(([key, label]) => ({
      key, label, kind: "number", show: (value) => words.of(key, value), exact: (value) => words.exactly(key, value),
    })),
    { key: "detail", label: "limit", kind: "text", second: true },
  ];
  const table = sortableTable("Operations of the roofline", columns, rows, { key: null, descending: true, search: "", all: false }, announce);
  table.draw();
  const section = card("roofline", "Roofline");
  section.append(picture,
    make("ul", { class: "legend" }, ...limits.map((limit, number) => make("li", {}, make("span", { class: "swatch", style: { background: `hsl(${LINE_HUES[number % LINE_HUES.length]} 62% 50%)` } }), limit.name))),
    chosen,
    make("p", { class: "small soft", id: "roofline-keys", text: "Each dot is an operation with one set of input shapes; its size is the total time. Arrow keys: next or previous dot, longest time first." +
      (limits.length ? "" : " The peaks of this device are unknown: add them to [tool.uprof.devices] in pyproject.toml.") + (all.length > rows.length ? ` ${words.count(all.length - rows.length)} rows without known FLOP/s have no dot.` : "") }),
    make("details", {}, make("summary", { text: "As a table" }), table.element));
  new ResizeObserver(draw).observe(picture);
  return section;
}
