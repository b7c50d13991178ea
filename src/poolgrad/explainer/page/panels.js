// What lies below the picture: the matrix, the check by differences, shifts, the batch, the code.

import { html, set, svg } from "./dom.js";
import {
  code,
  convolution,
  convolutionGradients,
  differences,
  InputError,
  jacobian,
  pool,
  pullback,
  shifted,
} from "./pooling.js";
import { at, exact, flat, listed, short, windowWords } from "./words.js";

const MOST_ENTRIES = 6000; // more rectangles make a page slow
const MOST_ROWS = 128;
const MOST_SIDE = 16; // as in pooling.js
const TALLEST_MATRIX = 560; // pixels

/** What a person has chosen in the panels; not part of the state that is shared. */
export const choices = {
  library: "numpy",
  shift: [0, 1],
  filter: [
    [1, 0],
    [0, 0],
  ],
  stage: 3,
  input: null,
};

/** Draws one panel; a state that it cannot show is a sentence in it. */
export function drawPanel(name, panel, scene, actions) {
  const draw = { matrix, check, shift, batch, code: codePanel }[name];
  const focused = panel.contains(document.activeElement) ? document.activeElement.dataset.keep : null;
  let content;
  try {
    content = draw(scene, actions);
  } catch (error) {
    if (!(error instanceof InputError)) throw error;
    content = [html("p", { class: "error" }, error.message)];
  }
  const scrolled = panel.querySelector(".tall")?.scrollTop ?? 0;
  panel.replaceChildren(...content.flat(Infinity).filter(Boolean));
  const table = panel.querySelector(".tall");
  if (table) scrollToChosen(table, scrolled);
  // Without scrolling: the pointer may be over the picture, which would move away below it.
  if (focused) panel.querySelector(`[data-keep="${focused}"]`)?.focus({ preventScroll: true });
}

/** Keeps a redrawn table where it was, or moves it so far that the chosen row is in view. */
function scrollToChosen(table, scrolled) {
  table.scrollTop = scrolled;
  const row = table.querySelector(".chosen");
  if (!row) return;
  const [outer, inner] = [table.getBoundingClientRect(), row.getBoundingClientRect()];
  const above = outer.top + table.querySelector("thead").offsetHeight - inner.top; // below the fixed head
  const below = inner.bottom - outer.top - table.clientHeight;
  if (above > 0) table.scrollTop -= above;
  else if (below > 0) table.scrollTop += below;
}

// ---------------------------------------------------------------- small grids

/** A small picture of a plane. `mark(i)` gives a cell a class and a letter. */
function miniGrid(title, values, { size = 42, mark = () => null, className = "" } = {}) {
  const columns = values[0].length;
  const cell = Math.max(16, Math.min(size, Math.floor((innerWidth < 560 ? 120 : 250) / columns)));
  const cells = flat(values).map((value, i) => {
    const [left, top] = [(i % columns) * cell, Math.floor(i / columns) * cell];
    const marked = mark(i);
    const text = short(value);
    return svg(
      "g",
      {
        transform: `translate(${left} ${top})`,
        class: `mini-cell ${marked?.kind ?? ""}${text === "0" ? " zero" : ""}`,
      },
      svg("rect", { x: 1, y: 1, width: cell - 2, height: cell - 2, rx: 3 }),
      svg(
        "text",
        {
          x: cell / 2,
          y: cell / 2,
          "text-anchor": "middle",
          "dominant-baseline": "central",
          style: `font-size:${Math.min(cell * 0.42, (cell * 1.4) / text.length, 15).toFixed(1)}px`,
        },
        text,
      ),
      marked?.letter && cell > 32
        ? svg("text", { x: cell - 4, y: 11, "text-anchor": "end", class: "letter" }, marked.letter)
        : "",
    );
  });
  const spoken = `${title}: ${values.map((row) => row.map((value) => short(value)).join(", ")).join("; ")}`;
  const [width, height] = [columns * cell, values.length * cell];
  return html(
    "figure",
    { class: `mini ${className}` },
    html("figcaption", {}, title),
    svg(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spoken },
      cells,
    ),
  );
}

const sign = (text) => html("span", { class: "sign", "aria-hidden": "true" }, text);

/** Buttons of which one is chosen. */
function chips(label, options, chosen, choose) {
  return html(
    "div",
    { class: "chips", role: "group", "aria-label": label },
    options.map(([value, text]) =>
      html(
        "button",
        {
          type: "button",
          "aria-pressed": String(value === chosen),
          "data-keep": `${label}-${value}`,
          onclick: () => choose(value),
        },
        text,
      ),
    ),
  );
}

// ---------------------------------------------------------------- the matrix

function matrix(scene, actions) {
  const planes = scene.state.x.map((_, e) => {
    const caption = scene.state.x.length > 1 ? `Example ${e + 1}` : "";
    return html(
      "figure",
      { class: "matrix" },
      caption ? html("figcaption", {}, caption) : "",
      html("div", { class: "scroll" }, matrixPicture(scene, e, actions)),
    );
  });
  return [html("p", { class: "lead" }, matrixWords(scene)), ...planes];
}

function matrixWords(scene) {
  const selecting = scene.result.winners && scene.state.ties !== "split";
  const holds = scene.state.x.every((_, e) => isProduct(scene, e));
  const first = `Row i of J holds the derivatives of output i, column j those with respect to input j. The gradient of the input is gx = Jᵀ g: each column of J times g.`;
  const mask = selecting ? " Where single inputs win, J is a mask of zeros and ones." : "";
  const product = holds
    ? " Here y = J x holds as well."
    : " Here y = J x does not hold: the operator is not linear around this x, or a window has no finite result.";
  return first + mask + product;
}

function isProduct(scene, e) {
  const x = flat(scene.state.x[e]);
  const y = flat(scene.result.y[e]);
  return jacobian(scene.result, e).every((row, o) => {
    const product = row.reduce((sum, weight, i) => sum + (weight === 0 ? 0 : weight * x[i]), 0);
    return Object.is(product, y[o]) || Math.abs(product - y[o]) < 1e-9 * (1 + Math.abs(y[o]));
  });
}

function matrixPicture(scene, e, actions) {
  const rows = jacobian(scene.result, e);
  const [height, width] = [rows.length, rows[0].length];
  const entries = rows.reduce((count, row) => count + row.filter((weight) => weight !== 0).length, 0);
  if (entries > MOST_ENTRIES)
    return html(
      "p",
      {},
      `J has ${entries} entries that are not 0: too many to draw. Make the input or the windows smaller.`,
    );
  const size = Math.max(
    2,
    Math.min(46, Math.floor((actions.width() - 120) / (width + 3)), Math.floor(TALLEST_MATRIX / height)),
  );
  const grid = { size, left: 60, top: 30 + size + 8, width, height };
  const target = scene.light?.everywhere || scene.light?.example === e ? scene.light : null;
  const parts = [
    strip(grid, "x", flat(scene.state.x[e]), target),
    strip(grid, "gx", flat(scene.back.gx[e]), target),
    strip(grid, "y", flat(scene.result.y[e]), target),
    strip(grid, "g", flat(scene.cotangent[e]), target),
    svg("rect", { class: "frame", x: grid.left, y: grid.top, width: width * size, height: height * size }),
    rows.map((row, o) => row.map((weight, i) => entry(grid, o, i, weight))),
    litBand(grid, target),
  ];
  const total = { width: grid.left + (width + 2) * size + 60, height: grid.top + (height + 1) * size + 36 };
  return set(
    svg(
      "svg",
      {
        ...total,
        viewBox: `0 0 ${total.width} ${total.height}`,
        class: "jacobian",
        role: "img",
        "aria-label": matrixSpoken(rows),
      },
      parts.flat(Infinity).filter(Boolean),
    ),
    {
      onpointermove: (event) => actions.light(pointedAt(event, grid, e)),
      onpointerleave: () => actions.light(null),
    },
  );
}

function matrixSpoken(rows) {
  const words = rows.slice(0, 8).map(
    (row, o) =>
      `row ${o}: ${
        listed(
          row.flatMap((weight, i) => (weight === 0 ? [] : [`${short(weight)} in column ${i}`])),
          6,
        ) || "zeros"
      }`,
  );
  return `Jacobian of ${rows.length} rows and ${rows[0].length} columns; ${words.join("; ")}`;
}

/** A number of J: its share of the cell shows its size; zeros are dots. */
function entry({ size, left, top, width, height }, o, i, weight) {
  const [x, y] = [left + i * size, top + o * size];
  if (weight === 0)
    return width * height > 1500
      ? null
      : svg("circle", { class: "dot", cx: x + size / 2, cy: y + size / 2, r: 1 });
  const edge = size < 8 ? 0 : 1;
  const strength = Number.isFinite(weight) ? Math.min(1, Math.abs(weight)) : 1;
  const box = svg("rect", {
    class: `entry${weight < 0 ? " negative" : ""}`,
    x: x + edge,
    y: y + edge,
    width: size - 2 * edge,
    height: size - 2 * edge,
    rx: 2,
    style: `--heat:${(18 + strength * 37).toFixed(0)}%`,
  });
  return size < 22 ? box : [box, number(short(weight), x, y, size)];
}

const number = (text, x, y, size) =>
  svg(
    "text",
    {
      x: x + size / 2,
      y: y + size / 2,
      "text-anchor": "middle",
      "dominant-baseline": "central",
      style: `font-size:${Math.min(size * 0.4, (size * 1.35) / text.length).toFixed(1)}px`,
    },
    text,
  );

/** x above J, gx below, y and g on the right: the same order as in the picture above. */
function strip({ size, left, top, width, height }, name, values, target) {
  const horizontal = name === "x" || name === "gx";
  const lit = target && (target.kind === "input") === horizontal ? target.index : -1;
  const place = {
    x: [left, top - size - 8],
    gx: [left, top + height * size + 8],
    y: [left + width * size + 10, top],
    g: [left + width * size + 18 + size, top],
  }[name];
  const cells = values.map((value, n) => {
    const [x, y] = horizontal ? [place[0] + n * size, place[1]] : [place[0], place[1] + n * size];
    return [
      svg("rect", {
        class: `strip ${name}${n === lit ? " lit" : ""}`,
        x: x + 0.5,
        y: y + 0.5,
        width: size - 1,
        height: size - 1,
      }),
      size < 22 ? "" : number(short(value), x, y, size),
    ];
  });
  const label = horizontal
    ? svg(
        "text",
        {
          class: `label ${name}`,
          x: left - 10,
          y: place[1] + size / 2,
          "text-anchor": "end",
          "dominant-baseline": "central",
        },
        name,
      )
    : svg(
        "text",
        { class: `label ${name}`, x: place[0] + size / 2, y: top - 10, "text-anchor": "middle" },
        name,
      );
  return [cells, label].flat(Infinity).filter(Boolean);
}

function litBand({ size, left, top, width, height }, target) {
  if (!target) return null;
  return target.kind === "output"
    ? svg("rect", {
        class: "band row",
        x: left - 2,
        y: top + target.index * size - 1,
        width: width * size + 4,
        height: size + 2,
        rx: 4,
      })
    : svg("rect", {
        class: "band column",
        x: left + target.index * size - 1,
        y: top - 2,
        width: size + 2,
        height: height * size + 4,
        rx: 4,
      });
}

function pointedAt(event, { size, left, top, width, height }, e) {
  const bounds = event.currentTarget.getBoundingClientRect();
  const column = Math.floor((event.clientX - bounds.left - left) / size);
  const row = Math.floor((event.clientY - bounds.top - top) / size);
  if (row >= 0 && row < height && column >= 0) return { kind: "output", example: e, index: row };
  if (column >= 0 && column < width) return { kind: "input", example: e, index: column };
  return null;
}

// ---------------------------------------------------------------- finite differences

const STEP = 1e-4;

function check(scene, actions) {
  scene.differences ??= differences(scene.state, STEP); // the same while only the pointer moves
  const { gx, kinks } = scene.differences;
  const isKink = (e, i) => kinks.some(([example, input]) => example === e && input === i);
  const rows = scene.state.x.flatMap((plane, e) =>
    flat(plane).map((value, i) => ({
      e,
      i,
      value,
      gradient: flat(scene.back.gx[e])[i],
      difference: flat(gx[e])[i],
      kink: isKink(e, i),
    })),
  );
  const chosen = choiceOf(rows, scene);
  return [
    html(
      "p",
      { class: "lead" },
      "Move one input by ±0.0001, look how far the loss L = Σ g · y moves, divide: that is the gradient without any calculus. Choose an input to see L as it changes.",
    ),
    html(
      "div",
      { class: "comparison" },
      html(
        "div",
        {
          class: "scroll tall",
          tabindex: 0,
          role: "region",
          "aria-label": "Gradient and finite difference of each input",
        },
        checkTable(rows, chosen, scene, actions),
      ),
      slopePicture(scene, chosen),
    ),
    rows.length > MOST_ROWS
      ? html("p", { class: "note" }, `The first ${MOST_ROWS} of ${rows.length} inputs are shown.`)
      : "",
  ];
}

/** The input of the plot: the one pointed at, else the one chosen before, else the one with most to see. */
function choiceOf(rows, scene) {
  const wanted = scene.light?.kind === "input" ? scene.light : choices.input;
  const found = wanted && rows.find((row) => row.e === wanted.example && row.i === wanted.index);
  return found ?? rows.find((row) => row.kink) ?? rows.find((row) => row.gradient !== 0) ?? rows[0];
}

function checkTable(rows, chosen, scene, actions) {
  const head = html(
    "thead",
    {},
    html(
      "tr",
      {},
      ["input", "x", "gradient", "difference", ""].map((text) =>
        html("th", { scope: "col" }, text || html("span", { class: "unseen" }, "verdict")),
      ),
    ),
  );
  const several = scene.state.x.length > 1;
  const digits = innerWidth < 560 ? 3 : 6; // on a narrow screen the verdict has to be seen, too
  const body = rows.slice(0, MOST_ROWS).map((row) => {
    const name = `x${at(row.i, scene.result.in, scene.state.dims)}${several ? ` of ${row.e + 1}` : ""}`;
    const choose = () => actions.choose({ kind: "input", example: row.e, index: row.i });
    return html(
      "tr",
      { class: row === chosen ? "chosen" : "" },
      html(
        "th",
        { scope: "row" },
        html(
          "button",
          {
            type: "button",
            class: "link",
            "data-keep": `row-${row.e}-${row.i}`,
            "aria-pressed": String(row === chosen),
            onclick: choose,
          },
          name,
        ),
      ),
      html("td", {}, short(row.value)),
      html("td", {}, exact(row.gradient, digits)),
      html("td", {}, exact(row.difference, digits)),
      html("td", {}, verdict(row)),
    );
  });
  return html("table", {}, head, html("tbody", {}, body));
}

const agrees = ({ gradient, difference }) =>
  Math.abs(gradient - difference) <= 1e-5 * (1 + Math.abs(gradient));

function verdict(row) {
  if (row.kink) return html("span", { class: "verdict kink" }, "∧ kink");
  if (![row.value, row.gradient, row.difference].every(Number.isFinite))
    return html("span", { class: "verdict none" }, "not finite");
  return agrees(row)
    ? html("span", { class: "verdict good" }, "✓ agrees")
    : html("span", { class: "verdict none" }, "≠ differs");
}

/** L as a function of one input, with the tangent that the gradient promises. */
function slopePicture(scene, { e, i, value, gradient, kink }) {
  const name = `x${at(i, scene.result.in, scene.state.dims)}`;
  const reach = 1.5;
  const loss = (moved) => {
    const x = scene.state.x.map((plane) => plane.map((row) => [...row]));
    x[e][Math.floor(i / scene.result.in[1])][i % scene.result.in[1]] = moved;
    const y = pool({ ...scene.state, x }).y[e];
    return flat(y).reduce((sum, output, o) => sum + flat(scene.cotangent[e])[o] * output, 0);
  };
  const points = Array.from({ length: 61 }, (_, k) => value + ((k - 30) / 30) * reach).map((t) => [
    t,
    loss(t),
  ]);
  const here = loss(value);
  const none = scene.state.ties === "zero" && scene.result.winners;
  const words = kink
    ? `Kink: ${name} is within 0.0001 of a tie (or of a corner of |x|). L has one slope to its left and another to its right. The difference is between the two; ${none ? "ties “zero” gives tied inputs 0, which is no subgradient" : "the gradient is one of the subgradients, chosen by the rule for ties"}.`
    : `The dashed line has the slope ${exact(gradient, 4)}, the gradient of ${name}.`;
  if (![here, gradient, ...points.map((p) => p[1])].every(Number.isFinite))
    return html("div", { class: "slope" }, html("p", {}, `L is not finite around ${name}.`));
  return html(
    "figure",
    { class: "slope" },
    slopeCurve(points, value, here, gradient, reach, name),
    html("figcaption", {}, words),
  );
}

function slopeCurve(points, value, here, gradient, reach, name) {
  const [width, height, edge] = [300, 190, 26];
  const values = [...points.map((p) => p[1]), here];
  const middle = (Math.max(...values) + Math.min(...values)) / 2;
  const range = Math.max(Math.max(...values) - Math.min(...values), 0.5) * 1.25;
  const px = (t) => edge + ((t - value + reach) / (2 * reach)) * (width - 2 * edge);
  const py = (v) => height / 2 - 6 - ((v - middle) / range) * (height - 2 * edge);
  const curve = `M${points.map(([t, v]) => `${px(t).toFixed(1)} ${py(v).toFixed(1)}`).join("L")}`;
  const tangent = `M${px(value - reach)} ${py(here - gradient * reach)}L${px(value + reach)} ${py(here + gradient * reach)}`;
  return svg(
    "svg",
    {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": `L as ${name} changes, and its tangent`,
    },
    svg("path", {
      class: "axis",
      d: `M${edge} ${height - 24}H${width - edge}M${px(value)} ${height - 28}v8`,
    }),
    svg("path", { class: "curve", d: curve }),
    svg("path", { class: "tangent", d: tangent }),
    svg("circle", { class: "point", cx: px(value), cy: py(here), r: 5 }),
    svg("text", { x: px(value), y: height - 5, "text-anchor": "middle" }, `${name} = ${short(value)}`),
    svg("text", { x: 12, y: 20 }, "L"),
  );
}

// ---------------------------------------------------------------- shifts

function shift(scene, actions) {
  const { state, result } = scene;
  if (state.operator === "unpool")
    return [
      html(
        "p",
        { class: "lead" },
        "An unpooling puts each value where its index points: shifting x moves the values to other indices. Choose a pooling to see what a shift does to it.",
      ),
    ];
  const [rows, columns] = choices.shift;
  const after = pool({ ...shifted(state, rows, columns), cotangent: null });
  const kinds = state.x.map((_, e) => outputKinds(scene, after, e));
  const count = (kind) => kinds.flat().filter((k) => k === kind).length;
  return [
    html("p", { class: "lead" }, shiftWords(scene, count, kinds.flat().length)),
    shiftButtons(scene, actions),
    state.x.map((plane, e) =>
      html(
        "div",
        { class: "flow-row" },
        miniGrid("y before", result.y[e]),
        sign("→"),
        miniGrid("x, shifted", shifted(state, rows, columns).x[e]),
        sign("→"),
        miniGrid("y after", after.y[e], {
          mark: (o) => ({ kind: kinds[e][o], letter: { stays: "=", moved: "→", changed: "≠" }[kinds[e][o]] }),
        }),
      ),
    ),
    html(
      "p",
      { class: "note" },
      "= stays, → the old value of the neighbour it moved from, ≠ changed. Values at the edge are repeated.",
    ),
  ];
}

/** What became of each output: it stays, it is that of a neighbour, or it is another number. */
function outputKinds(scene, after, e) {
  const [height, width] = scene.result.out;
  const before = flat(scene.result.y[e]);
  const steps = choices.shift.map((by, axis) => by / strideOf(scene.state, axis));
  return flat(after.y[e]).map((value, o) => {
    if (Object.is(value, before[o])) return "stays";
    const [row, column] = [Math.floor(o / width) - steps[0], (o % width) - steps[1]];
    const inside = row >= 0 && row < height && column >= 0 && column < width;
    return inside &&
      Number.isInteger(row) &&
      Number.isInteger(column) &&
      Object.is(value, before[row * width + column])
      ? "moved"
      : "changed";
  });
}

const strideOf = (state, axis) => (state.windows === "fixed" ? state.stride[axis] : Infinity);

function shiftWords(scene, count, total) {
  const [rows, columns] = choices.shift;
  const { stride, windows } = scene.state;
  const name =
    windows === "fixed"
      ? `stride ${stride[0] === stride[1] || scene.state.dims === 1 ? stride[1] : stride.join(" × ")}`
      : windowWords(scene.state);
  const by = (n, word, less, more) =>
    n ? [`${Math.abs(n)} ${word}${Math.abs(n) === 1 ? "" : "s"} ${n < 0 ? less : more}`] : [];
  const moved = listed([
    ...by(rows, "row", "up", "down"),
    ...by(columns, "column", "to the left", "to the right"),
  ]);
  const begin = `x is moved by ${moved || "nothing"}: ${count("stays")} of ${total} outputs stay, ${count("moved")} moved along, ${count("changed")} changed.`;
  if (windows !== "fixed")
    return `${begin} With ${name} windows the whole input is covered: only what leaves or enters at the edge can change the result.`;
  const one = stride[scene.state.dims === 1 ? 1 : 0] === 1 && stride[1] === 1;
  return one
    ? `${begin} With stride 1 the outputs move with the input, up to the edge (equivariance).`
    : `${begin} With ${name} the windows stand still while x moves: a small shift inside a window often keeps its output, but the outputs move exactly only with shifts that are multiples of the stride. Invariance is local, and it is not exact.`;
}

function shiftButtons(scene, actions) {
  const move = (rows, columns) => () => {
    const clipped = (value) => Math.max(-4, Math.min(4, value));
    choices.shift =
      rows === null ? [0, 0] : [clipped(choices.shift[0] + rows), clipped(choices.shift[1] + columns)];
    actions.redraw();
  };
  const button = (name, text, step) =>
    html("button", { type: "button", "data-keep": name, "aria-label": name, onclick: step }, text);
  const vertical = scene.state.dims === 2;
  return html(
    "div",
    { class: "chips", role: "group", "aria-label": "Shift the input" },
    button("shift left", "← left", move(0, -1)),
    button("shift right", "→ right", move(0, 1)),
    vertical ? [button("shift up", "↑ up", move(-1, 0)), button("shift down", "↓ down", move(1, 0))] : "",
    button("no shift", "no shift", move(null)),
  );
}

// ---------------------------------------------------------------- the batch

const STAGES = [
  [1, "1. Forward"],
  [2, "2. Backward, each example"],
  [3, "3. The mean"],
];

function batch(scene, actions) {
  const { state, result } = scene;
  if (state.operator === "unpool")
    return [
      html("p", { class: "lead" }, "Choose a pooling: an unpooling does not follow a convolution here."),
    ];
  if (Math.max(...result.in) === MOST_SIDE)
    return [
      html(
        "p",
        { class: "lead" },
        `The image before the filter is larger than x by a row and a column: make x smaller than ${MOST_SIDE} to see it.`,
      ),
    ];
  const filter = state.dims === 1 ? [choices.filter[0]] : choices.filter;
  const before = { ...state, x: state.x.map((plane) => imageFor(plane, state.dims)) };
  const { y, state: after } = convolution(before, filter);
  const pooled = pool(after);
  const { gx } = pullback(after, pooled);
  const { each, mean } = convolutionGradients(before, filter);
  const single = state.x.length === 1;
  return [
    html(
      "p",
      { class: "lead" },
      "Pooling has no weights. So put a small convolution before it: its filter w is shared by all examples. Each example goes forward and backward through its own windows; only then are the gradients of w averaged.",
    ),
    single
      ? html(
          "p",
          { class: "ask" },
          html(
            "button",
            { type: "button", class: "primary", "data-keep": "two", onclick: actions.two },
            "Use a batch of two",
          ),
        )
      : "",
    html(
      "div",
      { class: "batch-head" },
      filterInputs(filter, actions),
      chips("Stage", STAGES, choices.stage, (stage) => {
        choices.stage = stage;
        actions.redraw();
      }),
    ),
    state.x.map((_, e) => batchRow(scene, e, { before, y, pooled, gx, each })),
    choices.stage > 2 ? meanRow(each, mean) : "",
  ];
}

/** An image that is one row and one column larger than x, so that a 2 x 2 filter makes maps of x's size. */
function imageFor(plane, dims) {
  const wide = plane.map((row) => [...row, row[0]]);
  return dims === 1 ? wide : [...wide, wide[0]];
}

function batchRow(scene, e, { before, y, pooled, gx, each }) {
  const won = new Set();
  pooled.winners?.[e].forEach((taps, o) => taps.forEach((t) => won.add(pooled.windows[o].taps[t].input)));
  const mark = (i) => (won.has(i) ? { kind: "wins", letter: "▲" } : null);
  const forward = [
    miniGrid("image", before.x[e]),
    sign("∗ w →"),
    miniGrid("feature map x", y[e], { mark }),
    sign("→"),
    miniGrid("y", pooled.y[e]),
  ];
  const backward = [
    miniGrid("gradient of w", each[e], { className: "gradient" }),
    sign("←"),
    miniGrid("gradient of x", gx[e], { className: "gradient" }),
    sign("←"),
    miniGrid("upstream g", scene.cotangent[e], { className: "upstream" }),
  ];
  const name = scene.state.x.length > 1 ? html("h2", {}, `Example ${e + 1}`) : "";
  return html(
    "div",
    { class: "batch-row" },
    name,
    html("div", { class: "scroll there-and-back" }, forward, choices.stage > 1 ? backward : ""),
  );
}

function meanRow(each, mean) {
  const parts = each.flatMap((gradient, e) => [
    e ? sign("+") : sign(each.length > 1 ? "(" : ""),
    miniGrid(`example ${e + 1}`, gradient, { className: "gradient" }),
  ]);
  return html(
    "div",
    { class: "batch-row" },
    html("h2", {}, "The mean of the gradients of w"),
    html(
      "div",
      { class: "flow-row" },
      parts,
      sign(each.length > 1 ? `) / ${each.length} =` : "="),
      miniGrid("mean", mean, { className: "gradient" }),
    ),
  );
}

function filterInputs(filter, actions) {
  const fields = filter.map((row, r) =>
    row.map((weight, c) => {
      const edit = (event) =>
        actions.number(
          event.target.value,
          (value) => {
            choices.filter[r][c] = value;
          },
          event.target,
        );
      return html("input", {
        type: "text",
        inputmode: "decimal",
        value: weight,
        "aria-label": `filter weight (${r}, ${c})`,
        "data-keep": `w-${r}-${c}`,
        onchange: edit,
      });
    }),
  );
  return html(
    "div",
    { class: "filter" },
    html("span", {}, "filter w"),
    html("span", { class: "filter-grid", style: `--columns:${filter[0].length}` }, fields),
  );
}

// ---------------------------------------------------------------- code

const LIBRARIES = [
  ["numpy", "NumPy"],
  ["torch", "PyTorch"],
  ["jax", "JAX"],
];

function codePanel(scene, actions) {
  const text = code(scene.state, choices.library);
  return [
    html("p", { class: "lead" }, "The same numbers in Python: exactly this state, with poolgrad."),
    html(
      "div",
      { class: "batch-head" },
      chips("Library", LIBRARIES, choices.library, (library) => {
        choices.library = library;
        actions.redraw();
      }),
      html(
        "button",
        {
          type: "button",
          id: "copy-code",
          "data-keep": "copy",
          onclick: (event) => actions.copy(text, event.currentTarget),
        },
        "Copy the code",
      ),
    ),
    html("pre", { tabindex: 0, "aria-label": "Python code" }, html("code", { id: "code" }, text)),
  ];
}
