// Hands a trace to Perfetto, in the way that its documentation describes for pages of others: a window
// of theirs is opened, pinged until it answers, and sent the trace. Nothing happens unless asked.

const PERFETTO = "https://ui.perfetto.dev";
const PATIENCE_MS = 60_000;

function openInPerfetto(buffer, title) {
  const other = window.open(PERFETTO);
  if (!other) {
    announce("the browser did not allow a window");
    return;
  }
  const began = Date.now();
  const ping = setInterval(() => {
    if (Date.now() - began > PATIENCE_MS) end("Perfetto did not answer");
    else other.postMessage("PING", PERFETTO);
  }, 100);
  function answered(event) {
    if (event.origin !== PERFETTO || event.data !== "PONG") return;
    end("the trace is in Perfetto");
    other.postMessage({ perfetto: { buffer, title, localOnly: true } }, PERFETTO);
  }
  function end(text) {
    clearInterval(ping);
    window.removeEventListener("message", answered);
    announce(text);
  }
  window.addEventListener("message", answered);
}

/** The lanes as Chrome's trace events; what overlaps in a lane gets another of the same name. */
function traceOf(lanes, nameOf) {
  const events = [];
  lanes.forEach((lane, number) => {
    const ends = [];
    for (let index = 0; index < lane.count; index += 1) {
      const [start, end] = [lane.start[index], lane.start[index] + lane.duration[index]];
      let place = ends.findIndex((one) => one <= start);
      if (place < 0) place = ends.length;
      const tid = 1 + number + place * lanes.length;
      if (place === ends.length) events.push({ ph: "M", name: "thread_name", pid: 1, tid, args: { name: lane.title } });
      ends[place] = end;
      events.push({ ph: "X", name: nameOf(lane, index), cat: KINDS[lane.kind[index]], pid: 1, tid, ts: start / 1000, dur: (end - start) / 1000 });
    }
  });
  return { displayTimeUnit: "ns", traceEvents: events };
}

/** Where every task is on the page, its timeline is handed over; else a trace that lies beside it. */
function perfettoLine(report, lanes, nameOf, whole) {
  const title = report.title;
  if (whole) {
    return make("p", { class: "small soft" }, make("button", {
      type: "button", id: "perfetto", text: "Open this timeline in Perfetto",
      on: { click: () => openInPerfetto(new TextEncoder().encode(JSON.stringify(traceOf(lanes, nameOf))).buffer, title) },
    }), " sends it to a window of ui.perfetto.dev, which keeps it in your browser. Host threads too: uprof trace.");
  }
  const input = make("input", { type: "file", id: "perfetto-file", "aria-label": "A trace that uprof trace wrote, to open in Perfetto" });
  input.addEventListener("change", async () => {
    const [file] = input.files;
    if (file) openInPerfetto(await file.arrayBuffer(), file.name);
  });
  return make("p", { class: "small soft" }, "Open a trace that uprof trace wrote in Perfetto: ", input);
}
