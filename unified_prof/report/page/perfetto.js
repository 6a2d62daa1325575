// Sends a trace to Perfetto as its documentation describes for other pages: its window is opened,
// pinged until it answers, and sent the trace. Only on click.

const PERFETTO = "https://ui.perfetto.dev";
/** The only local port from which the Perfetto UI may load a trace. */
const PERFETTO_PORT = 9001;
const PATIENCE_MS = 60_000;

function openInPerfetto(buffer, title) {
  const other = window.open(PERFETTO);
  if (!other) {
    announce("the browser blocked the window: allow pop-ups for this page and click again");
    return;
  }
  const began = Date.now();
  const ping = setInterval(() => {
    if (Date.now() - began > PATIENCE_MS) end("Perfetto did not answer; check the network");
    else other.postMessage("PING", PERFETTO);
  }, 100);
  function answered(event) {
    if (event.origin !== PERFETTO || event.data !== "PONG") return;
    end("trace sent to Perfetto");
    other.postMessage({ perfetto: { buffer, title, localOnly: true } }, PERFETTO);
  }
  function end(text) {
    clearInterval(ping);
    window.removeEventListener("message", answered);
    announce(text);
  }
  window.addEventListener("message", answered);
}

/** Lanes as Chrome trace events; overlapping tasks get another lane of the same name. */
function traceOf(host, work, launches, nameOf) {
  const events = [];
  const [HOST, DEVICE] = [1, 2];
  const named = (pid, name) => events.push({ ph: "M", name: "process_name", pid, tid: 0, args: { name } });
  if (host.length) named(HOST, "host");
  const seen = new Set();
  const slice = (lane, index, pid, tid) => events.push({
    ph: "X", name: nameOf(lane, index), cat: lane.kinds[lane.kind[index]], pid, tid, ts: lane.start[index] / 1000, dur: lane.duration[index] / 1000,
  });
  for (const lane of host) {
    if (!seen.has(lane.thread)) events.push({ ph: "M", name: "thread_name", pid: HOST, tid: 1 + lane.thread, args: { name: lane.title } });
    seen.add(lane.thread);
    for (let index = 0; index < lane.count; index += 1) slice(lane, index, HOST, 1 + lane.thread);
  }
  if (work.length) named(DEVICE, "device");
  work.forEach((lane, number) => {
    const ends = [];
    for (let index = 0; index < lane.count; index += 1) {
      const [start, end] = [lane.start[index], lane.start[index] + lane.duration[index]];
      let place = ends.findIndex((one) => one <= start);
      if (place < 0) place = ends.length;
      const tid = 1 + number + place * work.length;
      if (place === ends.length) events.push({ ph: "M", name: "thread_name", pid: DEVICE, tid, args: { name: lane.title } });
      ends[place] = end;
      slice(lane, index, DEVICE, tid);
      const launch = lane.launch.get(index);
      if (launch === undefined) continue;
      const arrow = { name: "launch", cat: "launch", id: launch + 1 };
      events.push({ ph: "s", ...arrow, pid: HOST, tid: 1 + launches.row[launch].thread, ts: arrowTimes(launches, launch)[0] / 1000 });
      events.push({ ph: "f", bp: "e", ...arrow, pid: DEVICE, tid, ts: start / 1000 });
    }
  });
  return { displayTimeUnit: "ns", traceEvents: events };
}

/** Offer the page's timeline for Perfetto if it is complete, else a file input for a trace. */
function perfettoLine(report, host, work, launches, nameOf, whole) {
  const title = report.title;
  if (whole) {
    return make("p", { class: "small soft" }, make("button", {
      type: "button", id: "perfetto", text: "Open this timeline in Perfetto",
      on: { click: () => openInPerfetto(new TextEncoder().encode(JSON.stringify(traceOf(host, work, launches, nameOf))).buffer, title) },
    }), " opens a window of ui.perfetto.dev; the data stays in your browser. For counters and everything that is left out here, use uprof view --perfetto or uprof export.");
  }
  const input = make("input", { type: "file", id: "perfetto-file", "aria-label": "Trace file to open in Perfetto" });
  input.addEventListener("change", async () => {
    const [file] = input.files;
    if (file) openInPerfetto(await file.arrayBuffer(), file.name);
  });
  return make("p", { class: "small soft" }, "Open a trace of `uprof export` in Perfetto: ", input);
}
