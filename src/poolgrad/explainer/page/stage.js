// The picture: input and output above, their gradients below, the same cells in the same places.

import { html, set, svg } from "./dom.js";
import { added, at, flat, OPERATORS, read, readersOf, received, short, windowWords } from "./words.js";

const LARGEST_CELL = 80;
const SMALLEST_CELL = 22;
const HEADING = 46;
const FOOT = 12;
const BETWEEN = 26;
const MANY_ARROWS = 12;
const LANE = 0.78; // arrows run below the numbers of a row
const WINDOW_DASHES = ["", "10 4", "3 4", "12 3 3 3"]; // windows are told apart without colour

/** Draws all examples of a scene, and reports what is pointed at, focused, typed or dragged. */
export class Stage {
  constructor(container, listeners) {
    this.container = container;
    this.listeners = listeners;
    this.examples = [];
    this.key = "";
    listen(container, this);
  }

  /** Builds the cells where the shapes changed, then shows the numbers and the lit windows. */
  draw(scene) {
    const layout = layoutOf(scene, this.container.clientWidth);
    const key = JSON.stringify([layout, scene.state.x.length]);
    if (key !== this.key) this.build(scene, layout, key);
    this.examples.forEach((example) => example.paint(scene));
  }

  build(scene, layout, key) {
    const focused = document.activeElement?.closest?.("[data-cell]")?.dataset.cell;
    this.key = key;
    this.examples = scene.state.x.map((_, e) => new Example(e, layout, scene));
    this.container.replaceChildren(...this.examples.map((example) => example.figure));
    if (focused) this.cell(focused)?.focus();
  }

  cell(name) {
    return this.container.querySelector(`[data-cell="${name}"]`);
  }
}

/** Sizes in pixels: the cell, the gap between the grids, and the padding around the input. */
function layoutOf(scene, available) {
  const { result, state } = scene;
  const ring = ringOf(result);
  const columns = result.in[1] + ring.left + ring.right + result.out[1];
  const rows = Math.max(result.in[0] + ring.top + ring.bottom, result.out[0]);
  const examples = state.x.length;
  const beside = examples > 1 && available >= 700;
  const width = (beside ? available / examples - 12 : available) - 8;
  const narrow = width < 560;
  const wanted = Math.min(width * (narrow && columns > 6 ? 0.12 : 0.2), 190);
  const left = width - 16 - columns * SMALLEST_CELL; // a smaller gap shows more of large arrays
  const gap = Math.round(Math.max(Math.min(wanted, left), 34));
  const fitting = Math.min((width - gap - (narrow ? 44 : 16)) / columns, 300 / rows, LARGEST_CELL);
  const cell = Math.max(SMALLEST_CELL, Math.floor(fitting));
  return {
    cell,
    gap,
    ring,
    in: result.in,
    out: result.out,
    rows,
    operator: state.operator,
    windows: windowWords(state),
    narrow,
  };
}

/** How many rows and columns of padding the windows read around the input. */
function ringOf(result) {
  const ring = { top: 0, bottom: 0, left: 0, right: 0 };
  for (const { taps } of result.windows) {
    for (const { input, row, column } of taps) {
      if (input >= 0) continue;
      ring.top = Math.max(ring.top, -row);
      ring.left = Math.max(ring.left, -column);
      ring.bottom = Math.max(ring.bottom, row - result.in[0] + 1);
      ring.right = Math.max(ring.right, column - result.in[1] + 1);
    }
  }
  return ring;
}

const GRIDS = {
  x: { title: "input x", brief: "x", side: "in", level: 0 },
  y: { title: "output y", brief: "y", side: "out", level: 0 },
  gx: { title: "gradient of the input", brief: "gradient of x", side: "in", level: 1 },
  g: { title: "upstream gradient g", brief: "upstream g", side: "out", level: 1 },
};

/** One example of the batch: four grids, and what is drawn over them. */
class Example {
  constructor(index, layout, scene) {
    this.index = index;
    this.layout = layout;
    this.dims = scene.state.dims;
    this.place();
    this.cells = {};
    this.over = svg("g", { class: "over", "aria-hidden": "true" });
    this.labels = svg("g", { class: "over", "aria-hidden": "true" }); // above the arrows
    const several = scene.state.x.length > 1;
    this.svg = svg(
      "svg",
      {
        width: this.width,
        height: this.height,
        viewBox: `0 0 ${this.width} ${this.height}`,
        role: "group",
        "aria-label": several ? `example ${index + 1}` : "the pooling",
      },
      this.definitions(),
      this.padding(),
      this.headings(),
      Object.keys(GRIDS).map((name) => this.grid(name)),
      this.over,
      this.labels,
    );
    this.figure = html(
      "figure",
      { class: "example" },
      several ? html("figcaption", {}, `Example ${index + 1}`) : "",
      html("div", { class: "scroll" }, this.svg),
    );
  }

  place() {
    const { cell, gap, ring, rows } = this.layout;
    const inputWidth = (this.layout.in[1] + ring.left + ring.right) * cell;
    const tall = rows * cell;
    const inner = inputWidth + gap + this.layout.out[1] * cell;
    const titles = this.layout.narrow ? 104 : 176; // the width of the longest heading
    const margin = Math.max(
      4,
      Math.ceil(Math.max(0, titles - inputWidth) / 2),
      Math.ceil(Math.max(0, titles - this.layout.out[1] * cell) / 2),
    );
    this.width = inner + 2 * margin;
    this.levels = [HEADING, HEADING + tall + BETWEEN + HEADING];
    this.height = this.levels[1] + tall + FOOT;
    const inputTop = (tall - (this.layout.in[0] + ring.top + ring.bottom) * cell) / 2 + ring.top * cell;
    this.origin = {
      in: [margin + ring.left * cell, inputTop],
      out: [margin + inputWidth + gap, (tall - this.layout.out[0] * cell) / 2],
    };
    this.middle = margin + inputWidth + gap / 2;
    this.tall = tall;
  }

  /** The corner of a cell. */
  corner(name, row, column) {
    const { side, level } = GRIDS[name];
    const [left, top] = this.origin[side];
    return [left + column * this.layout.cell, this.levels[level] + top + row * this.layout.cell];
  }

  cornerOf(name, index) {
    const columns = this.layout[GRIDS[name].side][1];
    return this.corner(name, Math.floor(index / columns), index % columns);
  }

  definitions() {
    const head = (id, kind) =>
      svg(
        "marker",
        {
          id: `${id}-${this.index}`,
          class: kind,
          viewBox: "0 0 10 10",
          refX: 8,
          refY: 5,
          markerWidth: 9,
          markerHeight: 9,
          markerUnits: "userSpaceOnUse",
          orient: "auto",
        },
        svg("path", { d: "M0 0.5 9.5 5 0 9.5z" }),
      );
    const hatch = svg(
      "pattern",
      {
        id: `hatch-${this.index}`,
        width: 7,
        height: 7,
        patternUnits: "userSpaceOnUse",
        patternTransform: "rotate(45)",
      },
      svg("path", { d: "M0 0V7", class: "hatch-line" }),
    );
    return svg("defs", {}, head("head-f", "forward"), head("head-b", "backward"), hatch);
  }

  /** The ring of padding: hatched, without numbers. */
  padding() {
    const { cell, ring } = this.layout;
    if (!(ring.top + ring.bottom + ring.left + ring.right)) return "";
    const [left, top] = this.corner("x", -ring.top, -ring.left);
    const size = {
      width: (this.layout.in[1] + ring.left + ring.right) * cell,
      height: (this.layout.in[0] + ring.top + ring.bottom) * cell,
    };
    return svg(
      "g",
      {},
      svg(
        "rect",
        { x: left, y: top, ...size, class: "padding", fill: `url(#hatch-${this.index})` },
        svg("title", {}, "padding"),
      ),
    );
  }

  headings() {
    const { cell, gap, narrow } = this.layout;
    const parts = Object.entries(GRIDS).map(([name, { title, brief, side, level }]) => {
      const centre = this.origin[side][0] + (this.layout[side][1] * cell) / 2;
      const ring = name === "x" ? this.layout.ring.top * cell : 0;
      const top = this.levels[level] + this.origin[side][1] - ring;
      return svg(
        "text",
        { class: `heading ${name}`, x: centre, y: top - 14, "text-anchor": "middle" },
        narrow ? brief : title,
      );
    });
    const narrowGap = gap < 130;
    const beside = Math.abs(this.origin.in[1] - this.origin.out[1]) < 18; // of the gradients' headings
    const room = this.origin.out[0] + (this.layout.out[1] * cell) / 2 - this.middle;
    const forward = this.flow(
      "forward",
      0,
      [OPERATORS[this.layout.operator].name, narrowGap ? "" : this.layout.windows],
      "→",
    );
    const backward = this.flow("backward", 1, [narrowGap || (beside && room < 150) ? "" : "weights × g"], "←");
    return svg("g", { "aria-hidden": "true" }, parts, forward, backward);
  }

  /** What happens on the way, above the arrows: to the right in the upper half, to the left in the lower. */
  flow(kind, level, words, arrow) {
    const [first, second] = words;
    const y = this.levels[level] - 14 + (level ? Math.min(this.origin.in[1], this.origin.out[1]) : 0);
    const text = kind === "forward" ? `${first} ${arrow}` : `${arrow} ${first}`;
    return svg(
      "g",
      { class: "flow" },
      svg("text", { x: this.middle, y, "text-anchor": "middle" }, text),
      second
        ? svg("text", { x: this.middle, y: y + 18, "text-anchor": "middle", class: "minor" }, second)
        : "",
    );
  }

  grid(name) {
    const [rows, columns] = this.layout[GRIDS[name].side];
    this.cells[name] = [];
    const editable = name === "x" || name === "g";
    const lines = Array.from({ length: rows }, (_, row) =>
      svg(
        "g",
        { role: "row" },
        Array.from({ length: columns }, (_, column) => this.cell(name, row, column, editable)),
      ),
    );
    return svg(
      "g",
      {
        role: "grid",
        "aria-label": `${GRIDS[name].title}${editable ? ", editable" : ""}`,
        class: `grid ${name}`,
        "aria-readonly": String(!editable),
      },
      lines,
    );
  }

  cell(name, row, column, editable) {
    const size = this.layout.cell;
    const index = row * this.layout[GRIDS[name].side][1] + column;
    const [left, top] = this.corner(name, row, column);
    const inset = 1.5;
    const parts = {
      box: svg("rect", {
        x: inset,
        y: inset,
        width: size - 2 * inset,
        height: size - 2 * inset,
        rx: Math.min(6, size / 8),
        class: "box",
      }),
      corner: svg("path", { d: `M${size - 3} 3v${size * 0.24}L${size - 3 - size * 0.24} 3z`, class: "won" }),
    };
    const label = {
      value: svg("text", {
        x: size / 2,
        y: size / 2,
        "text-anchor": "middle",
        "dominant-baseline": "central",
        class: "value",
      }),
      badge: svg("text", { x: size / 2, y: size * 0.29, "text-anchor": "middle", class: `badge ${name}` }),
    };
    const labels = svg("g", { transform: `translate(${left} ${top})` }, Object.values(label));
    this.labels.append(labels);
    const group = svg(
      "g",
      {
        role: "gridcell",
        class: `cell${editable ? " editable" : ""}`,
        transform: `translate(${left} ${top})`,
        tabindex: index === 0 ? 0 : -1,
        "data-cell": `${name}-${this.index}-${index}`,
        "data-grid": name,
        "data-example": this.index,
        "data-index": index,
        "data-row": row,
        "data-column": column,
      },
      Object.values(parts),
    );
    this.cells[name].push({ group, labels, ...parts, ...label });
    return group;
  }

  paint(scene) {
    const shown = shownNumbers(scene, this.index);
    for (const name of Object.keys(GRIDS)) this.paintGrid(scene, name, shown[name]);
    this.paintLight(scene, shown);
  }

  paintGrid(scene, name, { values, done }) {
    const peak = Math.max(1e-12, ...values.filter(Number.isFinite).map(Math.abs));
    const shape = this.layout[GRIDS[name].side];
    const size = this.layout.cell;
    const digits = size >= 40 ? 3 : size >= 30 ? 2 : 1;
    const texts = values.map((value, index) => (done(index) ? short(value, digits) : ""));
    // One size for the grid; a number that is longer than a sign, a digit, a point and decimals is smaller.
    const longest = Math.min(3 + digits, Math.max(1, ...texts.map((text) => text.length)));
    this.cells[name].forEach((cell, index) => {
      const value = values[index];
      const known = done(index);
      const text = texts[index];
      const heat = known && Number.isFinite(value) ? Math.abs(value) / peak : 0;
      cell.value.textContent = text;
      const fitted = Math.min(size * 0.36, (size * 1.2) / Math.max(longest, text.length), 26);
      set(cell.value, { style: `font-size:${fitted.toFixed(1)}px` });
      cell.box.style.setProperty("--heat", `${(heat * 30).toFixed(0)}%`);
      const spoken = `${name}${at(index, shape, this.dims)} ${known ? `= ${short(value)}` : "not computed yet"}`;
      set(cell.group, { "aria-label": spoken });
      cell.labels.classList.toggle("zero", text === "0");
      cell.group.classList.toggle("todo", !known);
      cell.badge.textContent = "";
    });
  }

  /** Windows, winners, weights and arrows of what is lit. */
  paintLight(scene, shown) {
    const target = scene.light?.everywhere ? { ...scene.light, example: this.index } : scene.light;
    const won = target?.valuesOnly ? new Set() : wonInputs(scene, this.index, shown.y.done);
    this.cells.x.forEach((cell, i) => cell.group.classList.toggle("winner", won.has(i)));
    if (!target || target.example !== this.index) return this.over.replaceChildren();
    const outputs = target.kind === "output" ? [target.index] : readersOf(scene, target.index);
    const parts = [
      this.windows(scene, outputs),
      this.arrows(scene, target, outputs, shown),
      this.rings(scene, target, outputs, shown),
    ];
    this.badges(scene, target, shown);
    this.over.replaceChildren(...parts.flat());
  }

  windows(scene, outputs) {
    const { cell } = this.layout;
    if (scene.state.operator === "unpool") return [];
    return outputs.flatMap((o, k) => {
      const { taps } = scene.result.windows[o];
      if (!taps.length) return [];
      const rows = taps.map((tap) => tap.row);
      const columns = taps.map((tap) => tap.column);
      const [left, top] = this.corner("x", Math.min(...rows), Math.min(...columns));
      const inset = 1 + 3 * (k % 4);
      const width = (Math.max(...columns) - Math.min(...columns) + 1) * cell - 2 * inset;
      const height = (Math.max(...rows) - Math.min(...rows) + 1) * cell - 2 * inset;
      const dash = WINDOW_DASHES[k % WINDOW_DASHES.length];
      const frame = svg("rect", {
        class: "window",
        x: left + inset,
        y: top + inset,
        width,
        height,
        rx: 8,
        "stroke-dasharray": dash,
      });
      const dilated = taps.length < ((width + 2 * inset) * (height + 2 * inset)) / cell ** 2 - 0.5;
      return [frame, ...(dilated ? taps.map((tap) => this.ring("x", [tap.row, tap.column], "tap", 3)) : [])];
    });
  }

  ring(name, place, kind, inset) {
    const [left, top] = Array.isArray(place) ? this.corner(name, ...place) : this.cornerOf(name, place);
    const side = this.layout.cell - 2 * inset;
    return svg("rect", {
      class: `ring ${kind}`,
      x: left + inset,
      y: top + inset,
      width: side,
      height: side,
      rx: Math.min(7, side / 4),
    });
  }

  rings(scene, target, outputs, shown) {
    const inset = this.layout.cell > 40 ? 5 : 3.5;
    const parts = [];
    for (const o of outputs) {
      if (shown.y.done(o)) parts.push(this.ring("y", o, "output", inset));
      if (shown.gx.sent(o)) parts.push(this.ring("g", o, "upstream", inset));
    }
    if (target.kind === "input") {
      const wins = outputs.some(
        (o) => shown.y.done(o) && winnersOf(scene, this.index, o).includes(target.index),
      );
      parts.push(this.ring("x", target.index, wins ? "wins" : "chosen", inset));
      if (shown.gx.done()) parts.push(this.ring("gx", target.index, "receives", inset));
      return parts;
    }
    for (const tap of target.valuesOnly ? [] : winnersOf(scene, this.index, target.index))
      if (shown.y.done(target.index)) parts.push(this.ring("x", tap, "wins", inset));
    if (shown.gx.sent(target.index))
      for (const { input } of received(scene, this.index, target.index))
        parts.push(this.ring("gx", input, "receives", inset));
    return parts;
  }

  /** Small numbers in cells: the weights of the window, and what is added to a sum. */
  badges(scene, target, shown) {
    if (this.layout.cell < 44 || scene.state.operator === "unpool") return;
    if (target.kind === "output" && shown.y.done(target.index) && !scene.result.winners) {
      for (const tap of read(scene, this.index, target.index))
        this.badge(this.cells.x[tap.input], `× ${short(tap.weight)}`);
    }
    if (target.kind === "output" && shown.gx.sent(target.index)) {
      for (const { input, term, before } of received(scene, this.index, target.index))
        if (before !== 0) this.badge(this.cells.gx[input], sumWords([before, term.value]));
    }
    if (target.kind === "input") {
      const terms = scene.back.terms[this.index][target.index].filter((term) => term.value !== 0);
      if (terms.length > 1 && terms.length < 4 && terms.every((term) => shown.gx.sent(term.output)))
        this.badge(this.cells.gx[target.index], sumWords(terms.map((term) => term.value)));
    }
  }

  badge(cell, text) {
    cell.badge.textContent = text;
    const inner = this.layout.cell - 12; // the width inside a ring
    cell.badge.style.fontSize = `${Math.min(11, (inner * 1.6) / text.length).toFixed(1)}px`;
  }

  arrows(scene, target, outputs, shown) {
    const parts = [];
    for (const [k, o] of outputs.entries()) {
      const lane = LANE + 0.07 * (k % 3);
      const sent = received(scene, this.index, o).filter(
        (part) => target.kind === "output" || part.input === target.index,
      );
      const sources = sourcesOf(scene, this.index, o).filter(
        (i) => target.kind === "output" || i === target.index,
      );
      if (shown.y.done(o)) for (const i of sources) parts.push(this.arrow("x", i, "y", o, "forward", lane));
      if (shown.gx.sent(o))
        for (const { input } of sent) parts.push(this.arrow("g", o, "gx", input, "backward", lane));
    }
    return svg("g", { class: parts.length > MANY_ARROWS ? "many" : null }, parts);
  }

  arrow(from, start, to, end, kind, lane) {
    const { cell } = this.layout;
    const right = kind === "forward" ? 1 : -1;
    const [x0, y0] = this.cornerOf(from, start);
    const [x1, y1] = this.cornerOf(to, end);
    const begin = [x0 + cell * (0.5 + 0.2 * right), y0 + cell * lane];
    const finish = [x1 + cell * (0.5 - 0.34 * right), y1 + cell * lane];
    const bend = Math.max(18, Math.abs(finish[0] - begin[0]) * 0.45) * right;
    const d = `M${begin.join(" ")}C${begin[0] + bend} ${begin[1]} ${finish[0] - bend} ${finish[1]} ${finish.join(" ")}`;
    return svg(
      "g",
      { class: `arrow ${kind}` },
      svg("path", { class: "halo", d }),
      svg("circle", { cx: begin[0], cy: begin[1], r: 3 }),
      svg("path", { class: "line", d, pathLength: 1, "marker-end": `url(#head-${kind[0]}-${this.index})` }),
    );
  }
}

const LONGEST_SUM = 8; // characters that fit into a cell

/** "1 + 2"; of a long sum only the last part. */
function sumWords(values) {
  const words = [short(values[0]), ...values.slice(1).map((value) => added(value))].join(" ");
  return words.length > LONGEST_SUM ? added(values.at(-1)) : words;
}

/** The inputs an output depends on: the winners, or all that have a weight. */
function sourcesOf(scene, e, o) {
  return scene.result.winners
    ? winnersOf(scene, e, o)
    : read(scene, e, o)
        .filter((tap) => tap.weight !== 0)
        .map((tap) => tap.input);
}

function winnersOf(scene, e, o) {
  const taps = scene.result.windows[o].taps;
  return (scene.result.winners?.[e]?.[o] ?? []).map((t) => taps[t].input).filter((i) => i >= 0);
}

function wonInputs(scene, e, done) {
  const won = new Set();
  if (scene.state.operator === "unpool") return won;
  scene.result.windows.forEach((_, o) => done(o) && winnersOf(scene, e, o).forEach((i) => won.add(i)));
  return won;
}

/** The numbers of the four grids at this step, and which of them are known yet. */
function shownNumbers(scene, e) {
  const { forward, backward } = scene.progress[e];
  const sums = scene.back.terms[e].map((terms) =>
    terms.filter((term) => term.output < backward).reduce((sum, term) => sum + term.value, 0),
  );
  const always = () => true;
  return {
    x: { values: flat(scene.state.x[e]), done: always },
    y: { values: flat(scene.result.y[e]), done: (o) => o < forward },
    g: { values: flat(scene.cotangent[e]), done: always },
    gx: { values: sums, done: () => scene.progress.some((p) => p.backward > 0), sent: (o) => o < backward },
  };
}

/** Pointer, focus and keys of the cells. */
function listen(container, stage) {
  const cellOf = (event) => event.target.closest?.("[data-cell]");
  const targetOf = (cell) =>
    cell && {
      kind: cell.dataset.grid === "x" || cell.dataset.grid === "gx" ? "input" : "output",
      example: Number(cell.dataset.example),
      index: Number(cell.dataset.index),
    };
  const { light } = stage.listeners;
  container.addEventListener("pointerover", (event) => light(targetOf(cellOf(event)) ?? null));
  container.addEventListener("pointerleave", () => light(null));
  container.addEventListener("focusin", (event) => cellOf(event) && light(targetOf(cellOf(event))));
  container.addEventListener("focusout", () => light(null));
  container.addEventListener("keydown", (event) => keyOnCell(event, cellOf(event), stage));
  container.addEventListener("pointerdown", (event) => press(event, cellOf(event), stage.listeners));
}

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

function keyOnCell(event, cell, stage) {
  if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
  const { grid, example, row, column } = cell.dataset;
  const move = MOVES[event.key];
  if (move) {
    const next = stage.container.querySelector(
      `[data-grid="${grid}"][data-example="${example}"][data-row="${Number(row) + move[0]}"][data-column="${Number(column) + move[1]}"]`,
    );
    event.preventDefault();
    event.stopPropagation();
    if (next) focusCell(next);
  } else if (
    cell.classList.contains("editable") &&
    (event.key === "Enter" || event.key === "F2" || /^[-+.\d]$/.test(event.key))
  ) {
    event.preventDefault();
    event.stopPropagation();
    stage.listeners.edit(cell, event.key.length === 1 ? event.key : null);
  }
}

/** One cell of a grid is reached by Tab: the one that had the focus last. */
export function focusCell(cell) {
  for (const other of cell.closest('[role="grid"]').querySelectorAll('[tabindex="0"]'))
    other.setAttribute("tabindex", -1);
  cell.setAttribute("tabindex", 0);
  cell.focus();
}

const DRAG_STARTS = 5; // pixels: less than this is a click
const DRAG_STEP = 9; // pixels for one step of the value

/** A click opens the editor; a drag to the side changes the number. */
function press(event, cell, { edit, drag }) {
  if (!cell?.classList.contains("editable") || event.button !== 0) return;
  const { clientX, pointerId } = event;
  const name = cell.dataset.cell;
  let dragging = false;
  const move = (next) => {
    if (next.pointerId !== pointerId) return;
    if (!dragging && Math.abs(next.clientX - clientX) < DRAG_STARTS) return;
    if (!dragging) drag(cell, "begin", 0);
    dragging = true;
    drag(cell, "move", Math.round((next.clientX - clientX) / DRAG_STEP));
  };
  const end = (next) => {
    if (next.pointerId !== pointerId) return;
    for (const kind of ["pointermove", "pointerup", "pointercancel"])
      window.removeEventListener(kind, kind === "pointermove" ? move : end);
    if (dragging) drag(cell, "end", 0);
    else if (next.type === "pointerup") edit(document.querySelector(`[data-cell="${name}"]`), null);
  };
  window.addEventListener("pointermove", move);
  window.addEventListener("pointerup", end);
  window.addEventListener("pointercancel", end);
}
