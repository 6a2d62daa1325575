// Sends the trace beside this page to Perfetto: fetched at once, sent on click.

const { trace } = page;
const section = card("opener", "Timeline in Perfetto");
const button = make("button", { type: "button", id: "open", text: "Open in Perfetto", disabled: true });
const said = make("p", { id: "said", role: "status", text: `Loading the trace (${words.size(trace.bytes)}) ...` });
// Announcements are also shown.
new MutationObserver(() => { said.textContent = live.textContent; }).observe(live, { childList: true, characterData: true, subtree: true });
const direct = window.location.hostname === "127.0.0.1" && Number(window.location.port) === PERFETTO_PORT
  ? make("a", { id: "direct", href: `${PERFETTO}/#!/?url=${encodeURIComponent(new URL(trace.name, window.location.href))}`, text: "or let Perfetto load it" })
  : null;
section.append(
  make("p", {}, button, " ", direct),
  said,
  make("p", { class: "small soft" }, "The trace is sent to a window of ui.perfetto.dev and stays in your browser. Without network, ",
    make("a", { id: "save", href: trace.name, download: trace.name, text: "save the trace" }), " and open it later, or use the timeline on the page of ", make("code", { text: "uprof view" }), "."));
startPage(null, () => [make("header", { class: "intro" }, make("h1", { text: trace.title })), section], "This page is available while uprof view runs.");
fetch(trace.name).then((answer) => {
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.arrayBuffer();
}).then((buffer) => {
  button.disabled = false;
  announce(`Trace loaded (${words.size(buffer.byteLength)}).`);
  button.addEventListener("click", () => openInPerfetto(buffer, trace.title));
}).catch(() => announce("The trace is not available: uprof view has ended. Start it again."));
