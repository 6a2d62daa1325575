// Lines over time, as SVG.

const LINE_HUES = [214, 28, 168, 286, 350, 92, 48, 246];
const UNIT_WORDS = { B: words.size, "B/s": words.rate, "%": (value) => `${value.toFixed(0)} %`, MHz: (value) => `${words.count(Math.round(value))} MHz` };
const UNIT_TITLES = { "%": "Load over time", MHz: "Frequency over time", launches: "Queued launches over time" };
/** Text of a tick: a unit that the title names is left out. */
const tickText = (unit, value) => (value === 0 ? "0" : unit in UNIT_TITLES && !(unit in UNIT_WORDS) ? words.count(value) : inUnit(unit)(value));
const CHARACTER_WIDTH = 7;
/** Unknown units are shown unchanged. */
const inUnit = (unit) => UNIT_WORDS[unit] || ((value) => `${words.count(Math.round(value * 1000) / 1000)} ${unit}`.trim());

/** True if a series has a value other than 0. */
const anything = (one) => one.value.some((value) => value !== 0);

function chartSections(report) {
  const sections = [];
  const memory = report.memory.filter(anything);
  const counters = report.counters.filter(anything);
  if (memory.length) sections.push(chartSection("memory", "Memory over time", memory, report.view));
  const rates = counters.filter((one) => one.unit === "B/s");
  if (rates.length) sections.push(chartSection("bandwidth", "Bandwidth over time", rates, report.view));
  const units = [...new Set(counters.map((one) => one.unit))].filter((unit) => unit !== "B/s");
  for (const unit of units) {
    sections.push(chartSection(`counter-${unit === "%" ? "load" : unit}`, UNIT_TITLES[unit] || "Counters over time", counters.filter((one) => one.unit === unit), report.view));
  }
  return sections;
}

function chartSection(id, title, series, view) {
  const section = card(id, title);
  const several = new Set(series.map((one) => one.device)).size > 1;
  // Largest first: totals precede their parts, and initially hidden lines are small.
  const lines = [...series].sort((a, b) => b.max - a.max).map((one, number) => ({
    ...one,
    title: several ? `${one.device}: ${one.name}` : one.name,
    color: `hsl(${LINE_HUES[number % LINE_HUES.length]} 62% ${number < LINE_HUES.length ? 50 : 66}%)`,
    shown: number < 6 && one.max > 0,
  }));
  const picture = makeSvg("svg", { class: "chart", role: "img", "aria-label": `${title}; maximum values are in the list below` });
  const tip = make("div", { class: "tip", hidden: true });
  const legend = make("ul", { class: "legend" }, ...lines.map((line) => make("li", {}, make("button", {
    type: "button", "aria-pressed": line.shown,
    on: {
      click(event) {
        line.shown = !line.shown;
        event.currentTarget.setAttribute("aria-pressed", String(line.shown));
        draw();
      },
    },
  }, make("span", { class: "swatch", style: { background: line.color } }), `${line.title} `, make("span", { class: "soft", text: `max ${inUnit(line.unit)(line.max)}` })))));
  section.append(picture, tip, legend);
  const thinned = lines.filter((line) => line.samples > line.time_ns.length);
  if (thinned.length) {
    const most = Math.max(...thinned.map((line) => line.samples));
    section.append(make("p", { class: "small soft", text: `Up to ${words.count(most)} samples per line; of adjacent samples, the minimum and maximum are drawn.` }));
  }

  let left = 74;

  function draw() {
    const { from, to } = view;
    const width = picture.clientWidth || 800;
    const height = 260;
    const [bottom, top] = [26, 10];
    const most = Math.max(1e-9, ...lines.filter((line) => line.shown).map((line) => line.max)) * 1.04;
    const { unit } = lines[0];
    const factor = unit === "B" ? SIZES.find(([one]) => most >= one || one === 1)[0] : 1;
    // Counts have whole ticks.
    const least = unit in UNIT_WORDS || !lines.every((line) => line.value.every(Number.isInteger)) ? 0 : 1;
    const rise = roundStep(Math.max(least, most / factor / 5)) * factor;
    const ticks = [];
    for (let value = 0; value <= most; value += rise) ticks.push([value, tickText(unit, value)]);
    left = 16 + CHARACTER_WIDTH * Math.max(...ticks.map(([, text]) => text.length));
    const x = (time) => left + ((time - from) / (to - from)) * (width - left - 12);
    const y = (value) => height - bottom - (value / most) * (height - bottom - top);
    const parts = [];
    for (const [value, label] of ticks) {
      parts.push(makeSvg("line", { x1: left, x2: width - 12, y1: y(value), y2: y(value) }));
      const text = makeSvg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" });
      text.textContent = label;
      parts.push(text);
    }
    const stride = roundStep((to - from) / Math.max(2, width / 130));
    for (let mark = Math.ceil(from / stride) * stride; mark <= to; mark += stride) {
      const text = makeSvg("text", { x: x(mark), y: height - 6, "text-anchor": x(mark) < left + 20 ? "start" : "middle" });
      text.textContent = mark ? words.duration(mark) : "0";
      parts.push(text);
    }
    const clip = makeSvg("clipPath", { id: `${id}-clip` }, makeSvg("rect", { x: left, y: 0, width: width - left - 12, height }));
    parts.push(clip);
    for (const line of lines) {
      if (!line.shown) continue;
      const [first, last] = visible(line.time_ns, from, to);
      const points = [];
      for (let index = first; index <= last; index += 1) {
        // A value holds until the next one.
        const [at, level] = [x(line.time_ns[index]).toFixed(1), y(line.value[index]).toFixed(1)];
        points.push(index > first ? `H${at}V${level}` : `M${at} ${level}`);
      }
      const path = makeSvg("path", { d: points.join(""), "clip-path": `url(#${id}-clip)` });
      path.style.stroke = line.color;
      parts.push(path);
    }
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.replaceChildren(...parts);
    picture.dataset.from = String(from);
    picture.dataset.to = String(to);
    picture.dataset.left = String(left);
  }

  function moment(event) {
    const box = picture.getBoundingClientRect();
    return view.from + ((event.clientX - box.left - left) / (box.width - left - 12)) * (view.to - view.from);
  }

  picture.addEventListener("pointermove", (event) => {
    const time = moment(event);
    const found = lines.filter((line) => line.shown).map((line) => {
      const next = line.time_ns.findIndex((one) => one > time);
      const index = next < 0 ? line.time_ns.length - 1 : Math.max(0, next - 1);
      return `${line.title}: ${inUnit(line.unit)(line.value[index])}`;
    });
    tip.hidden = time < view.from || time > view.to;
    tip.textContent = `${words.duration(Math.max(0, time))}  ${found.join("; ")}`;
    tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.clientY + 18}px`;
  });
  picture.addEventListener("pointerleave", () => { tip.hidden = true; });
  picture.addEventListener("wheel", (event) => view.wheel(event, moment(event), picture.clientWidth), { passive: false });
  view.follow(draw);
  new ResizeObserver(draw).observe(picture);
  return section;
}

/** First and last point to draw: the visible ones and one more on each side. */
function visible(times, from, to) {
  let first = times.findIndex((time) => time >= from);
  first = first < 0 ? times.length - 1 : Math.max(0, first - 1);
  let last = times.findIndex((time) => time > to);
  last = last < 0 ? times.length - 1 : last;
  return [first, last];
}
