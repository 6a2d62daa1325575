// Heat map whose cells can be read by pointer or arrow keys.

/** With fewer cells in a row, each is large enough to be seen. */
const MOST_LARGE = 100;
const MOST_ROWS = 640;

/** Numbers encoded plus one; 0 is unknown. */
function knownNumbers(text, count) {
  const found = numbersOf(text, count);
  for (let index = 0; index < count; index += 1) found[index] = found[index] === 0 ? NaN : found[index] - 1;
  return found;
}

function cssColor(name) {
  const probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data].slice(0, 3);
}

function mixed(low, high, share) {
  return low.map((value, index) => Math.round(value + (high[index] - value) * share));
}

/**
 * @param options {label, rows, columns, value(row, column), inWords(row, column), color(value), rowName, columnName, pick(row, column), worst}
 *   `worst` selects the cell to draw if several share a pixel: the largest or the smallest.
 */
function heatMap(options) {
  const { rows, columns } = options;
  const together = Math.ceil(rows / MOST_ROWS);
  const across = Math.ceil(columns / (options.square ? MOST_ROWS : 2000));
  const height = Math.ceil(rows / together);
  const width = Math.ceil(columns / across);
  const tall = options.square ? null : Math.min(MOST_ROWS, Math.max(height, Math.min(20 * height, 240)));
  const canvas = make("canvas", { width, height, tabindex: 0, role: "img", "aria-label": options.label, style: tall ? { height: `${tall}px` } : { "aspect-ratio": `${width} / ${height}` } });
  const tip = make("div", { class: "tip", hidden: true });
  let cursor = null;

  /** Return the most important cell of those that share a pixel. */
  function behind(y, x) {
    let found = null;
    for (let row = y * together; row < Math.min(rows, (y + 1) * together); row += 1) {
      for (let column = x * across; column < Math.min(columns, (x + 1) * across); column += 1) {
        const value = options.value(row, column);
        if (Number.isNaN(value)) continue;
        if (found === null || (options.worst === "least" ? value < found.value : value > found.value)) found = { row, column, value };
      }
    }
    return found;
  }

  function draw() {
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    const none = cssColor("--none");
    const color = options.colors();
    for (let y = 0; y < height; y += 1) {
      for (let x = 0; x < width; x += 1) {
        const found = behind(y, x);
        const [red, green, blue] = found === null ? none : color(found.value, found.row, found.column);
        image.data.set([red, green, blue, 255], 4 * (y * width + x));
      }
    }
    context.putImageData(image, 0, 0);
    if (options.stands) drawAgain(context, color);
    canvas.dataset.drawn = "yes";
  }

  /** Outliers among many cells are drawn larger, so that single pixels are visible. */
  function drawAgain(context, color) {
    const side = Math.floor(Math.min(width, height) / MOST_LARGE);
    for (let y = 0; y < height; y += 1) {
      for (let x = 0; x < width; x += 1) {
        const found = behind(y, x);
        if (found === null || !options.stands(found.value)) continue;
        context.fillStyle = `rgb(${color(found.value, found.row, found.column).join(" ")})`;
        context.fillRect(x - side, y - side, 2 * side + 1, 2 * side + 1);
      }
    }
  }

  function show(x, y, left, top) {
    const found = nearest(y, x);
    cursor = { x, y };
    if (found === null) { tip.hidden = true; return; }
    tip.textContent = options.inWords(found.row, found.column);
    tip.style.setProperty("left", `${Math.min(left + 14, window.innerWidth - 240)}px`);
    tip.style.setProperty("top", `${top + 14}px`);
    tip.hidden = false;
  }

  /** Return the cell, or the next outlier if the cell is empty. */
  function nearest(y, x) {
    const found = behind(y, x);
    if (found !== null || !options.stands) return found;
    const side = Math.floor(Math.min(width, height) / MOST_LARGE);
    for (let down = -side; down <= side; down += 1) {
      for (let right = -side; right <= side; right += 1) {
        const other = x + right < 0 || y + down < 0 || x + right >= width || y + down >= height ? null : behind(y + down, x + right);
        if (other !== null && options.stands(other.value)) return other;
      }
    }
    return null;
  }

  function at(event) {
    const box = canvas.getBoundingClientRect();
    const place = (value, size, count) => Math.max(0, Math.min(count - 1, Math.floor((value / size) * count)));
    return [place(event.clientX - box.left, box.width, width), place(event.clientY - box.top, box.height, height)];
  }

  canvas.addEventListener("pointermove", (event) => show(...at(event), event.clientX, event.clientY));
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => {
    const [x, y] = at(event);
    const found = nearest(y, x);
    if (found !== null) options.pick(found.row, found.column);
  });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === "Escape") tip.hidden = true;
    if (event.key === "Enter" && cursor) {
      const found = behind(cursor.y, cursor.x);
      if (found !== null) options.pick(found.row, found.column);
    }
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [right, down] = moves[event.key];
    const from = cursor ?? { x: right > 0 ? -1 : 0, y: down > 0 ? -1 : 0 };
    const x = Math.max(0, Math.min(width - 1, from.x + right));
    const y = Math.max(0, Math.min(height - 1, from.y + down));
    const box = canvas.getBoundingClientRect();
    show(x, y, box.left + ((x + 0.5) / width) * box.width, box.top + ((y + 0.5) / height) * box.height);
    if (!tip.hidden) announce(tip.textContent);
  });
  document.addEventListener("themechange", () => { if (canvas.isConnected) draw(); });
  draw();
  const element = make("div", { class: options.square ? "heat square" : "heat" },
    make("div", { class: "side" }, ...options.side.map((text) => make("span", { text }))), canvas,
    make("div", { class: "below" }, ...options.below.map((text) => make("span", { text }))), tip);
  return { element, draw, canvas };
}

/** Legend of a color scale. */
function scale(low, high, from, to) {
  return make("div", { class: "scale" }, make("span", { text: low }),
    make("span", { class: "ramp", style: { background: `linear-gradient(to right, ${from}, ${to})` } }), make("span", { text: high }));
}
