// Host threads and device streams over time on a canvas. Tasks that share a pixel are drawn once,
// so that the cost depends on the width and not on the number of tasks.

const AXIS = 26;
const LANE = 28;
const STEP_BAND = 18;
const KINDS = ["operation", "compute", "communication", "copy", "weight", "other", "wait"];
/** Minimum height of a merged block as a share of the lane. */
const LOWEST = 0.12;
const LEFT_OUT = "(name left out)";
/** Longer titles of lanes are shortened on narrow screens. */
const MOST_TITLE = 13;
const NO_WORK = { lanes: [], labels: [], tasks: 0, merged_below_ns: 0, lanes_left_out: 0, whole_ns: null };

/** Visible part of the recording, shared by timeline and charts. */
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
    /** Ctrl with the wheel zooms, a horizontal wheel moves. */
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
  if (!report.timeline && !report.host) return null;
  const data = report.timeline ?? NO_WORK;
  const host = hostLanes(report.host);
  const work = data.lanes.map((lane) => ({ ...decodeLane(lane, data.merged_below_ns > 0), raw: lane, height: LANE, labels: data.labels, colors: KINDS, kinds: KINDS }));
  const launches = launchesOf(host, work);
  const [idle, path] = [idleLanes(report), pathLanes(report.path)];
  let lanes = [];
  const view = report.view;
  const { look, zoom, pan, whole } = view;
  const state = { lane: 0, index: -1, wanted: "", span: null, anchor: null, selecting: false };
  const steps = report.steps;
  const crown = AXIS + (steps.length ? STEP_BAND : 0);
  const merged = data.merged_below_ns > 0;
  const what = !host.length ? "Device timeline" : work.length ? "Timeline" : "Host timeline";
  const canvas = make("canvas", {
    tabindex: 0, role: "application", "aria-roledescription": "timeline", "aria-describedby": "timeline-keys",
    "aria-label": `${what}, ${host.length + work.length} lanes, ${words.duration(whole[1])}`,
  });
  const names = make("div", { class: "lanes" });
  // Host threads and other lanes that stay at the top while the others scroll.
  const pinned = new Set();
  const range = make("span", { class: "small soft mono", id: "range" });
  const chosen = make("p", { class: "small", id: "chosen", "aria-live": "polite" });
  const tip = make("div", { class: "tip", hidden: true });
  const find = make("input", { type: "search", placeholder: host.length ? "Search tasks and calls" : "Search tasks", "aria-label": "Search the timeline", id: "find", value: link.get("find") });
  const found = make("p", { class: "small soft", id: "found", "aria-live": "polite" });
  const selection = make("div", { id: "selection" });
  const button = (text, label, call) => make("button", { type: "button", text, "aria-label": label, on: { click: call } });
  const section = card("timeline", what, range, make("div", { class: "search" }, find), make("div", { class: "group" },
    make("button", { type: "button", text: "Select", "aria-label": "Select by dragging", "aria-pressed": false, on: { click: (event) => {
      state.selecting = !state.selecting;
      event.currentTarget.setAttribute("aria-pressed", String(state.selecting));
    } } }),
    host.length && work.length ? make("button", { type: "button", id: "host-shown", text: "Host", "aria-label": "Host threads", "aria-pressed": link.get("host") !== "no", on: { click: (event) => {
      const shown = event.currentTarget.getAttribute("aria-pressed") !== "true";
      event.currentTarget.setAttribute("aria-pressed", String(shown));
      link.set({ host: shown ? null : "no" });
      arrange(shown);
      draw();
    } } }) : null,
    button("Sum", "Sum the visible part", () => select(view.from, view.to)),
    button("\u2212", "Zoom out", () => zoom(2)),
    button("+", "Zoom in", () => zoom(0.5)),
    button("Fit", "Show everything", () => look(...whole))));
  const legend = make("ul", { class: "legend" });
  section.append(
    make("div", { class: "timeline" }, names, canvas), tip, legend,
    found, chosen, selection,
    make("p", { class: "small soft", id: "timeline-keys" },
      "Drag or ", key("\u2190"), key("\u2192"), " to move, ", key("+"), key("\u2212"), " or Ctrl with the wheel to zoom, ", key("0"), " to fit; ",
      key("n"), key("p"), " next and previous, ", key("\u2191"), key("\u2193"), " lane, ", key("t"), " or a click on its name pins it at the top", ...(launches.count ? [", ", key("l"), " from a kernel to its launch and back"] : []), ". ", key("Shift"), " with a drag or ", key("\u2190"), key("\u2192"), " selects a time span and sums its tasks, ", key("Esc"), " clears the selection.",
      launches.count ? ` Arrows connect launches and kernels: all of them if at most ${MOST_ARROWS} are visible, else only those of the selected item.` : ""),
    ...notes(), ...hostNotes(report, look), perfettoLine(report, host, work, launches, labelOf, !merged && !data.lanes_left_out));

  function key(text) {
    return make("kbd", { text });
  }

  /** What is pinned with a lane: the first row of its thread, or the lane itself. */
  function rowOf(lane) {
    return lane.host ? host.find((one) => one.thread === lane.thread) : lane;
  }

  function isPinned(lane) {
    return pinned.has(rowOf(lane));
  }

  function pin(lane) {
    const row = rowOf(lane);
    if (!pinned.delete(row)) pinned.add(row);
    const { index } = state;
    const now = lanes[state.lane];
    arrange(lanes.includes(host[0]));
    announce(`${lane.title} ${pinned.has(row) ? "pinned at the top" : "unpinned"}`);
    if (index >= 0) choose(lanes.indexOf(now), index);
    else draw();
  }

  /** Lay out the lanes. */
  function arrange(withHost) {
    const all = [...(withHost ? host : []), ...work, ...idle, ...path];
    lanes = [...all.filter(isPinned), ...all.filter((lane) => !isPinned(lane))];
    let top = crown;
    names.replaceChildren(make("i", { style: { height: `${crown}px` } }));
    for (const lane of lanes) {
      lane.base = top;
      top += lane.height;
      const part = Boolean(lane.host) && lane.depth > 0;
      // On narrow screens, "thread " is hidden, and in longer titles the rest of the words: p7 t8, d0 s3.
      const pieces = part ? [] : lane.title.startsWith("thread ") ? ["", "thread ", lane.title.slice(7)] :
        lane.title.length > MOST_TITLE ? lane.title.split(/(?<=\b[a-z])([a-z]+ )(?=\d)/) : [lane.title];
      lane.node = make("div", { class: lane.height === HOST_LANE ? "thread" : null, title: `${lane.title}: click to ${isPinned(lane) ? "unpin" : "pin at the top"}`, on: { click: () => pin(lane) } }, ...pieces.map((text, number) => (number % 2 ? make("span", { class: "word", text }) : text)));
      if (isPinned(lane)) {
        lane.node.classList.add("pinned");
        lane.node.style.top = `${lane.base}px`;
      }
      names.append(lane.node);
    }
    [state.lane, state.index] = [0, -1];
    chosen.replaceChildren();
    const seen = new Map(); // The critical path has the colors of what is on it: they are listed once.
    for (const lane of lanes) for (const kind of new Set(lane.kind)) if (!seen.has(lane.colors[kind])) seen.set(lane.colors[kind], lane.kinds[kind]);
    legend.replaceChildren(...[...seen].map(([color, kind]) => make("li", {}, make("span", { class: "swatch", style: { background: `var(--${color})` } }), kind)));
  }

  const bottom = () => lanes.reduce((sum, lane) => sum + lane.height, crown);
  /** Height of the axis, the steps and the pinned lanes. */
  const fixed = () => lanes.filter(isPinned).reduce((sum, lane) => sum + lane.height, crown);

  function notes() {
    const lines = [];
    if (data.merged_below_ns) {
      const part = data.whole_ns;
      const every = part ? ` In the busiest part, from ${words.duration(part[0])} to ${words.duration(part[1])}, each task is drawn. ` : " ";
      lines.push(make("p", { class: "small soft", id: "merged" },
        `${words.count(data.tasks)} tasks are too many to draw one by one: adjacent tasks shorter than ${words.duration(data.merged_below_ns)} are merged into blocks.`,
        every,
        part ? make("button", { type: "button", text: "Show the busiest part", on: { click: () => look(...part) } }) : null,
        " To see all tasks at any zoom level, run ", make("code", { text: `uprof export ${report.figures.path} -o out.perfetto-trace` }), " and open the file at ui.perfetto.dev."));
    }
    if (data.lanes_left_out) lines.push(make("p", { class: "small soft", text: `${words.count(data.lanes_left_out)} lanes with the least work are left out.` }));
    return lines;
  }

  function draw() {
    const width = canvas.clientWidth;
    const height = bottom();
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
    const scrolled = canvas.parentElement?.scrollTop ?? 0;
    for (const lane of lanes) lane.top = lane.base + (isPinned(lane) ? scrolled : 0);
    drawAxis(pen, width, 0, height, color);
    const fills = new Map([...KINDS, ...HOST_COLORS, ...REASONS.map((reason) => `idle-${reason}`)].map((kind) => [kind, color(kind)]));
    drawSteps(pen, width, 0, height, color);
    const drawLanes = (among) => lanes.forEach((lane, number) => {
      if (isPinned(lane) !== among) return;
      drawLane(pen, lane, number, width, fills, color, null);
      if (state.wanted) drawLane(pen, lane, number, width, fills, color, state.matches.get(lane.labels));
    });
    drawLanes(false);
    if (scrolled) {
      pen.fillStyle = color("card");
      pen.fillRect(0, scrolled, width, fixed());
      drawAxis(pen, width, scrolled, fixed(), color);
      drawSteps(pen, width, scrolled, fixed(), color);
    }
    drawLanes(true);
    drawArrows(pen, width, color);
    drawSelection(pen, width, height, color);
    range.textContent = `${words.duration(view.from)} to ${words.duration(view.to)}`;
    canvas.dataset.from = String(view.from);
    canvas.dataset.to = String(view.to);
    lanes.forEach((lane, number) => lane.node.classList.toggle("chosen", number === state.lane && state.index >= 0));
  }

  /** Draw arrows from launches to kernels: all if there are few, else those of the selected item. */
  function drawArrows(pen, width, color) {
    canvas.dataset.arrows = "0";
    if (!launches.count || !lanes.includes(host[0])) return;
    const chosenOnes = new Set(linksOfChosen());
    const shown = arrowsIn(launches, view.from, view.to);
    for (const number of shown ?? []) if (!chosenOnes.has(number)) arrow(number, false);
    for (const number of chosenOnes) arrow(number, true);
    canvas.dataset.arrows = String(new Set([...(shown ?? []), ...chosenOnes]).size);

    function arrow(number, strong) {
      const [begin, end] = arrowTimes(launches, number).map((time) => place(time, width));
      const [row, lane] = [launches.row[number], launches.lane[number]];
      drawArrow(pen, [begin, row.top + row.height - 2], [end, lane.top + 3], color(strong ? "accent" : "soft"), strong);
    }
  }

  /** Numbers of the arrows of the selected item. */
  function linksOfChosen() {
    const lane = lanes[state.lane];
    if (!lane || state.index < 0) return [];
    if (lane.host) return launches.launchedBy(lane, state.index);
    const number = lane.launch.get(state.index);
    return number === undefined ? [] : [number];
  }

  /** Go from a task to its launch, or from a launch to its first task. */
  function follow() {
    const [number] = linksOfChosen();
    if (number === undefined) return;
    const lane = lanes[state.lane];
    const [other, index] = lane.host ? [launches.lane[number], launches.block[number]] : [launches.row[number], launches.call[number]];
    if (lanes.includes(other)) choose(lanes.indexOf(other), index);
  }

  /** Draw marks and their times from `top` on. */
  function drawAxis(pen, width, top, height, color) {
    const step = roundStep((view.to - view.from) / Math.max(2, width / 110));
    pen.strokeStyle = color("line");
    pen.fillStyle = color("soft");
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (let mark = Math.ceil(view.from / step) * step; mark <= view.to; mark += step) {
      const x = Math.round(place(mark, width)) + 0.5;
      pen.beginPath();
      pen.moveTo(x, top + AXIS - 6);
      pen.lineTo(x, top + height);
      pen.stroke();
      const text = mark === 0 ? "0" : words.duration(mark);
      if (x + pen.measureText(text).width + 4 < width) pen.fillText(text, x + 4, top + AXIS / 2);
    }
  }

  /** Band of steps above the lanes, with a line at each start: of the only device, or of the host. */
  function drawSteps(pen, width, top, height, color) {
    pen.font = "11px system-ui, sans-serif";
    steps.forEach((step, number) => {
      const left = Math.max(0, place(step.start_ns, width));
      const right = Math.min(width, place(step.end_ns, width));
      if (right <= 0 || left >= width || right - left < 1) return;
      pen.fillStyle = color(number % 2 ? "line" : "hover");
      pen.fillRect(left, top + AXIS, right - left, STEP_BAND - 2);
      pen.fillStyle = color("accent");
      pen.fillRect(Math.round(left), top + AXIS, 1, height - AXIS);
      if (right - left < 50) return;
      pen.fillStyle = color("ink");
      label(pen, `${report.figures.devices.length > 1 ? "host " : ""}step ${step.name}`, left + 5, top + AXIS + STEP_BAND / 2 - 1, right - left - 9, 11);
    });
  }

  function drawSelection(pen, width, height, color) {
    if (!state.span) return;
    const [left, right] = state.span.map((time) => place(time, width));
    pen.fillStyle = color("accent");
    pen.globalAlpha = 0.18;
    pen.fillRect(left, 0, Math.max(1, right - left), height);
    pen.globalAlpha = 1;
    for (const x of [left, right]) pen.fillRect(Math.round(x), 0, 1, height);
  }

  /** Select a time span and sum its tasks; null clears the selection. */
  function select(from, to) {
    state.span = from === null ? null : [Math.max(0, Math.round(Math.min(from, to))), Math.min(whole[1], Math.round(Math.max(from, to)))];
    if (from === null) state.anchor = null;
    draw();
    announceSelection();
  }

  const announceSelection = whenQuiet(() => {
    const { span } = state;
    link.set({ span: span ? span.join("-") : null });
    if (!span || span[1] <= span[0]) {
      selection.replaceChildren();
      return;
    }
    const length = span[1] - span[0];
    const { rows, busy } = ranIn(work, labelOf, span);
    const columns = [
      { key: "name", label: "device task in the selection", kind: "text" },
      { key: "count", label: merged ? "blocks" : "tasks", kind: "number", show: (value) => words.count(value), exact: String },
      { key: "total_ns", label: "time", kind: "number", show: words.duration, exact: (value) => words.exactly("total_ns", value) },
      { key: "percent", label: "share", kind: "share", show: words.percent, exact: String },
      { key: "kind", label: "kind", kind: "text", second: true },
    ];
    const table = sortableTable("Device tasks in the selection", columns, rows.map((row) => ({ ...row, percent: (100 * row.total_ns) / length })), { key: null, descending: true, search: "", all: false }, announce);
    table.draw();
    const tables = work.length ? [table.element] : [];
    if (host.length) {
      const calls = sortableTable("Host ranges in the selection", hostColumns, hostRanIn(host, span).map((row) => ({ ...row, percent: (100 * row.self_ns) / length })), { key: null, descending: true, search: "", all: false }, announce);
      calls.draw();
      tables.push(calls.element);
    }
    const text = !work.length ? `${words.duration(length)} selected, from ${words.duration(span[0])}` : `${words.duration(length)} selected, from ${words.duration(span[0])}: busy ${words.duration(busy)} (${words.percent((100 * busy) / length)}), idle ${words.duration(length - busy)}` +
      (merged ? "; merged blocks are estimated and counted under their longest task" : "");
    const why = idleIn(idle, span).map(([reason, time]) => `${reason} ${words.duration(time)}`);
    put(selection, make("p", { class: "small", id: "selected", text: `${text}.` }),
      why.length ? make("p", { class: "small", id: "selected-idle", text: `Idle: ${why.join(", ")}.` }) : null, ...tables);
    announce(text);
  });

  const hostColumns = [
    { key: "name", label: "host range in the selection", kind: "text" },
    { key: "count", label: "ranges", kind: "number", show: (value) => words.count(value), exact: String },
    { key: "self_ns", label: "self time", kind: "number", show: words.duration, exact: (value) => words.exactly("self_ns", value) },
    { key: "percent", label: "share", kind: "share", show: words.percent, exact: String },
    { key: "total_ns", label: "total time", kind: "number", show: words.duration, exact: (value) => words.exactly("total_ns", value) },
    { key: "thread", label: "thread", kind: "text", second: true },
    { key: "kind", label: "kind", kind: "text", second: true },
  ];

  function search() {
    state.wanted = find.value.trim().toLowerCase();
    const matching = (texts) => texts.map((text) => text.toLowerCase().includes(state.wanted));
    // Only tasks are searched; idle reasons have colors and sums.
    state.matches = state.wanted ? new Map([...[...idle, ...path].map((lane) => [lane.labels, []]), ...[data.labels, report.host?.labels ?? []].map((texts) => [texts, matching(texts)])]) : null;
    link.set({ find: find.value.trim() });
    const [tasks, calls] = [work, host].map((some) => {
      let [count, sum] = [0, 0];
      for (const lane of state.wanted ? some : []) {
        const matches = state.matches.get(lane.labels);
        for (let index = 0; index < lane.count; index += 1) {
          if (!matches[lane.label[index]]) continue;
          count += 1;
          sum += lane.busy[index];
        }
      }
      return { count, sum };
    });
    const parts = [];
    if (work.length) parts.push(`${words.count(tasks.count)} ${merged ? "tasks or merged blocks" : "tasks"} match, ${words.duration(tasks.sum)} in total`);
    if (host.length) parts.push(`${words.count(calls.count)} host ranges${work.length ? "" : " match"}`);
    found.textContent = state.wanted ? `${parts.join("; ")}; Enter: next match.` : "";
    draw();
  }

  /** Select the next match after the selected task, or the first one. */
  function nextMatch() {
    if (!state.matches) return;
    const now = state.index < 0 ? -1 : lanes[state.lane].start[state.index];
    let [first, next] = [null, null];
    lanes.forEach((lane, number) => {
      const matches = state.matches.get(lane.labels);
      for (let index = 0; index < lane.count; index += 1) {
        if (!matches[lane.label[index]]) continue;
        const one = [number, index, lane.start[index]];
        if (!first || one[2] < first[2]) first = one;
        const after = one[2] > now || (one[2] === now && number > state.lane);
        if (after && (!next || one[2] < next[2])) next = one;
        if (after) break;
      }
    });
    const hit = next ?? first;
    if (hit) choose(hit[0], hit[1]);
  }

  /** Move the end of the selection by a share of the visible part. */
  function stretch(part) {
    if (!state.span) {
      const at = state.index < 0 ? (view.from + view.to) / 2 : lanes[state.lane].start[state.index];
      state.anchor = [at, at];
    } else state.anchor ??= [...state.span];
    state.anchor[1] = Math.min(whole[1], Math.max(0, state.anchor[1] + part * (view.to - view.from)));
    select(...state.anchor);
  }

  function place(time, width) {
    return ((time - view.from) / (view.to - view.from)) * width;
  }

  function drawLane(pen, lane, number, width, fills, color, matches) {
    const { top, height } = lane;
    // Rows of one thread touch; a line separates threads.
    const flat = lane.height === HOST_LANE;
    const [above, wall] = flat ? [1, height - 2] : [4, height - 9];
    if (!lane.host || lanes[number + 1]?.thread !== lane.thread) {
      pen.fillStyle = color("line");
      pen.fillRect(0, top + height - 1, width, 1);
    }
    let covered = -1;
    for (let index = firstVisible(lane, view.from); index < lane.count && lane.start[index] <= view.to; index += 1) {
      const left = place(lane.start[index], width);
      const right = place(lane.start[index] + lane.duration[index], width);
      if (matches && !matches[lane.label[index]]) continue;
      if (right < 0 || (Math.floor(right) <= covered && index !== state.index)) continue;
      const x = Math.max(0, left);
      const wide = Math.max(1, Math.min(width, right) - x);
      covered = Math.floor(x + wide - 0.5);
      const fill = fills.get(lane.colors[lane.kind[index]]);
      pen.fillStyle = fill;
      // The height of a merged block is the share of its time in which tasks ran.
      const density = lane.tasks[index] > 1 ? Math.max(LOWEST, Math.min(1, lane.busy[index] / Math.max(1, lane.duration[index]))) : 1;
      const tall = Math.max(1, Math.round(wall * density));
      pen.globalAlpha = state.wanted && !matches ? 0.15 : 1;
      // A gap separates adjacent blocks if there is enough space.
      pen.fillRect(x, top + above + wall - tall, wide > 3 && flat ? wide - 1 : wide, tall);
      pen.globalAlpha = 1;
      if (number === state.lane && index === state.index) {
        pen.strokeStyle = color("ink");
        pen.lineWidth = 2;
        pen.strokeRect(x + 1, top + above, Math.max(2, wide - 2), wall);
        pen.lineWidth = 1;
      }
      if (wide > 46 && (!state.wanted || matches)) {
        // The name of a low block is above it.
        const low = tall < wall / 2;
        pen.fillStyle = low ? color("ink") : inkOn(fill, 1, color("card"));
        label(pen, labelOf(lane, index), x + 5, top + above + (low ? (wall - tall) / 2 : wall - tall / 2), wide - 9, flat || low ? 11 : 12);
      }
    }
  }

  function label(pen, text, x, y, room, size = 12) {
    pen.font = `${size}px system-ui, sans-serif`;
    pen.save();
    pen.beginPath();
    pen.rect(x, y - LANE / 2, room, LANE);
    pen.clip();
    pen.fillText(text, x, y);
    pen.restore();
  }

  function labelOf(lane, index) {
    const name = lane.labels[lane.label[index]] ?? LEFT_OUT;
    return lane.tasks[index] > 1 ? `${words.count(lane.tasks[index])} tasks, longest ${name}` : name;
  }

  function sentence(lane, index) {
    const busy = lane.tasks[index] > 1 ? `, ${words.duration(lane.busy[index])} of it busy` : "";
    return `${labelOf(lane, index)}: ${words.duration(lane.duration[index])}${busy}, from ${words.duration(lane.start[index])}, ${lane.title}`;
  }

  /** Launch of a task and the time since, or the tasks of a launch. */
  function linked(lane, index) {
    if (lane.host) {
      const made = launches.launchedBy(lane, index);
      if (!made.length) return "";
      const [first] = made;
      const more = made.length > 1 ? ` and ${words.count(made.length - 1)} more` : "";
      return `; launched ${labelOf(launches.lane[first], launches.block[first])}${more}, ${words.duration(arrowTimes(launches, first)[1] - lane.start[index])} later`;
    }
    const number = lane.launch.get(index);
    if (number === undefined) return "";
    const [row, call] = [launches.row[number], launches.call[number]];
    return `; launched by ${labelOf(row, call)}, ${row.title}, ${words.duration(lane.start[index] - row.start[call])} earlier`;
  }

  /** Task under the pointer as [lane number, index]. */
  function at(event) {
    const box = canvas.getBoundingClientRect();
    const y = event.clientY - box.top;
    const number = lanes.findIndex((one) => one.top <= y && y < one.top + one.height);
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
    const tie = linked(lane, state.index);
    put(chosen, `${sentence(lane, state.index)}${tie}`, tie && lanes.includes(host[0]) ? make("button", { type: "button", class: "go", text: lane.host ? "Go to the launched kernel" : "Go to the launch", on: { click: follow } }) : null);
    // Scroll the lane into view.
    const frame = canvas.parentElement;
    if (!isPinned(lane) && (lane.base < frame.scrollTop + fixed() || lane.base + lane.height > frame.scrollTop + frame.clientHeight)) frame.scrollTop = lane.base - Math.max(fixed(), frame.clientHeight / 3);
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
    l: follow,
    t: () => pin(lanes[state.lane]),
    ArrowUp: () => change(-1), ArrowDown: () => change(1),
  };

  function change(step) {
    const number = Math.min(lanes.length - 1, Math.max(0, state.lane + step));
    choose(number, nearest(number));
  }

  canvas.addEventListener("keydown", (event) => {
    const stretched = event.shiftKey ? { ArrowLeft: -0.02, ArrowRight: 0.02 }[event.key] : undefined;
    if (stretched !== undefined || (event.key === "Escape" && state.span)) {
      event.preventDefault();
      if (stretched === undefined) select(null);
      else stretch(stretched);
      return;
    }
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
    if ("+-=0".includes(event.key)) announce(range.textContent);
  });
  canvas.addEventListener("wheel", (event) => {
    const box = canvas.getBoundingClientRect();
    view.wheel(event, view.from + ((event.clientX - box.left) / box.width) * (view.to - view.from), box.width);
  }, { passive: false });
  const moment = (event) => {
    const box = canvas.getBoundingClientRect();
    return view.from + ((event.clientX - box.left) / box.width) * (view.to - view.from);
  };
  find.addEventListener("input", search);
  find.addEventListener("keydown", (event) => { if (event.key === "Enter") nextMatch(); });
  let grip = null;
  canvas.addEventListener("pointerdown", (event) => {
    grip = { x: event.clientX, from: view.from, to: view.to, moved: false, at: moment(event), select: event.shiftKey || state.selecting };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (grip) {
      const shift = ((grip.x - event.clientX) / canvas.clientWidth) * (grip.to - grip.from);
      if (Math.abs(event.clientX - grip.x) > 3) grip.moved = true;
      if (grip.moved && grip.select) {
        state.anchor = [grip.at, moment(event)];
        select(...state.anchor);
      } else if (grip.moved) look(grip.from + shift, grip.to + shift);
      tip.hidden = true;
      return;
    }
    const hit = at(event);
    tip.hidden = !hit;
    if (!hit) return;
    tip.textContent = sentence(lanes[hit[0]], hit[1]) + linked(lanes[hit[0]], hit[1]);
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
  arrange(!work.length || link.get("host") !== "no");
  view.follow(draw);
  document.addEventListener("themechange", draw);
  canvas.parentElement.addEventListener("scroll", draw);
  new ResizeObserver(draw).observe(canvas);
  if (find.value) search();
  const span = (link.get("span") ?? "").split("-").map(Number);
  if (span.length === 2 && span[0] < span[1]) select(...span);
  return section;
}

function decodeLane(lane, merged) {
  const count = lane.count;
  const start = numbersOf(lane.start, count);
  for (let index = 1; index < count; index += 1) start[index] += start[index - 1];
  const duration = numbersOf(lane.duration, count);
  // Maximum end up to each block: tasks of a lane may overlap, so ends are not sorted.
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

/** Work within a span: rows by name, longest first, and the busy time. */
function ranIn(lanes, nameOf, [from, to]) {
  const rows = new Map();
  const pieces = [];
  for (const lane of lanes) {
    for (let index = firstVisible(lane, from); index < lane.count && lane.start[index] < to; index += 1) {
      const [begin, end] = [Math.max(from, lane.start[index]), Math.min(to, lane.start[index] + lane.duration[index])];
      if (end <= begin) continue;
      const kind = KINDS[lane.kind[index]];
      const alike = lane.tasks[index] > 1;
      const time = alike ? Math.round(((end - begin) * Math.min(lane.busy[index], lane.duration[index])) / lane.duration[index]) : end - begin;
      const name = alike ? nameOf(lane, index).replace(/^.*?, longest /, "") : nameOf(lane, index);
      const key = `${kind} ${name}`;
      if (!rows.has(key)) rows.set(key, { name, kind, count: 0, total_ns: 0 });
      const row = rows.get(key);
      row.count += 1;
      row.total_ns += time;
      if (kind !== "wait") pieces.push([begin, end]);
    }
  }
  pieces.sort((a, b) => a[0] - b[0]);
  let [busy, reach] = [0, from];
  for (const [begin, end] of pieces) {
    busy += Math.max(0, end - Math.max(begin, reach));
    reach = Math.max(reach, end);
  }
  return { rows: [...rows.values()].sort((a, b) => b.total_ns - a.total_ns), busy };
}

/** First block that ends at `time` or later. */
function firstVisible(lane, time) {
  let [low, high] = [0, lane.count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.reach[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Smallest 1, 2 or 5 times a power of ten that is not below `least`. */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1e-9)));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= least);
}
