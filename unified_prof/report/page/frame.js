// Common parts of all pages: data, colors, navigation bar, figures and strips.

const THEMES = ["auto", "light", "dark"];

const page = JSON.parse(document.getElementById("data").textContent);
const live = make("div", { class: "hidden", role: "status", "aria-live": "polite" });
const announce = (text) => { live.textContent = text; };
const dark = window.matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";

/** State of the view in the URL, so that a link restores it. */
const link = {
  read() {
    const text = window.location.hash.slice(1);
    return new URLSearchParams(text.includes("=") ? text : "");
  },
  get: (key) => link.read().get(key),
  /** Set values in the URL without a history entry; null removes a value. */
  set(values) {
    const parts = link.read();
    for (const [key, value] of Object.entries(values)) {
      if (value === null || value === undefined || value === "") parts.delete(key);
      else parts.set(key, String(value));
    }
    const text = parts.toString();
    window.history.replaceState(null, "", text ? `#${text}` : "#");
  },
};

/** Debounce a call: browsers limit how often the URL may change. */
function whenQuiet(call) {
  let waiting = 0;
  return () => {
    clearTimeout(waiting);
    waiting = setTimeout(call, 150);
  };
}

function applyTheme() {
  document.documentElement.dataset.theme = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
  document.dispatchEvent(new CustomEvent("themechange"));
}

function figure(what, value, note, exact, id) {
  return make("div", { class: "figure" },
    make("div", { class: "what", text: what }),
    make("div", { class: "value", text: value, title: exact, "data-figure": id }),
    note ? make("div", { class: "note", text: note }) : null);
}

/** A strip whose parts add up to a whole, with a legend. */
function strip(label, whole, parts, inWords) {
  const shown = parts.filter((one) => one.value !== null && one.value !== undefined);
  const share = (value) => (whole ? (100 * value) / whole : 0);
  return make("div", { class: "split" },
    make("div", { class: "label" }, make("span", { text: label }), make("span", { class: "soft", text: inWords(whole) })),
    make("div", { class: "strip", role: "img", "aria-label": shown.map((one) => `${one.name} ${words.percent(share(one.value))}`).join(", ") },
      ...shown.filter((one) => one.value > 0 && !one.within).map((one) => make("span", { title: `${one.name}: ${inWords(one.value)}`, style: { width: `${share(one.value)}%`, background: `var(--${one.color})` } }))),
    make("ul", { class: "legend" }, ...shown.map((one) => make("li", {},
      one.color ? make("span", { class: "swatch", style: { background: `var(--${one.color})` } }) : null,
      `${one.name} ${inWords(one.value)}`, make("span", { class: "soft", text: words.percent(share(one.value)) })))));
}

/**
 * Show the navigation bar and the elements that `draw` returns.
 * @param chooser an element for the bar, or null
 * @param contained text of the footer
 * @returns a function that draws again
 */
function startPage(chooser, draw, contained = "Everything on this page is in this file.") {
  const main = make("main", { id: "content" });
  const nav = make("nav", { "aria-label": "Sections" });
  const themeButton = make("button", { type: "button", on: { click: () => { theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]; applyTheme(); label(); } } });
  const label = () => { themeButton.textContent = theme === "auto" ? "Auto" : theme === "dark" ? "Dark" : "Light"; themeButton.setAttribute("aria-label", `Colors: ${theme}`); };

  const goTo = (id, focus) => {
    const section = main.querySelector(`#${CSS.escape(id)}`);
    if (!section) return;
    section.scrollIntoView();
    section.tabIndex = -1;
    if (focus) section.focus({ preventScroll: true });
  };

  function show() {
    main.replaceChildren(...draw(), make("footer", { text: `Made by uprof ${page.uprof}. ${contained}` }));
    nav.replaceChildren(...[...main.querySelectorAll("section.card")].map((section) =>
      make("a", {
        href: `#${section.id}`, text: section.querySelector("h2").textContent.replace(" over time", ""),
        on: { click: (event) => { event.preventDefault(); link.set({ at: section.id }); goTo(section.id, true); } },
      })));
  }

  label();
  applyTheme();
  dark.addEventListener("change", applyTheme);
  document.body.append(
    make("a", { class: "skip", href: "#content", text: "Skip to the report", on: { click: (event) => { event.preventDefault(); main.tabIndex = -1; main.focus(); } } }),
    make("header", { class: "bar" }, make("div", { class: "bar-inner" }, make("strong", { text: "uprof" }), chooser, nav, themeButton)),
    main, live);
  show();
  const start = link.get("at") ?? (window.location.hash.includes("=") ? null : window.location.hash.slice(1));
  if (start) goTo(start, false);
  document.documentElement.dataset.ready = "yes";
  return show;
}
