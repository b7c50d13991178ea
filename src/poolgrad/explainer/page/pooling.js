// Pooling and its gradients as pure functions: the values of poolgrad.reference, in float64.
//
// A plane is an array of rows of numbers; a one-dimensional input is a plane of one row. An input is
// addressed by its flat index `row * columns + column`, an output likewise.

/** Reports a state that cannot be shown: one sentence, and the field of the state it is about. */
export class InputError extends Error {
  constructor(field, message) {
    super(message);
    this.name = "InputError";
    this.field = field;
  }
}

const MOST = { side: 16, examples: 2, window: 16, padding: 8 };
const SELECTING = ["max", "min", "median"];
const OPERATORS = [...SELECTING, "avg", "lp", "log_mean_exp", "soft", "mixed", "unpool"];

/** The state on which the page opens: one window, and where its gradient goes. */
export function defaults() {
  return {
    operator: "max",
    windows: "fixed",
    dims: 2,
    x: [[[1, 3], [2, 0.5]]],
    cotangent: [[[2.5]]],
    kernel: [2, 2],
    stride: [2, 2],
    padding: [[0, 0], [0, 0]],
    dilation: [1, 1],
    ceil_mode: false,
    output_size: null,
    ties: "first",
    count_include_pad: true,
    divisor_override: null,
    norm_type: 2,
    mean: false,
    r: 1,
    alpha: 0.5,
    indices: null,
  };
}

// ---------------------------------------------------------------- the formulas, one window each
//
// `values` are the inputs of a window without padding, row by row. Each formula returns the output
// `y`, the derivatives `dx` of y by each value, and for a selecting operator the positions of the
// `winners`.

const sum = (values) => values.reduce((total, value) => total + value, 0);
// NaN if there is a NaN, unlike a comparison.
const largest = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
const smallest = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const ascending = (values) => [...values].sort((a, b) => a - b);

// y = the chosen value; dy/dx = 1 for the winner, or equal shares that add up to 1.
function select(values, y, ties) {
  const share = (winners, weight) => ({
    y: winners.length ? values[winners[0]] : y,
    dx: values.map((_, n) => (winners.includes(n) ? weight : 0)),
    winners,
  });
  const nan = values.findLastIndex(Number.isNaN);
  if (nan >= 0) return share([nan], 1);
  const equal = [...values.keys()].filter((n) => values[n] === y);
  if (ties === "first") return share(equal.slice(0, 1), 1);
  return share(equal, ties === "split" || equal.length === 1 ? 1 / equal.length : 0);
}

// y = max x
const max = (values, { ties }) => select(values, largest(values), ties);

// y = min x
const min = (values, { ties }) => select(values, smallest(values), ties);

// y = the value in the middle of the sorted values, the lower one of two
const median = (values, { ties }) =>
  select(values, ascending(values)[Math.floor((values.length - 1) / 2)], ties);

// y = sum x / n; dy/dx = 1 / n
const average = (values, n) => ({ y: sum(values) / n, dx: values.map(() => 1 / n) });
const avg = (values, state, window) => average(values, divisor(state, window, values.length));

// n = the number of inputs, with count_include_pad also of padding, or divisor_override
function divisor(state, window, inputs) {
  if (state.operator === "avg" && state.windows === "fixed" && state.divisor_override !== null) {
    return state.divisor_override;
  }
  return state.count_include_pad ? window.extent : inputs;
}

// y = (sum |x|^p / n)^(1/p); dy/dx = sign(x) (|x| / y)^(p-1) / n; n = 1 unless `mean`
function lp(values, { norm_type: p, mean }) {
  const sizes = values.map(Math.abs);
  const top = largest(sizes);
  const nothing = { y: 0, dx: values.map(() => 0) };
  if (sizes.every((size) => size === 0)) return nothing;
  if (p === Infinity) {
    // the limit: y = max |x|, shared by all inputs of that size
    const signs = values.map((x, n) => Math.sign(x) * (sizes[n] === top ? 1 : 0));
    const count = sum(signs.map(Math.abs));
    return { y: top, dx: signs.map((sign) => sign / count) };
  }
  const scale = Number.isFinite(top) ? top : 1; // so that no power overflows
  const n = mean ? values.length : 1;
  const y = scale * (sum(sizes.map((size) => (size / scale) ** p)) / n) ** (1 / p);
  if (y === 0) return nothing;
  const dx = values.map((x, k) => (x === 0 ? 0 : (Math.sign(x) * (sizes[k] / y) ** (p - 1)) / n));
  return { y, dx };
}

// softmax(x) = exp(x) / sum exp(x)
function softmax(values) {
  const top = largest(values);
  const powers = values.map((x) => Math.exp(x - top)); // so that no power overflows
  const total = sum(powers);
  return powers.map((power) => power / total);
}

// y = log(mean(exp(r x))) / r; dy/dx = softmax(r x)
function log_mean_exp(values, { r }) {
  const top = r > 0 ? largest(values) : smallest(values);
  const dx = softmax(values.map((x) => r * x));
  if (Math.abs(top) === Infinity) return { y: top, dx };
  const mean = sum(values.map((x) => Math.expm1(r * (x - top)))) / values.length;
  return { y: top + Math.log1p(mean) / r, dx };
}

// y = sum w x with w = softmax(x); dy/dx = w (1 + x - y)
function soft(values) {
  const weights = softmax(values);
  const top = Number.isFinite(largest(values)) ? largest(values) : 0;
  const below = sum(values.map((x, n) => (weights[n] === 0 ? 0 : weights[n] * (x - top))));
  const dx = values.map((x, n) => (weights[n] === 0 ? 0 : weights[n] * (1 + (x - top - below))));
  return { y: top + below, dx };
}

// y = alpha max x + (1 - alpha) mean x; the first winner gets the maximum's part
function mixed(values, state, window) {
  const { alpha } = state;
  const top = max(values, { ties: "first" });
  const mean = average(values, divisor(state, window, values.length));
  const y = (alpha === 0 ? 0 : alpha * top.y) + (alpha === 1 ? 0 : (1 - alpha) * mean.y);
  return { y, dx: values.map((_, n) => alpha * top.dx[n] + (1 - alpha) * mean.dx[n]) };
}

// y = the last x whose index is this output, else 0; dy/dx = 1 for that x
function unpool(values, { indices }, window, example) {
  const flat = indices[example].flat();
  const last = window.taps.findLastIndex((tap) => flat[tap.input] === window.output);
  return { y: last < 0 ? 0 : values[last], dx: values.map((_, n) => (n === last ? 1 : 0)) };
}

const FORMULAS = { max, min, median, avg, lp, log_mean_exp, soft, mixed, unpool };

// ---------------------------------------------------------------- windows

// Output size along one axis: floor((L + lo + hi - d (k - 1) - 1) / s) + 1; ceil with ceil_mode, but
// the last window starts inside the input or its low padding.
function outputs({ size, kernel, stride, lo, hi, dilation, ceil_mode }) {
  const span = size + lo + hi - dilation * (kernel - 1) - 1;
  if (!ceil_mode) return Math.floor(span / stride) + 1;
  return Math.min(Math.ceil(span / stride), Math.floor((size + lo - 1) / stride)) + 1;
}

// The settings of the windows along the height (0) or the width (1).
function axisOf(state, axis) {
  const size = axis === 0 ? state.x[0].length : state.x[0][0].length;
  const whole = { size, kernel: 1, stride: 1, lo: 0, hi: 0, dilation: 1, ceil_mode: false };
  if (axis === 0 && state.dims === 1) return whole; // one row
  const [lo, hi] = state.padding[axis];
  const [kernel, stride] = [state.kernel[axis], state.stride[axis]];
  return { ...whole, kernel, stride, lo, hi, dilation: state.dilation[axis], ceil_mode: state.ceil_mode };
}

// Windows along one axis: for each output `at`, the coordinates it reads, also in padding; and
// `extent`, how many of them lie inside the padded input.
function windowsAlong(state, axis) {
  const settings = axisOf(state, axis);
  const { size, kernel, stride, lo, hi, dilation } = settings;
  const range = (from, to) => Array.from({ length: to - from }, (_, n) => from + n);
  if (state.windows !== "fixed") {
    // bin o of m: the inputs from floor(o L / m) to ceil((o + 1) L / m)
    const bins = state.windows === "global" ? 1 : outputSize(state, axis, size);
    return range(0, bins).map((o) => {
      const at = range(Math.floor((o * size) / bins), Math.ceil(((o + 1) * size) / bins));
      return { at, extent: at.length };
    });
  }
  return range(0, outputs(settings)).map((o) => {
    const at = range(0, kernel).map((k) => o * stride - lo + k * dilation);
    return { at, extent: at.filter((i) => i < size + hi).length };
  });
}

const outputSize = (state, axis, otherwise) =>
  axis === 0 && state.dims === 1 ? 1 : (state.output_size?.[axis] ?? otherwise);

// The plane that unpooling fills: (L - 1) s - 2 p + k, or output_size.
function unpooledSize(state) {
  return [0, 1].map((axis) => {
    const { size, kernel, stride, lo } = axisOf(state, axis);
    return outputSize(state, axis, (size - 1) * stride - 2 * lo + kernel);
  });
}

// All windows of the state, row by row: their taps, and how many lie inside the padded input.
function windowsOf(state) {
  if (state.operator === "unpool") return unpoolWindows(state);
  const [height, width] = [state.x[0].length, state.x[0][0].length];
  const [rows, columns] = [windowsAlong(state, 0), windowsAlong(state, 1)];
  const windows = rows.flatMap((vertical, row) =>
    columns.map((horizontal, column) => ({
      output: row * columns.length + column,
      row,
      column,
      extent: vertical.extent * horizontal.extent,
      taps: vertical.at.flatMap((r) =>
        horizontal.at.map((c) => {
          const inside = r >= 0 && r < height && c >= 0 && c < width;
          return { input: inside ? r * width + c : -1, row: r, column: c };
        }),
      ),
    })),
  );
  return { out: [rows.length, columns.length], windows };
}

// An output of an unpooling reads the inputs whose index it is, in any of the examples.
function unpoolWindows(state) {
  const out = unpooledSize(state);
  const width = state.x[0][0].length;
  const flat = state.indices.map((plane) => plane.flat());
  const inputs = [...flat[0].keys()];
  const windows = Array.from({ length: out[0] * out[1] }, (_, output) => ({
    output,
    row: Math.floor(output / out[1]),
    column: output % out[1],
    extent: 1,
    taps: inputs
      .filter((input) => flat.some((indices) => indices[input] === output))
      .map((input) => ({ input, row: Math.floor(input / width), column: input % width })),
  }));
  return { out, windows };
}

// ---------------------------------------------------------------- forward, backward, checks

const rowsOf = (flat, columns) =>
  Array.from({ length: flat.length / columns }, (_, row) =>
    flat.slice(row * columns, (row + 1) * columns),
  );

const valid = (window) => [...window.taps.keys()].filter((n) => window.taps[n].input >= 0);

// The formula's result for one window of one example, with one entry per tap.
function evaluate(state, window, example, x) {
  const inputs = valid(window);
  const values = inputs.map((n) => x[window.taps[n].input]);
  const { y, dx, winners } = FORMULAS[state.operator](values, state, window, example);
  const weights = window.taps.map(() => 0);
  inputs.forEach((tap, n) => { weights[tap] = dx[n]; });
  return { y, weights, winners: winners?.map((n) => inputs[n]) };
}

/** The forward pass: outputs, windows, the derivative of each output by each tap, and winners. */
export function pool(state) {
  state = check(state);
  const { out, windows } = windowsOf(state);
  const evaluated = state.x.map((plane, example) => {
    const x = plane.flat();
    return windows.map((window) => evaluate(state, window, example, x));
  });
  return {
    in: [state.x[0].length, state.x[0][0].length],
    out,
    y: evaluated.map((windows) => rowsOf(windows.map(({ y }) => y), out[1])),
    windows: windows.map(({ row, column, taps }) => ({ row, column, taps })),
    weights: evaluated.map((windows) => windows.map(({ weights }) => weights)),
    winners: SELECTING.includes(state.operator)
      ? evaluated.map((windows) => windows.map(({ winners }) => winners))
      : null,
    divisors: state.operator === "avg"
      ? windows.map((window) => divisor(state, window, valid(window).length))
      : null,
  };
}

const ones = (state, [rows, columns]) =>
  state.x.map(() => Array.from({ length: rows }, () => Array(columns).fill(1)));

/** The backward pass: gx = J^T g, with each term of the sum; a weight of 0 adds no term. */
export function pullback(state, result, cotangent = state.cotangent ?? ones(state, result.out)) {
  checkPlanes("cotangent", cotangent, state.x.length, result.out);
  const terms = state.x.map(() => Array.from({ length: result.in[0] * result.in[1] }, () => []));
  cotangent.forEach((plane, example) => {
    plane.flat().forEach((g, output) => {
      result.windows[output].taps.forEach(({ input }, tap) => {
        const weight = result.weights[example][output][tap];
        if (weight === 0) return; // 0 * infinity is no gradient
        terms[example][input].push({ output, weight, cotangent: g, value: weight * g });
      });
    });
  });
  const total = (added) => sum(added.map(({ value }) => value));
  return { gx: terms.map((each) => rowsOf(each.map(total), result.in[1])), terms };
}

/** The Jacobian of one example: dy_i / dx_j in row i, column j. */
export function jacobian(result, example) {
  return result.windows.map(({ taps }, output) => {
    const row = Array(result.in[0] * result.in[1]).fill(0);
    taps.forEach(({ input }, tap) => {
      if (input >= 0) row[input] = result.weights[example][output][tap];
    });
    return row;
  });
}

/** Central differences: dL/dx_j = (L(x_j + h) - L(x_j - h)) / 2h with L = sum(cotangent * y). */
export function differences(state, step = 1e-4) {
  state = check(state);
  const { out, windows } = windowsOf(state);
  const cotangent = state.cotangent ?? ones(state, out);
  const kinks = [];
  const gx = state.x.map((plane, example) => {
    const [x, g] = [plane.flat(), cotangent[example].flat()];
    const slopes = x.map(() => 0);
    const near = new Set();
    for (const window of windows) {
      const inputs = valid(window).map((tap) => window.taps[tap].input);
      const { y } = evaluate(state, window, example, x);
      for (const input of inputs) {
        const moved = (by) => evaluate(state, window, example, x.with(input, x[input] + by)).y;
        slopes[input] += (g[window.output] * (moved(step) - moved(-step))) / (2 * step);
        const others = inputs.filter((other) => other !== input).map((other) => x[other]);
        if (isKink(state, x[input], others, y, step)) near.add(input);
      }
    }
    kinks.push(...[...near].sort((a, b) => a - b).map((input) => [example, input]));
    return rowsOf(slopes, plane[0].length);
  });
  return { gx, kinks };
}

// Whether a step of this input crosses a point where the output has no derivative: a tie for the
// output, or the corner of |x| at zero.
function isKink(state, x, others, y, step) {
  const within = (a, b) => Math.abs(a - b) <= step;
  const tied = (value, rest, best) => within(value, best) && rest.some((other) => within(value, other));
  if (SELECTING.includes(state.operator)) return tied(x, others, y);
  if (state.operator === "mixed") return tied(x, others, largest([x, ...others]));
  if (state.operator !== "lp") return false;
  const sizes = others.map(Math.abs);
  if (state.norm_type === Infinity) return within(x, 0) || tied(Math.abs(x), sizes, y);
  return within(x, 0) && (state.norm_type < 2 || sizes.every((size) => within(size, 0)));
}

/** The state with x moved by some rows and columns; values at the edge are repeated. */
export function shifted(state, rows, columns) {
  const at = (n, size) => Math.min(Math.max(n, 0), size - 1);
  const x = state.x.map((plane) =>
    plane.map((values, row) =>
      values.map((_, column) => plane[at(row - rows, plane.length)][at(column - columns, values.length)]),
    ),
  );
  return { ...state, x };
}

/** A convolution before the pooling: z[r][c] = sum w[a][b] x[r + a][c + b], where w fits into x. */
export function convolution(state, weights) {
  state = check(state);
  checkFilter(state, weights);
  const [height, width] = [weights.length, weights[0].length];
  const y = state.x.map((plane) =>
    plane.slice(height - 1).map((_, r) =>
      plane[0].slice(width - 1).map((_, c) =>
        sum(weights.flatMap((row, a) => row.map((w, b) => w * plane[r + a][c + b]))),
      ),
    ),
  );
  const after = check({ ...state, x: y, cotangent: null });
  const [rows, columns] = windowsOf(after).out;
  const fits = state.cotangent?.every((p) => p.length === rows && p[0].length === columns);
  return { y, state: fits ? { ...after, cotangent: state.cotangent } : after };
}

/** dL/dw[a][b] = sum dL/dz[r][c] x[r + a][c + b] for each example, then their mean. */
export function convolutionGradients(state, weights) {
  state = check(state);
  const { state: after } = convolution(state, weights);
  const { gx } = pullback(after, pool(after));
  const each = state.x.map((plane, example) =>
    weights.map((row, a) =>
      row.map((_, b) => sum(gx[example].flatMap((g, r) => g.map((v, c) => v * plane[r + a][c + b])))),
    ),
  );
  const mean = weights.map((row, a) =>
    row.map((_, b) => sum(each.map((gradient) => gradient[a][b])) / each.length),
  );
  return { each, mean };
}

// ---------------------------------------------------------------- checks of a state

function show(value) {
  const text = JSON.stringify(value, (_, v) => (typeof v === "number" && !Number.isFinite(v) ? String(v) : v));
  return text === undefined || text.length <= 60 ? String(text) : `${text.slice(0, 57)}...`;
}

function refuse(field, accepted, value) {
  throw new InputError(field, `${field} must be ${accepted}, got ${show(value)}`);
}

const isInteger = (value, low, high) => Number.isInteger(value) && value >= low && value <= high;
const isPair = (value, test) => Array.isArray(value) && value.length === 2 && value.every(test);

function checkOneOf(state, field, allowed) {
  if (!allowed.includes(state[field])) {
    refuse(field, `one of ${allowed.map((name) => JSON.stringify(name)).join(", ")}`, state[field]);
  }
}

function checkPairs(state, field, low, high) {
  if (!isPair(state[field], (value) => isInteger(value, low, high))) {
    refuse(field, `two integers from ${low} to ${high}`, state[field]);
  }
}

function checkNumber(state, field, accepted, test) {
  if (typeof state[field] !== "number" || !test(state[field])) refuse(field, accepted, state[field]);
}

// Planes of numbers: `examples` of them, of `size` if it is given.
function checkPlanes(field, planes, examples, size) {
  const isPlane = (plane) => Array.isArray(plane) && plane.length > 0 && plane.every(Array.isArray);
  if (!Array.isArray(planes) || planes.length === 0 || !planes.every(isPlane)) {
    refuse(field, "an array of planes, which are arrays of rows of numbers", planes);
  }
  if (examples && planes.length !== examples) {
    refuse(field, `${examples === 1 ? "one plane" : `${examples} planes`}, one for each example`, planes);
  }
  const [rows, columns] = size ?? [planes[0].length, planes[0][0].length];
  for (const row of planes.flat()) {
    const wrong = row.find((value) => typeof value !== "number");
    if (wrong !== undefined || row.includes(undefined)) refuse(field, "made of numbers", wrong);
  }
  for (const plane of planes) {
    const widths = plane.map((row) => row.length);
    if (plane.length !== rows || widths.some((width) => width !== columns || width === 0)) {
      const came = new Set(widths).size > 1 ? `rows of ${widths.join(", ")}` : `${plane.length} x ${widths[0]}`;
      const accepted = size ? `${rows} rows of ${columns} numbers` : "planes of one size, of rows of equal lengths";
      throw new InputError(field, `${field} must have ${accepted}, got ${came}`);
    }
  }
}

function checkInput(state) {
  checkPlanes("x", state.x);
  const [rows, columns] = [state.x[0].length, state.x[0][0].length];
  if (state.x.length > MOST.examples) {
    throw new InputError("x", `x must have at most ${MOST.examples} examples, got ${state.x.length}`);
  }
  if (state.dims === 1 && rows !== 1) {
    throw new InputError("x", `x must have one row with dims 1, got ${rows}`);
  }
  if (rows > MOST.side || columns > MOST.side) {
    throw new InputError(
      "x",
      `x must be at most ${MOST.side} x ${MOST.side}, got ${rows} x ${columns}; crop it first`,
    );
  }
}

function checkWindows(state) {
  checkPairs(state, "kernel", 1, MOST.window);
  checkPairs(state, "stride", 1, MOST.window);
  checkPairs(state, "dilation", 1, MOST.window);
  const isEnds = (ends) => isPair(ends, (value) => isInteger(value, 0, MOST.padding));
  if (!isPair(state.padding, isEnds)) {
    refuse("padding", `two pairs of integers from 0 to ${MOST.padding}`, state.padding);
  }
  if (state.output_size !== null) checkPairs(state, "output_size", 1, MOST.side);
  if (state.windows === "adaptive" && !["max", "avg"].includes(state.operator)) {
    refuse("windows", `"fixed" or "global" with the operator ${show(state.operator)}`, state.windows);
  }
  if (state.operator === "unpool") checkUnpooling(state);
  else if (state.windows === "fixed") [0, 1].forEach((axis) => checkAxis(state, axis));
}

const axisName = (state, axis) => (state.dims === 1 ? "length" : ["height", "width"][axis]);

function checkAxis(state, axis) {
  const settings = axisOf(state, axis);
  const { size, kernel, dilation, lo, hi } = settings;
  const name = axisName(state, axis);
  if (outputs(settings) < 1) {
    const spans = dilation > 1 ? ` with dilation ${dilation} spans ${(kernel - 1) * dilation + 1} inputs and` : "";
    const padded = lo || hi ? ` and padding (${lo}, ${hi})` : "";
    throw new InputError(
      "kernel",
      `kernel ${kernel}${spans} is larger than x, which has size ${size} along the ${name}${padded}`,
    );
  }
  const { operator } = state;
  const everywhere = operator === "max" || operator === "min" || (operator === "lp" && !state.mean)
    || (operator === "avg" && (state.count_include_pad || state.divisor_override !== null));
  const empty = windowsAlong(state, axis).findIndex(({ at }) => !at.some((i) => i >= 0 && i < size));
  if (!everywhere && empty >= 0) {
    throw new InputError(
      "padding",
      `padding leaves window ${empty} along the ${name} without any input: there is nothing to pool there`,
    );
  }
}

function checkUnpooling(state) {
  if (state.windows !== "fixed") refuse("windows", '"fixed" with the operator "unpool"', state.windows);
  if (state.padding.some(([lo, hi]) => lo !== hi)) {
    refuse("padding", 'the same on both sides with the operator "unpool"', state.padding);
  }
  const out = unpooledSize(state);
  const expected = unpooledSize({ ...state, output_size: null });
  [0, 1].forEach((axis) => {
    const stride = axisOf(state, axis).stride;
    const [low, high] = [Math.max(expected[axis] - stride + 1, 1), expected[axis] + stride - 1];
    if (state.output_size !== null && !isInteger(out[axis], low, high)) {
      refuse("output_size", `from ${low} to ${high} along the ${axisName(state, axis)}`, state.output_size);
    }
    if (out[axis] < 1 || out[axis] > MOST.side) {
      throw new InputError(
        "kernel",
        `kernel, stride and padding must make an output of 1 to ${MOST.side} along the`
          + ` ${axisName(state, axis)}, got ${out[axis]}`,
      );
    }
  });
}

// Indices of an unpooling; without any, each value goes to the first place of its window.
function withIndices(state) {
  const out = unpooledSize(state);
  const size = [state.x[0].length, state.x[0][0].length];
  if (state.indices === null) {
    const place = (n, axis) => {
      const { stride, lo } = axisOf(state, axis);
      return Math.min(Math.max(n * stride - lo, 0), out[axis] - 1);
    };
    const plane = state.x[0].map((row, r) => row.map((_, c) => place(r, 0) * out[1] + place(c, 1)));
    return { ...state, indices: state.x.map(() => plane) };
  }
  checkPlanes("indices", state.indices, state.x.length, size);
  const most = out[0] * out[1] - 1;
  const wrong = state.indices.flat(2).find((index) => !isInteger(index, 0, most));
  if (wrong !== undefined) refuse("indices", `integers from 0 to ${most}`, wrong);
  return state;
}

function checkFilter(state, weights) {
  if (state.operator === "unpool") {
    refuse("operator", "a pooling to follow a convolution", state.operator);
  }
  checkPlanes("weights", [weights]);
  const [rows, columns] = [state.x[0].length, state.x[0][0].length];
  if (weights.length > rows || weights[0].length > columns) {
    throw new InputError(
      "weights",
      `weights must fit into x, ${rows} x ${columns}, got ${weights.length} x ${weights[0].length}`,
    );
  }
}

// JSON has no NaN, no infinities and no -0; planes and numbers may have these words for them.
const WORDS = { nan: NaN, inf: Infinity, "-inf": -Infinity, "-0": -0 };
const MAY_HAVE_WORDS = ["x", "cotangent", "norm_type", "r", "alpha"];
const revived = (value) =>
  Array.isArray(value) ? value.map(revived) : Object.hasOwn(WORDS, value) ? WORDS[value] : value;

/** The state with defaults for what it leaves out; InputError if it cannot be pooled. */
export function check(given) {
  if (given === null || typeof given !== "object" || Array.isArray(given)) {
    refuse("state", "an object", given);
  }
  const unknown = Object.keys(given).find((field) => !Object.hasOwn(defaults(), field));
  if (unknown !== undefined) throw new InputError(unknown, `a state has no field ${show(unknown)}`);
  const present = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
  let state = { ...defaults(), ...present };
  for (const field of MAY_HAVE_WORDS) state[field] = revived(state[field]);
  if (!("stride" in present)) state.stride = state.kernel;
  if ("x" in present && !("cotangent" in present)) state.cotangent = null;
  checkOneOf(state, "operator", OPERATORS);
  checkOneOf(state, "windows", ["fixed", "adaptive", "global"]);
  checkOneOf(state, "dims", [1, 2]);
  for (const field of ["ceil_mode", "count_include_pad", "mean"]) checkOneOf(state, field, [true, false]);
  if (state.ties === "all") {
    throw new InputError(
      "ties",
      'ties "all" would give every winner the full gradient, which is not a subgradient of the maximum'
        + ' (the shares must add up to one); use "first", "split" or "zero"',
    );
  }
  checkOneOf(state, "ties", ["first", "split", "zero"]);
  checkNumber(state, "norm_type", "a number above 0", (p) => p > 0);
  checkNumber(state, "r", "a finite number other than 0", (r) => Number.isFinite(r) && r !== 0);
  checkNumber(state, "alpha", "a finite number", Number.isFinite);
  if (state.divisor_override !== null) {
    checkNumber(state, "divisor_override", "null or an integer other than 0", (n) => Number.isSafeInteger(n) && n !== 0);
  }
  checkInput(state);
  checkWindows(state);
  if (state.operator === "unpool") state = withIndices(state);
  if (state.cotangent !== null) checkPlanes("cotangent", state.cotangent, state.x.length, windowsOf(state).out);
  return state;
}

// ---------------------------------------------------------------- code

// A number as a Python literal; `library`: the module that has `nan` and `inf`.
function literal(value, library) {
  if (Number.isNaN(value)) return `${library}.nan`;
  if (!Number.isFinite(value)) return `${value < 0 ? "-" : ""}${library}.inf`;
  if (Object.is(value, -0)) return "-0.0";
  return /[.e]/.test(String(value)) ? String(value) : `${value}.0`;
}

// Planes as nested lists of shape (N, 1, H, W), or (N, 1, L) with one axis.
function lists(state, planes, write) {
  const rows = (plane) => plane.map((row) => `[${row.map(write).join(", ")}]`);
  const one = (plane) => (state.dims === 1 ? rows(plane)[0] : `[${rows(plane).join(",\n    ")}]`);
  return `[${planes.map((plane) => `[${one(plane)}]`).join(",\n   ")}]`;
}

// One number for both axes, or a tuple.
function perAxis(state, [height, width]) {
  return state.dims === 1 || height === width ? String(width) : `(${height}, ${width})`;
}

function paddingCode(state) {
  const ends = state.dims === 1 ? [state.padding[1]] : state.padding;
  const [first] = ends.flat();
  if (ends.flat().every((value) => value === first)) return String(first);
  if (ends.every(([lo, hi]) => lo === hi)) return perAxis(state, ends.map(([lo]) => lo));
  const pairs = ends.map(([lo, hi]) => `(${lo}, ${hi})`);
  return state.dims === 1 ? `(${pairs[0]},)` : `(${pairs.join(", ")})`;
}

// The arguments that differ from the function's own defaults.
function argumentsOf(state, library) {
  const { operator, windows } = state;
  const size = [state.x[0].length, state.x[0][0].length];
  const named = (name, value, ordinary) => (value === ordinary ? [] : [`${name}=${value}`]);
  const flag = (name, ordinary) => named(name, state[name] ? "True" : "False", ordinary ? "True" : "False");
  const number = (name, ordinary) =>
    state[name] === ordinary ? [] : [`${name}=${literal(state[name], library)}`];
  const own = {
    max: named("ties", `"${state.ties}"`, '"first"'),
    min: named("ties", `"${state.ties}"`, '"first"'),
    median: named("ties", `"${state.ties}"`, '"first"'),
    avg: windows === "fixed"
      ? [...flag("count_include_pad", true), ...named("divisor_override", String(state.divisor_override), "null")]
      : [],
    lp: [`norm_type=${literal(state.norm_type, library)}`, ...flag("mean", false)],
    log_mean_exp: number("r", 1),
    soft: [],
    mixed: [...flag("count_include_pad", true), ...number("alpha", 0.5)],
    unpool: [],
  }[operator];
  if (windows === "global" && GLOBAL.includes(operator)) return ["keepdims=True", ...own];
  if (windows === "global") return [`kernel_size=${perAxis(state, size)}`, ...own];
  if (windows === "adaptive") return [`output_size=${perAxis(state, state.output_size ?? size)}`, ...own];
  const kernel = perAxis(state, state.kernel);
  const common = [
    `kernel_size=${kernel}`,
    ...named("stride", perAxis(state, state.stride), kernel),
    ...named("padding", paddingCode(state), "0"),
  ];
  if (operator === "unpool") {
    return ["indices=indices", ...common, ...(state.output_size ? [`output_size=${perAxis(state, state.output_size)}`] : [])];
  }
  return [...common, ...named("dilation", perAxis(state, state.dilation), "1"), ...flag("ceil_mode", false), ...own];
}

const GLOBAL = ["max", "avg", "lp", "log_mean_exp"]; // the others pool one window of the size of x

function functionOf({ operator, windows, dims }) {
  if (operator === "unpool") return `max_unpool${dims}d`;
  if (windows === "global" && GLOBAL.includes(operator)) return `global_${operator}_pool`;
  return `${windows === "adaptive" ? "adaptive_" : ""}${operator}_pool${dims}d`;
}

/** Python that computes the same outputs `y` and gradient `gx`, for "numpy", "torch" or "jax". */
export function code(state, library) {
  state = check(state);
  const name = { numpy: "np", torch: "torch", jax: "jnp" }[library];
  if (!name) refuse("library", '"numpy", "torch" or "jax"', library);
  const planes = (values) => lists(state, values, (value) => literal(value, name));
  const integers = () => lists(state, state.indices, String);
  const cotangent = state.cotangent ?? ones(state, windowsOf(state).out);
  const pooling = `poolgrad.${functionOf(state)}`;
  const given = argumentsOf(state, name).join(", ");
  const unpooling = state.operator === "unpool";
  if (library === "torch") {
    return [
      "import torch",
      "",
      "import poolgrad",
      "",
      `x = torch.tensor(\n  ${planes(state.x)},\n  dtype=torch.float64, requires_grad=True,\n)`,
      ...(unpooling ? [`indices = torch.tensor(\n  ${integers()}\n)`] : []),
      `y = ${pooling}(x, ${given})`,
      `gy = torch.tensor(\n  ${planes(cotangent)},\n  dtype=torch.float64,\n)`,
      "(gx,) = torch.autograd.grad(y, x, gy)",
      "print(y, gx, sep=\"\\n\")",
      "",
    ].join("\n");
  }
  const jax = library === "jax";
  const array = jax ? "jnp.array" : "np.array";
  return [
    ...(jax ? ["import jax", "import jax.numpy as jnp"] : ["import numpy as np"]),
    "",
    "import poolgrad",
    "",
    ...(jax ? ['jax.config.update("jax_enable_x64", True)'] : []),
    `x = ${array}(\n  ${planes(state.x)}\n)`,
    ...(unpooling ? [`indices = ${array}(\n  ${integers()}\n)`] : []),
    jax
      ? `y, pullback = jax.vjp(lambda x: ${pooling}(x, ${given}), x)`
      : `y, pullback = poolgrad.vjp(${pooling}, x, ${given})`,
    `gy = ${array}(\n  ${planes(cotangent)}\n)`,
    jax ? "(gx,) = pullback(gy)" : "gx = pullback(gy)",
    "print(y, gx, sep=\"\\n\")",
    "",
  ].join("\n");
}

// ---------------------------------------------------------------- the URL's fragment

const wordOf = (value) => Object.keys(WORDS).find((word) => Object.is(WORDS[word], value));

/** The state as JSON, with words for numbers that JSON lacks; defaults are left out. */
export function written(state) {
  const always = ["x", "cotangent", "kernel", "stride"];
  const ordinary = defaults();
  const differs = ([field, value]) =>
    always.includes(field) || JSON.stringify(value) !== JSON.stringify(ordinary[field]);
  const kept = Object.fromEntries(Object.entries(state).filter(differs));
  return JSON.stringify(kept, (_, value) => (typeof value === "number" ? (wordOf(value) ?? value) : value));
}

/** The state as a URL fragment: its JSON in base64 with the letters of URLs. */
export function encode(state) {
  return btoa(written(state)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The state of a URL fragment, with or without its "#"; InputError if it holds none. */
export function decode(fragment) {
  const text = String(fragment).replace(/^#/, "");
  let state;
  try {
    state = JSON.parse(atob(text.replaceAll("-", "+").replaceAll("_", "/")));
  } catch {
    refuse("fragment", "one that this page wrote", text);
  }
  return check(state);
}

// ---------------------------------------------------------------- examples to begin with

/** States that set the stage, by name. */
export const presets = {
  "lecture 4x4": check({
    x: [[[1, 1, 2, 4], [5, 6, 7, 8], [3, 2, 1, 0], [1, 2, 3, 4]]],
    cotangent: [[[1, 2], [3, 4]]],
  }),
  "AlexNet 3x3 stride 2": check({
    x: [[
      [2, 0, 1, 4, 3, 1, 0],
      [1, 5, 2, 0, 6, 2, 1],
      [0, 3, 9, 1, 8, 0, 2],
      [4, 1, 2, 3, 0, 5, 1],
      [2, 6, 0, 7, 1, 3, 4],
      [1, 0, 4, 2, 5, 2, 0],
      [3, 2, 1, 0, 2, 1, 6],
    ]],
    cotangent: [[[1, 2, 3], [4, 5, 6], [7, 8, 9]]],
    kernel: [3, 3],
    stride: [2, 2],
  }),
  "all equal": check({
    x: [[[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]],
    cotangent: [[[1, 2], [3, 4]]],
  }),
  NaN: check({
    x: [[[1, 2, 0, 3], [4, NaN, 1, 5], [2, 0, 6, 1], [7, 3, 2, 4]]],
    cotangent: [[[1, 2], [3, 4]]],
  }),
  padding: check({
    x: [[[-3, -1, -2], [-4, -5, -1], [-2, -6, -3]]],
    cotangent: [[[1, 2], [3, 4]]],
    padding: [[1, 1], [1, 1]],
    kernel: [3, 3],
    stride: [2, 2],
  }),
  global: check({
    operator: "avg",
    windows: "global",
    x: [[[1, 3, 2, 0], [4, 8, 6, 1], [2, 5, 7, 3], [0, 1, 2, 3]]],
    cotangent: [[[16]]],
  }),
};
