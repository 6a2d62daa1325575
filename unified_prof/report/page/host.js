// Host threads above the streams: launches, and sums of host work in a span.

const HOST_LANE = 18;
const MOST_ARROWS = 300;
const PATH_COLORS = {
  kernel: "compute", communication: "communication", copy: "copy", host: "host-operation", input: "idle-input", synchronising: "idle-synchronising",
  launch: "idle-launched", event: "idle-stream", gap: "idle-unknown",
};
const HOST_COLORS = ["host-operation", "host-annotation", "host-call", "host-python"];

/** Rows of threads as lanes; rows of one thread have the same `thread`. */
function hostLanes(host) {
  let first = 0;
  return (host?.threads ?? []).flatMap((thread, number) => thread.rows.map((row, depth) => {
    const lane = {
      ...decodeLane(row, false), host: true, thread: number, depth, first, height: HOST_LANE, labels: host.labels,
      title: thread.title, colors: HOST_COLORS, kinds: host.kinds,
    };
    first += lane.count;
    return lane;
  }));
}

/** Idle time of devices by reason, one lane each. */
function idleLanes(report) {
  const texts = REASONS.map((reason) => report.idle_words[reason]);
  return (report.idle ?? []).filter((one) => one.count).map((one) => {
    const lane = decodeLane({ ...one, label: one.kind }, false);
    return {
      ...lane, idle: true, launch: new Map(), height: HOST_LANE, labels: texts, kinds: texts.map((text) => `idle: ${text}`),
      colors: REASONS.map((reason) => `idle-${reason}`), title: report.idle.length > 1 ? `${one.device} idle` : "idle",
    };
  });
}

/** The critical path as a lane, none if it is unknown. */
function pathLanes(path) {
  if (!path) return [];
  return [{
    ...decodeLane(path, false), launch: new Map(), height: HOST_LANE, labels: path.labels, title: "critical path",
    kinds: path.kinds.map(([, text]) => `path: ${text}`), colors: path.kinds.map(([kind]) => PATH_COLORS[kind]),
  }];
}

/** Idle time of devices within a span by reason, largest first. */
function idleIn(lanes, [from, to]) {
  const sums = new Map();
  for (const lane of lanes) {
    for (let index = firstVisible(lane, from); index < lane.count && lane.start[index] < to; index += 1) {
      const time = Math.min(to, lane.start[index] + lane.duration[index]) - Math.max(from, lane.start[index]);
      if (time > 0) sums.set(lane.labels[lane.label[index]], (sums.get(lane.labels[lane.label[index]]) ?? 0) + time);
    }
  }
  return [...sums].sort((a, b) => b[1] - a[1]);
}

/** Arrows from launches to kernels as columns, in order of lanes and blocks. */
function launchesOf(rows, lanes) {
  const found = { row: [], call: [], lane: [], block: [] };
  lanes.forEach((lane) => {
    lane.launch = new Map();
    if (!lane.raw.launched) return;
    const block = numbersOf(lane.raw.launched_block, lane.raw.launched);
    const by = numbersOf(lane.raw.launched_by, lane.raw.launched);
    let [at, place] = [0, 0];
    for (let index = 0; index < block.length; index += 1) {
      at += block[index];
      place += Math.floor(by[index] / 2) * (by[index] % 2 ? -1 : 1);
      const row = rows.findLast((one) => one.first <= place);
      lane.launch.set(at, found.row.length);
      found.row.push(row);
      found.call.push(place - row.first);
      found.lane.push(lane);
      found.block.push(at);
    }
  });
  const byCall = new Map();
  found.row.forEach((row, number) => {
    const key = row.first + found.call[number];
    if (!byCall.has(key)) byCall.set(key, []);
    byCall.get(key).push(number);
  });
  return { ...found, count: found.row.length, launchedBy: (row, index) => byCall.get(row.first + index) ?? [] };
}

/** Visible arrows; null if there are too many. */
function arrowsIn(launches, from, to) {
  const shown = [];
  for (let number = 0; number < launches.count; number += 1) {
    const [begin, end] = arrowTimes(launches, number);
    if (Math.max(begin, end) < from || Math.min(begin, end) > to) continue;
    if (shown.length === MOST_ARROWS) return null;
    shown.push(number);
  }
  return shown;
}

function arrowTimes(launches, number) {
  return [launches.row[number].start[launches.call[number]], launches.lane[number].start[launches.block[number]]];
}

function drawArrow(pen, [x, y], [toX, toY], color, strong) {
  pen.strokeStyle = color;
  pen.fillStyle = color;
  pen.globalAlpha = strong ? 1 : 0.4;
  pen.lineWidth = strong ? 2 : 1;
  const bend = (toY - y) / 2;
  pen.beginPath();
  pen.moveTo(x, y);
  pen.bezierCurveTo(x, y + bend, toX, toY - bend, toX, toY);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(toX, toY);
  pen.lineTo(toX - 3.5, toY - 6);
  pen.lineTo(toX + 3.5, toY - 6);
  pen.fill();
  pen.globalAlpha = 1;
  pen.lineWidth = 1;
}

/** Host work within a span: rows by thread and name, with total and self time. */
function hostRanIn(lanes, [from, to]) {
  const rows = new Map();
  for (const thread of new Set(lanes.map((lane) => lane.thread))) {
    const own = lanes.filter((lane) => lane.thread === thread).flatMap((lane) => rangesIn(lane, from, to));
    own.sort((a, b) => a.begin - b.begin || b.end - a.end || a.depth - b.depth);
    const around = [];
    for (const range of own) {
      while (around.length && around[around.length - 1].end <= range.begin) around.pop();
      const time = Math.min(to, range.end) - Math.max(from, range.begin);
      const key = `${thread} ${range.kind} ${range.name}`;
      if (!rows.has(key)) rows.set(key, { name: range.name, kind: range.kind, thread: range.thread, count: 0, total_ns: 0, self_ns: 0 });
      range.row = rows.get(key);
      range.row.count += 1;
      range.row.total_ns += time;
      range.row.self_ns += time;
      const outer = around[around.length - 1];
      if (outer) outer.row.self_ns -= Math.max(0, Math.min(time, Math.min(to, outer.end) - Math.max(from, range.begin)));
      around.push(range);
    }
  }
  return [...rows.values()].sort((a, b) => b.self_ns - a.self_ns);
}

function rangesIn(lane, from, to) {
  const found = [];
  for (let index = firstVisible(lane, from); index < lane.count && lane.start[index] < to; index += 1) {
    const [begin, end] = [lane.start[index], lane.start[index] + lane.duration[index]];
    if (end > from) found.push({ begin, end, depth: lane.depth, thread: lane.title, name: lane.labels[lane.label[index]] ?? LEFT_OUT, kind: lane.kinds[lane.kind[index]] });
  }
  return found;
}

/** Notes on host ranges, idle gaps and segments of the critical path that are left out. */
function hostNotes(report, look) {
  const { host, idle, path } = report;
  const lines = [];
  if (path?.left_out) lines.push(note(`The ${words.count(path.left_out)} shortest segments of the critical path are not drawn.`));
  const short = (idle ?? []).filter((one) => one.left_out);
  if (short.length) {
    const [count, time] = ["left_out", "left_out_ns"].map((key) => short.reduce((sum, one) => sum + one[key], 0));
    lines.push(note(`The ${words.count(count)} shortest idle gaps (${words.duration(time)} in total) are neither drawn nor included in the sums by reason below the timeline; the figures above include them.`));
  }
  if (!host) return lines;
  if (host.longer_than_ns || host.whole_ns) {
    const [from, to] = host.whole_ns;
    lines.push(make("p", { class: "small soft", id: "host-left-out" },
      `${words.count(host.drawn)} of ${words.count(host.ranges)} host ranges are drawn: all from ${words.duration(from)} to ${words.duration(to)}, elsewhere those longer than ${words.duration(host.longer_than_ns)}. Arrows, search and sums include only these. `,
      make("button", { type: "button", text: "Show the complete part", on: { click: () => look(from, to) } })));
  } else if (host.drawn < host.ranges) lines.push(note(`${words.count(host.ranges - host.drawn)} of ${words.count(host.ranges)} host ranges are left out: they are on threads that are not shown, or nested too deeply.`));
  const left = [
    [host.outside, "host ranges long before or after the device work"],
    [host.python_frames, "calls of Python functions, in installed packages or around everything"],
    [host.threads_left_out, "threads with the least work"],
  ].filter(([count]) => count).map(([count, what]) => `${words.count(count)} ${what}`);
  if (left.length) lines.push(make("p", { class: "small soft" }, `Left out: ${left.join("; ")}. `,
    make("code", { text: `uprof export ${report.figures.path} -o out.perfetto-trace` }), " includes them."));
  return lines;

  function note(text) {
    return make("p", { class: "small soft", text });
  }
}
