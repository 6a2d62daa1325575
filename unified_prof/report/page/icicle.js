// Icicle: the width of a node is its share, its children are below it.

const LEVEL = 27;
const SLIVER = 0.0015;
const TREE_NAMES = { module: "Modules", line: "Source lines", operation: "Operations" };
const MEASURE_NAMES = { total_ns: "Time", forward_ns: "Forward", backward_ns: "Backward", size_bytes: "Memory" };
const ALLOCATED = "Allocated";

function icicleSection(report) {
  const trees = report.trees.map(prepareTree);
  if (!trees.length) return null;
  const first = trees.reduce((best, tree) => (unattributed(tree) < unattributed(best) - 0.05 ? tree : best));
  const state = { tree: first, measure: first.measures[0], root: 0, focus: 0 };
  const picture = make("div", { class: "icicle", role: "tree", "aria-label": "Shares of the total" });
  // Sums of requested allocations are not memory in use.
  const allocated = Object.values(report.figures.breakdowns).some((one) => one.rows.some((row) => row.allocated_bytes !== undefined));
  const measureName = (one) => (one === "size_bytes" && allocated ? ALLOCATED : MEASURE_NAMES[one]);
  const detail = make("div", { class: "detail", "aria-live": "polite" });
  const measures = make("span");
  const section = card(
    "icicle",
    "Breakdown",
    trees.length > 1
      ? choice("Group by", trees.map((tree) => [tree.kind, TREE_NAMES[tree.kind]]), state.tree.kind, (kind) => {
        state.tree = trees.find((tree) => tree.kind === kind);
        if (!state.tree.measures.includes(state.measure)) state.measure = state.tree.measures[0];
        state.root = 0;
        state.focus = 0;
        offerMeasures();
        draw();
      })
      : null,
    measures,
  );
  section.append(
    picture,
    detail,
    make("p", { class: "small soft", text: "Click or Enter: zoom in. Escape: zoom out. Arrow keys: move." }),
  );

  function offerMeasures() {
    measures.replaceChildren(choice("Measure", state.tree.measures.map((one) => [one, measureName(one)]), state.measure, (one) => {
      state.measure = one;
      draw();
    }));
  }

  function values() {
    return state.tree.values[state.measure];
  }

  function visible() {
    const { tree, root } = state;
    const amount = values();
    const found = [];
    const above = [];
    for (let node = tree.parent[root]; node >= 0; node = tree.parent[node]) above.unshift(node);
    above.forEach((node, level) => found.push({ node, level, left: 0, width: 1, above: true }));
    const whole = amount[root];
    if (!whole) return found.concat([{ node: root, level: above.length, left: 0, width: 1, above: false }]);
    (function place(node, level, left) {
      const width = amount[node] / whole;
      if (width < SLIVER) return;
      found.push({ node, level, left, width, above: false });
      let edge = left;
      for (const child of tree.children[node]) {
        place(child, level + 1, edge);
        edge += amount[child] / whole;
      }
    })(root, above.length, 0);
    return found;
  }

  function draw(moveFocus = false) {
    sortChildren(state.tree, values());
    const shown = visible();
    if (!shown.some((one) => one.node === state.focus)) state.focus = state.root;
    const levels = 1 + Math.max(...shown.map((one) => one.level));
    picture.style.height = `${levels * LEVEL}px`;
    const wide = picture.clientWidth || 800;
    picture.replaceChildren(...shown.map((one) => {
      const name = nameOf(one.node);
      return make("button", {
        type: "button",
        class: `node${one.above ? " above" : ""}${one.node === state.focus ? " chosen" : ""}`,
        role: "treeitem",
        "aria-level": one.level + 1,
        "aria-selected": one.node === state.focus,
        "aria-label": sentence(one.node),
        tabindex: one.node === state.focus ? 0 : -1,
        "data-node": one.node,
        text: one.width * wide > 34 ? cutInFront(name, Math.floor((one.width * wide - 12) / 6.7)) : "",
        title: sentence(one.node),
        style: {
          left: `${one.left * 100}%`, width: `${one.width * 100}%`, top: `${one.level * LEVEL}px`, "--hue": hueOf(name),
          ...(one.width * wide < 14 ? { padding: "0" } : {}),
        },
      });
    }));
    describe(state.focus);
    if (moveFocus) picture.querySelector(".chosen")?.focus();
  }

  function nameOf(node) {
    const { tree } = state;
    if (node === 0) return "everything";
    // Numbers, such as those of layers in a list, are shown with the name of the list.
    const isNumber = tree.kind === "module" && /^\d+$/.test(tree.names[node]) && tree.parent[node] > 0;
    return isNumber ? `${tree.names[tree.parent[node]]}.${tree.names[node]}` : tree.names[node];
  }

  function sentence(node) {
    const amount = values();
    const part = amount[0] ? (100 * amount[node]) / amount[0] : null;
    return `${nameOf(node)}: ${words.of(state.measure, amount[node])}, ${words.percent(part)}`;
  }

  function describe(node) {
    const { tree } = state;
    const figures = tree.measures.map((one) => `${measureName(one).toLowerCase()} ${words.of(one, tree.values[one][node])}`);
    const source = tree.kind === "line" ? report.source?.[tree.names[node]] : null;
    const path = [];
    for (let one = node; one > 0; one = tree.parent[one]) path.unshift(tree.names[one]);
    put(
      detail,
      make("strong", { class: "mono", text: node === 0 ? "total" : path.join(" › ") }),
      make("div", { class: "soft", text: `${figures.join(", ")}; ${words.count(tree.count[node])} ${tree.kind === "operation" && report.figures.clock === "device" ? "device tasks" : "calls"}` }),
      source ? make("pre", { text: source }) : null,
    );
  }

  function zoom(node) {
    state.focus = node;
    state.root = node;
    draw(true);
  }

  function step(key) {
    const { tree, focus } = state;
    const amount = values();
    const drawn = (node) => amount[state.root] > 0 && amount[node] / amount[state.root] >= SLIVER;
    const up = tree.parent[focus];
    const siblings = up >= 0 ? tree.children[up].filter(drawn) : [focus];
    const at = siblings.indexOf(focus);
    return {
      ArrowDown: tree.children[focus].find(drawn),
      ArrowUp: up >= 0 ? up : undefined,
      ArrowLeft: siblings[at - 1],
      ArrowRight: siblings[at + 1],
      Home: 0,
    }[key];
  }

  picture.addEventListener("click", (event) => {
    const node = event.target.closest(".node");
    if (node) zoom(Number(node.dataset.node));
  });
  picture.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      zoom(state.focus);
    } else if (event.key === "Escape" || event.key === "Backspace") {
      event.preventDefault();
      zoom(Math.max(0, state.tree.parent[state.root]));
    } else {
      const next = step(event.key);
      if (!["ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight", "Home"].includes(event.key)) return;
      event.preventDefault();
      if (next === undefined) return;
      state.focus = next;
      draw(true);
    }
  });
  offerMeasures();
  // Redraw only if the width changes, because drawing changes the height.
  let drawnWidth = 0;
  new ResizeObserver(() => {
    if (picture.clientWidth === drawnWidth) return;
    drawnWidth = picture.clientWidth;
    draw(picture.contains(document.activeElement));
  }).observe(picture);
  return section;
}

/** Share of a tree whose module, line or operation is unknown: its name is in parentheses. */
function unattributed(tree) {
  const amount = tree.values[tree.measures[0]];
  const unknown = tree.children[0].filter((child) => /^\(.*\)$/.test(tree.names[child]));
  return unknown.reduce((sum, child) => sum + amount[child], 0) / (amount[0] || 1);
}

function prepareTree(raw) {
  raw.measures = raw.measures.filter((one, number) => !number || raw.values[one][0]);
  const children = raw.names.map(() => []);
  raw.parent.forEach((parent, node) => parent >= 0 && children[parent].push(node));
  return { ...raw, children };
}

function sortChildren(tree, amount) {
  for (const children of tree.children) children.sort((a, b) => amount[b] - amount[a]);
}
