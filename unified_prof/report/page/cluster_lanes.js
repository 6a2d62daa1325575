// Timelines of selected ranks in one step on one clock: kernels above, communication below.

const LANE_HEIGHT = 30;
const LABEL_WIDTH = 86;
const AXIS = 24;
/** Colors of the rows of a rank; the first row has the kernels. */
const LANE_COLORS = ["--compute", "--communication", "--other", "--copy", "--high", "--rest"];

function lanesSection() {
  const data = page.lanes;
  if (!data) return null;
  const lanes = data.ranks.map((lane) => {
    const start = numbersOf(lane.start, lane.count);
    for (let index = 1; index < lane.count; index += 1) start[index] += start[index - 1];
    return { ...lane, start, duration: numbersOf(lane.duration, lane.count), label: numbersOf(lane.label, lane.count) };
  });
  const view = { from: 0, to: data.duration_ns };
  const common = lanes.filter((lane) => lane.aligned).length;
  const title = `Step ${data.step} ${lanes.length === 1 ? `of rank ${lanes[0].rank}` : common > 1 ? "on one clock" : "on separate clocks"}`;
  const canvas = make("canvas", { tabindex: 0, role: "img", "aria-label": `${title}, ${lanes.length} ${lanes.length === 1 ? "rank" : "ranks"}: kernels and communication` });
  const tip = make("div", { class: "tip", hidden: true });

  const colorOf = (label) => LANE_COLORS[label === 0 ? 0 : 1 + ((label - 1) % (LANE_COLORS.length - 1))];

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth;
    const height = AXIS + lanes.length * LANE_HEIGHT;
    canvas.style.setProperty("height", `${height}px`);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const [ink, line, card_] = ["--ink", "--line", "--card"].map((name) => style.getPropertyValue(name).trim());
    context.fillStyle = card_;
    context.fillRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const scaleOf = (width - LABEL_WIDTH) / (view.to - view.from);
    const x = (time) => LABEL_WIDTH + (time - view.from) * scaleOf;
    const colors = data.labels.map((_, index) => style.getPropertyValue(colorOf(index)).trim());
    for (let tick = 0; tick <= 4; tick += 1) {
      const time = view.from + ((view.to - view.from) * tick) / 4;
      context.fillStyle = ink;
      context.textAlign = tick === 0 ? "left" : tick === 4 ? "right" : "center";
      context.fillText(words.duration(time), x(time), AXIS / 2);
    }
    lanes.forEach((lane, number) => {
      const top = AXIS + number * LANE_HEIGHT;
      context.fillStyle = line;
      context.fillRect(0, top, width, 1);
      context.save();
      context.beginPath();
      context.rect(LABEL_WIDTH, top, width - LABEL_WIDTH, LANE_HEIGHT);
      context.clip();
      context.globalAlpha = 0.35;
      context.fillRect(x(lane.from_ns), top + 2, Math.max(1, x(lane.to_ns) - x(lane.from_ns)), LANE_HEIGHT - 3);
      context.globalAlpha = 1;
      for (let index = 0; index < lane.count; index += 1) {
        const left = x(lane.start[index]);
        const wide = lane.duration[index] * scaleOf;
        if (left > width || left + wide < LABEL_WIDTH) continue;
        const kernels = lane.label[index] === 0;
        context.fillStyle = colors[lane.label[index]];
        context.fillRect(left, top + (kernels ? 4 : 17), Math.max(0.6, wide), 11);
      }
      context.restore();
      context.fillStyle = ink;
      context.textAlign = "left";
      context.fillText(`rank ${lane.rank}${lane.aligned ? "" : " *"}`, 4, top + LANE_HEIGHT / 2);
    });
    canvas.dataset.drawn = "yes";
  }

  function found(event) {
    const box = canvas.getBoundingClientRect();
    const number = Math.floor((event.clientY - box.top - AXIS) / LANE_HEIGHT);
    const lane = lanes[number];
    if (!lane || event.clientX - box.left < LABEL_WIDTH) return null;
    const time = view.from + ((event.clientX - box.left - LABEL_WIDTH) / (box.width - LABEL_WIDTH)) * (view.to - view.from);
    const lower = event.clientY - box.top - AXIS - number * LANE_HEIGHT > 16;
    const slack = ((view.to - view.from) / (box.width - LABEL_WIDTH)) * 2;
    for (let index = 0; index < lane.count; index += 1) {
      if ((lane.label[index] !== 0) === lower && lane.start[index] - slack <= time && time <= lane.start[index] + lane.duration[index] + slack) return { lane, index };
    }
    return null;
  }

  function zoom(factor, at) {
    const share = Math.min(1, Math.max(0, at));
    const middle = view.from + (view.to - view.from) * share;
    const length = Math.min(data.duration_ns, Math.max(1000, (view.to - view.from) * factor));
    view.from = Math.min(Math.max(0, middle - length * share), data.duration_ns - length);
    view.to = view.from + length;
    draw();
  }

  function move(share) {
    const length = view.to - view.from;
    view.from = Math.min(Math.max(0, view.from + length * share), data.duration_ns - length);
    view.to = view.from + length;
    draw();
  }

  canvas.addEventListener("pointermove", (event) => {
    const one = found(event);
    tip.hidden = one === null;
    if (one === null) return;
    const { lane, index } = one;
    tip.textContent = `rank ${lane.rank}: ${data.labels[lane.label[index]]}, ${words.duration(lane.duration[index])} from ${words.duration(lane.start[index])}`;
    tip.style.setProperty("left", `${Math.min(event.clientX + 14, window.innerWidth - 240)}px`);
    tip.style.setProperty("top", `${event.clientY + 14}px`);
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("keydown", (event) => {
    const acts = { "+": () => zoom(0.5, 0.5), "-": () => zoom(2, 0.5), ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25), "0": () => zoom(Infinity, 0) };
    if (!(event.key in acts)) return;
    event.preventDefault();
    acts[event.key]();
  });
  document.addEventListener("themechange", () => { if (canvas.isConnected) draw(); });
  new ResizeObserver(() => { if (canvas.isConnected) draw(); }).observe(canvas);

  const button = (text, label, act) => make("button", { type: "button", text, "aria-label": label, on: { click: act } });
  const section = card("lanes", title, make("div", { class: "group" },
    button("−", "Zoom out", () => zoom(2, 0.5)), button("+", "Zoom in", () => zoom(0.5, 0.5)), button("◀", "Earlier", () => move(-0.25)), button("▶", "Later", () => move(0.25)), button("All", "Show the whole step", () => zoom(Infinity, 0))));
  section.classList.add("lanes-of-ranks");
  const notes = common > 1 ? [`Clocks agree within about ${words.duration(data.error_ns)}.`] : [];
  if (lanes.some((lane) => !lane.aligned)) notes.push("Ranks with * share no event with the first rank and are drawn on their own clock.");
  const left = lanes.reduce((sum, lane) => sum + lane.left_out, 0);
  if (left) notes.push(`The ${words.count(left)} shortest kernels are not drawn.`);
  section.append(canvas, make("ul", { class: "legend" }, ...data.labels.map((text, index) => make("li", {},
    make("span", { class: "swatch", style: { background: `var(${colorOf(index)})` } }), text.replaceAll("_", " ")))), tip,
  make("p", { class: "small soft", text: notes.join(" ") }));
  return section;
}
