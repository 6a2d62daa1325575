// Elements, formatting of figures, decoding of columns. Strings become text nodes only; none is
// parsed as HTML.

/** Make an element. Properties: class, text, data, style (custom properties too), on, attributes. */
function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  fill(node, properties);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Replace the children of a node; null children are left out. */
function put(node, ...children) {
  node.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

function makeSvg(tag, properties = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(node, properties);
  node.append(...children);
  return node;
}

function fill(node, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name === "class") node.setAttribute("class", value);
    else if (name === "text") node.textContent = value;
    else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else if (name === "on") for (const [event, call] of Object.entries(value)) node.addEventListener(event, call);
    else if (typeof value !== "boolean" || name.startsWith("aria-")) node.setAttribute(name, String(value));
    else node.toggleAttribute(name, value);
  }
}

/** Keep numbers and their units on one line. */
const unbroken = (text) => text.replace(/(\d) (?=(?:%|x|[nµm]?s|[KMGT]?i?B)(?![\w]))/g, "$1\u00a0");

const NOT_MEASURED = "-";
const TIMES = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
const SIZES = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
const RATES = [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"], [1, "B/s"]];
const FLOPS = [[1e15, "PFLOP"], [1e12, "TFLOP"], [1e9, "GFLOP"], [1e6, "MFLOP"], [1e3, "kFLOP"], [1, "FLOP"]];

function scaled(value, units) {
  for (let index = 0; index < units.length; index += 1) {
    const [factor, name] = units[index];
    const last = index === units.length - 1;
    if (Math.abs(value) < factor && !last) continue;
    const number = value / factor;
    const before = String(Math.trunc(Math.abs(number))).length;
    const digits = last && Number.isInteger(value) ? 0 : Math.max(0, 3 - before);
    const rounded = Number(number.toFixed(digits));
    if (index > 0 && rounded * factor >= units[index - 1][0]) return scaled(units[index - 1][0], units);
    return `${rounded.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${name}`;
  }
  return "";
}

const words = {
  duration: (value) => (value === null || value === undefined ? NOT_MEASURED : scaled(value, TIMES)),
  size: (value) => (value === null || value === undefined ? NOT_MEASURED : scaled(value, SIZES)),
  rate: (value) => scaled(value, RATES),
  flops: (value) => scaled(value, FLOPS),
  /** A count with separators, a mean of counts with three significant digits. */
  count(value) {
    if (value === null || value === undefined) return NOT_MEASURED;
    const digits = Number.isInteger(value) || Math.abs(value) >= 100 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 };
    return value.toLocaleString("en-US", digits);
  },
  percent(value) {
    if (value === null || value === undefined) return NOT_MEASURED;
    return value > 0 && value < 0.1 ? "<0.1 %" : `${value.toFixed(1)} %`;
  },
  /** Format by the unit in the key. */
  of(key, value) {
    if (value === null || value === undefined) return NOT_MEASURED;
    if (key.endsWith("_ns")) return words.duration(value);
    if (key.endsWith("_tflop_per_s")) return `${words.flops(value * 1e12)}/s`;
    if (key.endsWith("_gb_per_s")) return words.rate(value * 1e9);
    if (key.endsWith("_flops")) return words.flops(value);
    if (key.endsWith("_flops_per_byte")) return words.count(value);
    if (key.endsWith("_percent")) return words.percent(value);
    if (key.endsWith("_bytes")) return words.size(value);
    if (key === "percent") return words.percent(value);
    return words.count(value);
  },
  exactly(key, value) {
    if (value === null || value === undefined) return "not measured";
    if (key.endsWith("_ns")) return `${value} ns`;
    return key.endsWith("_bytes") ? `${value} bytes` : String(value);
  },
};

/** Shorten a path in front, so that file and line stay visible; other text is unchanged. */
function cutInFront(text, room) {
  if (text.length <= room || !/^(?:[A-Za-z]:)?[^\s:]*[/\\][^\s:]*:\d+(?: \(\+[\d,]+\))?$/.test(text)) return text;
  return `\u2026${text.slice(text.length - Math.max(1, room - 1))}`;
}

/** Decode non-negative numbers from base64, seven bits per byte, lowest first (LEB128). */
function numbersOf(text, count) {
  const bytes = atob(text);
  const result = new Float64Array(count);
  let at = 0;
  for (let index = 0; index < count; index += 1) {
    let value = 0;
    let factor = 1;
    let byte;
    do {
      byte = bytes.charCodeAt(at);
      at += 1;
      value += (byte & 127) * factor;
      factor *= 128;
    } while (byte > 127);
    result[index] = value;
  }
  return result;
}

/** A hue that belongs to a name, the same in every view. */
function hueOf(name) {
  let hash = 2166136261;
  for (let index = 0; index < name.length; index += 1) hash = Math.imul(hash ^ name.charCodeAt(index), 16777619);
  return (hash >>> 0) % 360;
}

/** Black or white, whichever has more contrast on a translucent color. */
function inkOn(color, opacity, ground) {
  const parts = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16) / 255);
  const below = parts(ground);
  const [red, green, blue] = parts(color)
    .map((value, index) => value * opacity + below[index] * (1 - opacity))
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  // Above this luminance black has more contrast (WCAG 2).
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
}

/** Row of buttons, one of them pressed. */
function choice(label, options, chosen, choose) {
  const buttons = options.map(([value, text]) =>
    make("button", { type: "button", text, "aria-pressed": value === chosen, "data-value": value, on: { click: () => press(value) } }));
  function press(value) {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === value));
    choose(value);
  }
  return make("div", { class: "group", role: "group", "aria-label": label }, ...buttons);
}

function card(id, title, ...controls) {
  const head = make("div", { class: "head" }, make("h2", { text: title, id: `${id}-title` }), ...controls);
  return make("section", { class: "card", id, "aria-labelledby": `${id}-title` }, head);
}
