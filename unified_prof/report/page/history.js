// Versions of baselines over time: a chart with intervals and marked changes, and its table.

const SHAPES = { worse: "M0 -8L8 6L-8 6Z", better: "M0 8L8 -6L-8 -6Z", restarted: "M0 -7L7 0L0 7L-7 0Z" };
const ROOM = { left: 78, right: 16, top: 30, bottom: 34 };

const inUnitOf = (series) => (series.unit === "B" ? words.size : words.duration);
const commitOf = (point) => (point.commit ? point.commit.slice(0, 10) : NOT_MEASURED);

/** Description of a version in a sentence. */
function sentence(series, point) {
  const show = inUnitOf(series);
  const parts = [`version ${point.version}`, point.commit ? `commit ${commitOf(point)}` : null, point.saved_at.slice(0, 16).replace("T", " "),
    point.value === null ? "not measured" : show(point.value),
    point.low === null ? null : `between ${show(point.low)} and ${show(point.high)}`,
    `${words.count(point.runs)} run${point.runs === 1 ? "" : "s"}`, point.said || null, point.change === "restarted" ? point.reason : null];
  return parts.filter(Boolean).join(", ");
}

function historySection(series, number) {
  const section = card(`series-${number}`, series.title);
  const picture = makeSvg("svg", { class: "chart history", role: "group", "aria-label": `${series.title}: ${words.count(series.points.length)} versions; the table below has the figures` });
  const tip = make("div", { class: "tip", hidden: true });
  const show = inUnitOf(series);
  const known = series.points.filter((point) => point.value !== null);
  section.append(picture, tip, legendOf(series), tableOf(series));
  if (!known.length) {
    picture.remove();
    section.append(make("p", { class: "soft", text: "No version has this metric." }));
    return section;
  }
  const ends = known.flatMap((point) => [point.low ?? point.value, point.high ?? point.value]);
  const least = Math.min(...ends);
  const most = Math.max(...ends);
  // The axis does not begin at 0, so that changes of a few percent are visible.
  const spare = (most - least || most || 1) * 0.08;
  const from = Math.max(0, least - spare);
  const to = most + spare;

  function draw() {
    const width = Math.max(280, picture.clientWidth || 800);
    const height = 300;
    const count = series.points.length;
    const step = (width - ROOM.left - ROOM.right) / count;
    const x = (index) => ROOM.left + (index + 0.5) * step;
    const y = (value) => height - ROOM.bottom - ((value - from) / (to - from)) * (height - ROOM.bottom - ROOM.top);
    const parts = [];
    const label = (text, properties) => {
      const node = makeSvg("text", properties);
      node.textContent = text;
      parts.push(node);
    };
    const unit = series.unit === "B" ? SIZES.find(([one]) => most >= one || one === 1)[0] : 1;
    const rise = roundRise((to - from) / unit / 4) * unit;
    for (let value = Math.ceil(from / rise) * rise; value <= to; value += rise) {
      parts.push(makeSvg("line", { x1: ROOM.left, x2: width - ROOM.right, y1: y(value), y2: y(value) }));
      label(show(value), { x: ROOM.left - 8, y: y(value) + 4, "text-anchor": "end" });
    }
    const every = Math.max(1, Math.ceil((width < 600 ? 70 : 96) / step));
    series.points.forEach((point, index) => {
      if (index % every === 0) label(point.commit ? commitOf(point).slice(0, 8) : `@${point.version}`, { x: x(index), y: height - 10, "text-anchor": "middle" });
    });
    parts.push(...levels(series).map(([first, last, value]) => makeSvg("line", { class: "level", x1: x(first) - step / 2, x2: x(last) + step / 2, y1: y(value), y2: y(value) })));
    let free = -Infinity;
    series.points.forEach((point, index) => {
      if (point.value === null) return;
      const kind = point.change ?? "";
      const group = makeSvg("g", { class: "point", tabindex: 0, role: "img", "aria-label": sentence(series, point) });
      if (point.low !== null) {
        const wing = Math.min(6, step / 3);
        const [top, bottom] = [y(point.high), y(point.low)];
        for (const [x1, x2, y1, y2] of [[0, 0, top, bottom], [-wing, wing, top, top], [-wing, wing, bottom, bottom]]) {
          group.append(makeSvg("line", { class: `bar ${kind}`, x1: x(index) + x1, x2: x(index) + x2, y1, y2 }));
        }
      }
      const place = `translate(${x(index).toFixed(1)} ${y(point.value).toFixed(1)})`;
      group.append(kind ? makeSvg("path", { class: `dot ${kind}`, d: SHAPES[kind], transform: place }) : makeSvg("circle", { class: "dot", r: Math.max(2.5, Math.min(5, step / 3)), transform: place }));
      for (const event of ["pointerenter", "focus"]) group.addEventListener(event, () => tell(group, sentence(series, point)));
      for (const event of ["pointerleave", "blur"]) group.addEventListener(event, () => { tip.hidden = true; });
      parts.push(group);
      if (point.said && x(index) - free > 12) {
        const text = point.said;
        const half = text.length * 3.6;
        const at = Math.min(Math.max(x(index), ROOM.left + half), width - ROOM.right - half);
        if (at - half > free) {
          label(text, { class: "said", x: at, y: Math.max(14, y(point.high ?? point.value) - 14), "text-anchor": "middle" });
          free = at + half;
        }
      }
    });
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.replaceChildren(...parts);
  }

  function tell(group, text) {
    const box = group.getBoundingClientRect();
    tip.textContent = text;
    tip.hidden = false;
    tip.style.left = `${Math.max(8, Math.min(box.left, window.innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${box.bottom + 10}px`;
  }

  new ResizeObserver(draw).observe(picture);
  return section;
}

/** Smallest 1, 2 or 5 times a power of ten that is not below the value. */
function roundRise(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].find((one) => one * power >= least * 0.999) * power;
}

/** Sections between changes: first and last index, and the geometric mean of their values. */
function levels(series) {
  const found = [];
  series.points.forEach((point, index) => {
    if (point.value === null) return;
    if (!found.length || point.change) found.push({ first: index, last: index, sum: 0, count: 0 });
    const level = found[found.length - 1];
    level.last = index;
    level.sum += Math.log(Math.max(point.value, Number.MIN_VALUE));
    level.count += 1;
  });
  return found.map((level) => [level.first, level.last, Math.exp(level.sum / level.count)]);
}

function legendOf(series) {
  const kinds = [...new Set(series.points.map((point) => point.change).filter(Boolean))];
  const said = { worse: series.unit === "B" ? "larger" : "slower", better: series.unit === "B" ? "smaller" : "faster", restarted: "not comparable with earlier versions" };
  const colors = { worse: "idle-host", better: "copy", restarted: "operation" };
  const entry = (color, text) => make("li", {}, make("span", { class: "swatch", style: { background: `var(--${color})` } }), text);
  return make("ul", { class: "legend" }, entry("compute", `median of a version${series.points.some((point) => point.low !== null) ? ", with its confidence interval" : ""}; dashed: mean since the last change`), ...kinds.map((kind) => entry(colors[kind], said[kind])));
}

function tableOf(series) {
  const show = inUnitOf(series);
  const columns = [
    { key: "version", label: "version", kind: "number", show: (value) => `@${value}`, exact: String },
    { key: "saved", label: "saved (UTC)", kind: "text", second: true },
    { key: "commit", label: "commit", kind: "text", second: true },
    { key: "runs", label: "runs", kind: "number", show: words.count, exact: String },
    ...["value", "low", "high"].map((key) => ({ key, label: { value: "median", low: "from", high: "to" }[key], kind: "number", show, exact: (value) => words.exactly(series.unit === "B" ? "x_bytes" : "x_ns", value) })),
    { key: "said", label: "change", kind: "text", second: true },
    { key: "device", label: "device", kind: "text", second: true },
  ];
  const rows = series.points.map((point) => ({ ...point, saved: point.saved_at.slice(0, 16).replace("T", " "), commit: point.commit ?? "", device: point.device ?? "" }));
  const table = sortableTable(`Versions of ${series.title}`, columns, rows, { search: "", key: "version", descending: true, all: false }, announce);
  table.draw();
  return make("details", {}, make("summary", { text: "Figures" }), table.element);
}

startPage(null, () => [
  make("header", { class: "intro" }, make("h1", { text: page.title }), make("p", { class: "soft", text: page.remarks.replace("changes", "Changes") })),
  ...page.series.map(historySection),
]);
