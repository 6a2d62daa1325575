// The device's streams over time, on a canvas. Tasks that share a pixel are drawn once, so the
// cost of a picture depends on its width and not on the number of tasks.

const AXIS = 26;
const LANE = 28;
const KINDS = ["operation", "compute", "communication", "copy", "weight", "other", "wait"];

/** The part of the recording that timeline and charts show: one zero and one zoom for all. */
function makeView(span) {
  const whole = [0, Math.max(1, span)];
  const followers = [];
  const view = {
    whole, from: whole[0], to: whole[1],
    follow(call) { followers.push(call); },
    look(from, to) {
      const length = Math.min(whole[1], Math.max(Math.min(whole[1], 50), to - from));
      view.from = Math.min(Math.max(0, from), whole[1] - length);
      view.to = view.from + length;
      for (const call of followers) call();
    },
    zoom(factor, at = (view.from + view.to) / 2) {
      view.look(at - (at - view.from) * factor, at + (view.to - at) * factor);
    },
    pan(part) {
      const shift = part * (view.to - view.from);
      view.look(view.from + shift, view.to + shift);
    },
    /** Ctrl with the wheel zooms at a moment, a wheel sideways moves. */
    wheel(event, time, width) {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        view.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.01), time);
      } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
        event.preventDefault();
        view.pan((event.deltaX || event.deltaY) / width);
      }
    },
  };
  return view;
}

function timelineSection(report, announce) {
  const data = report.timeline;
  if (!data) return null;
  const lanes = data.lanes.map((lane) => decodeLane(lane, data.merged_below_ns > 0));
  const view = report.view;
  const { look, zoom, pan, whole } = view;
  const state = { lane: 0, index: -1 };
  const canvas = make("canvas", {
    tabindex: 0, role: "application", "aria-roledescription": "timeline", "aria-describedby": "timeline-keys",
    "aria-label": `Device timeline, ${lanes.length} lanes, ${words.duration(data.duration_ns)}`,
  });
  const names = make("div", { class: "lanes" }, ...lanes.map((lane) => make("div", { text: lane.title, title: lane.title })));
  const range = make("span", { class: "small soft mono", id: "range" });
  const chosen = make("p", { class: "small", id: "chosen", "aria-live": "polite" });
  const tip = make("div", { class: "tip", hidden: true });
  const button = (text, label, call) => make("button", { type: "button", text, "aria-label": label, on: { click: call } });
  const section = card("timeline", "Device timeline", range, make("div", { class: "group" },
    button("\u2212", "Zoom out", () => zoom(2)),
    button("+", "Zoom in", () => zoom(0.5)),
    button("Fit", "Show everything", () => look(...whole))));
  const kinds = [...new Set(lanes.flatMap((lane) => [...new Set(lane.kind)]))].sort();
  section.append(
    make("div", { class: "timeline" }, names, canvas), tip,
    make("ul", { class: "legend" }, ...kinds.map((kind) => make("li", {}, make("span", { class: "swatch", style: { background: `var(--${KINDS[kind]})` } }), KINDS[kind]))),
    chosen,
    make("p", { class: "small soft", id: "timeline-keys" },
      "Drag or ", key("\u2190"), key("\u2192"), " to move, ", key("+"), key("\u2212"), " or Ctrl with the wheel to zoom, ", key("0"), " to fit; ",
      key("n"), key("p"), " next and previous task, ", key("\u2191"), key("\u2193"), " lane."),
    ...notes());

  function key(text) {
    return make("kbd", { text });
  }

  function notes() {
    const lines = [];
    if (data.merged_below_ns) {
      const part = data.whole_ns;
      const every = part ? ` In the busiest part, from ${words.duration(part[0])} to ${words.duration(part[1])}, every task is drawn. ` : " ";
      lines.push(make("p", { class: "small soft", id: "merged" },
        `${words.count(data.tasks)} tasks are too many to draw one by one: neighbours shorter than ${words.duration(data.merged_below_ns)} are merged into blocks.`,
        every,
        part ? make("button", { type: "button", text: "Show the busiest part", on: { click: () => look(...part) } }) : null,
        " For all of them, at any zoom: ", make("code", { text: `uprof trace ${report.figures.path} -o out.perfetto-trace` }), ", then open it at ui.perfetto.dev."));
    }
    if (data.lanes_left_out) lines.push(make("p", { class: "small soft", text: `${words.count(data.lanes_left_out)} lanes with the least work are left out.` }));
    return lines;
  }

  function draw() {
    const width = canvas.clientWidth;
    const height = AXIS + lanes.length * LANE;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(`--${name}`).trim();
    pen.fillStyle = color("card");
    pen.fillRect(0, 0, width, height);
    drawAxis(pen, width, height, color);
    const fills = KINDS.map((kind) => color(kind));
    lanes.forEach((lane, number) => drawLane(pen, lane, number, width, fills, color));
    range.textContent = `${words.duration(view.from)} to ${words.duration(view.to)}`;
    canvas.dataset.from = String(view.from);
    canvas.dataset.to = String(view.to);
    [...names.children].forEach((node, number) => node.classList.toggle("chosen", number === state.lane && state.index >= 0));
  }

  function drawAxis(pen, width, height, color) {
    const step = roundStep((view.to - view.from) / Math.max(2, width / 110));
    pen.strokeStyle = color("line");
    pen.fillStyle = color("soft");
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (let mark = Math.ceil(view.from / step) * step; mark <= view.to; mark += step) {
      const x = Math.round(place(mark, width)) + 0.5;
      pen.beginPath();
      pen.moveTo(x, AXIS - 6);
      pen.lineTo(x, height);
      pen.stroke();
      const text = mark === 0 ? "0" : words.duration(mark);
      if (x + pen.measureText(text).width + 4 < width) pen.fillText(text, x + 4, AXIS / 2);
    }
  }

  function place(time, width) {
    return ((time - view.from) / (view.to - view.from)) * width;
  }

  function drawLane(pen, lane, number, width, fills, color) {
    const top = AXIS + number * LANE;
    pen.fillStyle = color("line");
    pen.fillRect(0, top + LANE - 1, width, 1);
    let covered = -1;
    for (let index = firstVisible(lane, view.from); index < lane.count && lane.start[index] <= view.to; index += 1) {
      const left = place(lane.start[index], width);
      const right = place(lane.start[index] + lane.duration[index], width);
      if (right < 0 || (Math.floor(right) <= covered && index !== state.index)) continue;
      const x = Math.max(0, left);
      const wide = Math.max(1, Math.min(width, right) - x);
      covered = Math.floor(x + wide - 0.5);
      pen.fillStyle = fills[lane.kind[index]];
      pen.globalAlpha = lane.tasks[index] > 1 ? 0.45 + 0.55 * Math.min(1, lane.busy[index] / Math.max(1, lane.duration[index])) : 1;
      pen.fillRect(x, top + 4, wide, LANE - 9);
      pen.globalAlpha = 1;
      if (number === state.lane && index === state.index) {
        pen.strokeStyle = color("ink");
        pen.lineWidth = 2;
        pen.strokeRect(x + 1, top + 4, Math.max(2, wide - 2), LANE - 9);
        pen.lineWidth = 1;
      }
      if (wide > 46) {
        pen.fillStyle = color(KINDS[lane.kind[index]] === "compute" ? "on-compute" : "on-other");
        label(pen, labelOf(lane, index), x + 5, top + LANE / 2, wide - 9);
      }
    }
  }

  function label(pen, text, x, y, room) {
    pen.font = "12px system-ui, sans-serif";
    pen.save();
    pen.beginPath();
    pen.rect(x, y - LANE / 2, room, LANE);
    pen.clip();
    pen.fillText(text, x, y);
    pen.restore();
  }

  function labelOf(lane, index) {
    const name = data.labels[lane.label[index]] ?? "(name left out)";
    return lane.tasks[index] > 1 ? `${words.count(lane.tasks[index])} tasks, longest ${name}` : name;
  }

  function sentence(lane, index) {
    const busy = lane.tasks[index] > 1 ? `, ${words.duration(lane.busy[index])} of it busy` : "";
    return `${labelOf(lane, index)}: ${words.duration(lane.duration[index])}${busy}, from ${words.duration(lane.start[index])}, ${lane.title}`;
  }

  /** The task under a point of the canvas, as [lane number, index]. */
  function at(event) {
    const box = canvas.getBoundingClientRect();
    const number = Math.floor((event.clientY - box.top - AXIS) / LANE);
    const lane = lanes[number];
    if (!lane) return null;
    const time = view.from + ((event.clientX - box.left) / box.width) * (view.to - view.from);
    const slack = (1.5 * (view.to - view.from)) / box.width;
    let best = null;
    for (let index = firstVisible(lane, time - slack); index < lane.count && lane.start[index] <= time + slack; index += 1) {
      const away = Math.max(lane.start[index] - time, time - lane.start[index] - lane.duration[index], 0);
      if (away <= slack && (best === null || away <= best[1])) best = [index, away];
    }
    return best && [number, best[0]];
  }

  function choose(number, index) {
    const lane = lanes[number];
    state.lane = number;
    state.index = Math.min(Math.max(0, index), lane.count - 1);
    const [start, end] = [lane.start[state.index], lane.start[state.index] + lane.duration[state.index]];
    if (end < view.from || start > view.to) {
      const length = view.to - view.from;
      look((start + end) / 2 - length / 2, (start + end) / 2 + length / 2);
    } else draw();
    chosen.textContent = sentence(lane, state.index);
  }

  function nearest(number) {
    const lane = lanes[number];
    const middle = (view.from + view.to) / 2;
    return Math.min(lane.count - 1, firstVisible(lane, middle));
  }

  const keys = {
    ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2),
    0: () => look(...whole), Home: () => look(...whole),
    n: () => choose(state.lane, state.index < 0 ? nearest(state.lane) : state.index + 1),
    p: () => choose(state.lane, state.index < 0 ? nearest(state.lane) : state.index - 1),
    ArrowUp: () => change(-1), ArrowDown: () => change(1),
  };

  function change(step) {
    const number = Math.min(lanes.length - 1, Math.max(0, state.lane + step));
    choose(number, nearest(number));
  }

  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
    if ("+-=0".includes(event.key)) announce(range.textContent);
  });
  canvas.addEventListener("wheel", (event) => {
    const box = canvas.getBoundingClientRect();
    view.wheel(event, view.from + ((event.clientX - box.left) / box.width) * (view.to - view.from), box.width);
  }, { passive: false });
  let grip = null;
  canvas.addEventListener("pointerdown", (event) => {
    grip = { x: event.clientX, from: view.from, to: view.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (grip) {
      const shift = ((grip.x - event.clientX) / canvas.clientWidth) * (grip.to - grip.from);
      if (Math.abs(event.clientX - grip.x) > 3) grip.moved = true;
      if (grip.moved) look(grip.from + shift, grip.to + shift);
      tip.hidden = true;
      return;
    }
    const hit = at(event);
    tip.hidden = !hit;
    if (!hit) return;
    tip.textContent = sentence(lanes[hit[0]], hit[1]);
    tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.clientY + 18}px`;
  });
  canvas.addEventListener("pointerup", (event) => {
    const hit = grip && !grip.moved ? at(event) : null;
    grip = null;
    if (hit) choose(...hit);
  });
  canvas.addEventListener("pointercancel", () => { grip = null; });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("dblclick", (event) => {
    const hit = at(event);
    if (!hit) return;
    const lane = lanes[hit[0]];
    const length = Math.max(lane.duration[hit[1]], 10);
    look(lane.start[hit[1]] - length, lane.start[hit[1]] + 2 * length);
  });
  view.follow(draw);
  document.addEventListener("themechange", draw);
  new ResizeObserver(draw).observe(canvas);
  return section;
}

function decodeLane(lane, merged) {
  const count = lane.count;
  const start = numbersOf(lane.start, count);
  for (let index = 1; index < count; index += 1) start[index] += start[index - 1];
  const duration = numbersOf(lane.duration, count);
  // The end of everything up to a block: tasks of one lane may overlap, so ends alone are not sorted.
  const reach = new Float64Array(count);
  for (let index = 0; index < count; index += 1) reach[index] = Math.max(index ? reach[index - 1] : 0, start[index] + duration[index]);
  return {
    title: lane.title, count, start, duration, reach,
    label: numbersOf(lane.label, count),
    kind: numbersOf(lane.kind, count),
    tasks: merged ? numbersOf(lane.tasks, count) : new Float64Array(count).fill(1),
    busy: merged ? numbersOf(lane.busy, count) : duration,
  };
}

/** The first block that reaches to `time` or beyond. */
function firstVisible(lane, time) {
  let [low, high] = [0, lane.count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.reach[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** 1, 2 or 5 times a power of ten, not below `least`. */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1e-9)));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= least);
}
