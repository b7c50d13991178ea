// The sentences of the page: operators, steps, and the guided tour.

export const OPERATORS = {
  max: {
    name: "max",
    formula: "y = max x",
    rule: "The winner gets all of the gradient, every other input of the window 0.",
  },
  min: {
    name: "min",
    formula: "y = min x",
    rule: "The smallest input gets all of the gradient, every other input of the window 0.",
  },
  median: {
    name: "median",
    formula: "y = median x",
    rule: "The middle input (of an even number the lower middle one) gets all of the gradient.",
  },
  avg: { name: "average", formula: "y = Σ x / n", rule: "Every input gets the same share, g / n." },
  lp: {
    name: "Lp",
    formula: "y = (Σ |x|ᵖ)^(1/p)",
    rule: "Input x gets g · sign(x) · (|x| / y)^(p − 1): large inputs get more. With the mean instead of the sum, each share is divided by n.",
  },
  log_mean_exp: {
    name: "log-sum-exp",
    formula: "y = log(mean exp(r x)) / r",
    rule: "The shares are the softmax of r x: between average (r near 0) and maximum (r large).",
  },
  soft: {
    name: "soft",
    formula: "y = Σ w x,  w = softmax(x)",
    rule: "Input x gets g · w · (1 + x − y). The share of a small input can be negative.",
  },
  mixed: {
    name: "mixed",
    formula: "y = α max x + (1 − α) mean x",
    rule: "Every input gets (1 − α) g / n, and the winner α g in addition.",
  },
  unpool: {
    name: "unpool",
    formula: "y[index] = x, 0 elsewhere",
    rule: "Each input reads the gradient at the place where its value went.",
  },
};

export const TIES = {
  first: "Of equal winners the first, row by row, gets all of it, as in PyTorch and TensorFlow.",
  split: "Equal winners share it evenly. The shares add up to one: this is a subgradient, too.",
  zero: "Where several inputs win, none of them gets any of it: no subgradient either.",
  all: "“all” is refused: with two winners the shares would add up to 2, and the result is no subgradient. Choose “split” to give each winner a part.",
};

/** A number with few decimals, as the cells show it. */
export function short(value, digits = 3) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const rounded = Number(value.toFixed(digits));
  const small = rounded === 0 && value !== 0;
  const large = Math.abs(value) >= 1e5;
  const power = () => value.toExponential(Math.min(2, digits - 1)).replace(/\.?0+e/, "e");
  const text = small || large ? power() : String(rounded === 0 ? 0 : rounded);
  return text.replaceAll("-", "−").replace("e+", "e");
}

/** A number in a sentence: one decimal more than in cells, so that 1/16 is 0.0625 and not 0.063. */
const fine = (value) => short(value, 4);

/** What is added to a sum: "+ 2" or "− 2". */
export function added(value, write = short) {
  return value < 0 ? `− ${write(-value)}` : `+ ${write(value)}`;
}

/** A number with more digits, for sentences and tables. */
export function exact(value, digits = 6) {
  if (!Number.isFinite(value)) return short(value);
  return String(Number(value.toPrecision(digits))).replaceAll("-", "−");
}

/** The position of a flat index: "(0, 1)", or "(1)" in one dimension. */
export function at(index, shape, dims) {
  const [row, column] = [Math.floor(index / shape[1]), index % shape[1]];
  return dims === 1 ? `(${column})` : `(${row},\u00a0${column})`;
}

/** "a", "a and b", "a, b and c"; long lists are cut. */
export function listed(words, limit = 9) {
  const all =
    words.length > limit ? [...words.slice(0, limit - 1), `${words.length - limit + 1} more`] : words;
  return all.length < 2 ? all.join("") : `${all.slice(0, -1).join(", ")} and ${all.at(-1)}`;
}

const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** The shape of the windows in a few characters: "2×2, stride 2". */
export function windowWords(state) {
  const of = (pair) => (state.dims === 1 ? `${pair[1]}` : `${pair[0]}×${pair[1]}`);
  if (state.windows === "global") return "global";
  if (state.windows === "adaptive") return `adaptive ${of(state.output_size)}`;
  const stride = state.stride[0] === state.stride[1] || state.dims === 1 ? state.stride[1] : of(state.stride);
  return `${of(state.kernel)}, stride ${stride}`;
}

/** Which example a sentence is about; nothing if there is only one. */
const example = (scene, e) => (scene.state.x.length > 1 ? `Example ${e + 1}: ` : "");

/** What the window of output `o` reads and computes. */
export function forwardSentence(scene, e, o) {
  const { state, result } = scene;
  const name = `y${at(o, result.out, state.dims)}`;
  const y = flat(result.y[e])[o];
  const values = read(scene, e, o);
  if (state.operator === "unpool") return example(scene, e) + unpoolForward(scene, e, o, name, y);
  if (!values.length)
    return `${example(scene, e)}The window of ${name} reads only padding. There is no input, so the result is ${exact(y)}, and the gradient of that output is dropped.`;
  const reads = `${name} reads ${listed(values.map((v) => short(v.value)))}${paddingWords(scene, o, values)}.`;
  return `${example(scene, e)}${reads} ${howComputed(scene, e, o, name, y, values)}`;
}

function unpoolForward(scene, e, o, name, y) {
  const source = read(scene, e, o)[0];
  if (!source) return `No index points to ${name}: it is 0.`;
  return `${name} takes ${short(y)} from x${source.at}, whose index is ${o}.`;
}

function paddingWords(scene, o, values) {
  const padded = scene.result.windows[o].taps.length - values.length;
  if (!padded) return "";
  const { operator, count_include_pad: counted } = scene.state;
  const rule =
    (operator === "avg" || operator === "mixed") && counted ? "counts as 0" : "is left out";
  return ` (${plural(padded, "place")} of padding, which ${rule})`;
}

const ADJECTIVE = { max: "largest", min: "smallest", median: "middle one" };

function howComputed(scene, e, o, name, y, values) {
  const { state, result } = scene;
  const winners = result.winners?.[e]?.[o];
  if (winners && ADJECTIVE[state.operator]) return selectedSentence(scene, e, o, name, y, values);
  if (values.some((v) => Number.isNaN(v.value))) return `One of them is NaN, so ${name} is NaN.`;
  if (state.operator === "avg") {
    const sum = values.reduce((total, v) => total + v.value, 0);
    return `Their sum is ${exact(sum)}; divided by ${exact(result.divisors ? result.divisors[o] : values.length)}: ${name} = ${exact(y)}.`;
  }
  return `${name} = ${exact(y)}. The derivatives of ${name} with respect to them are ${listed(values.map((v) => fine(v.weight)))}.`;
}

function selectedSentence(scene, e, o, name, y, values) {
  const word = ADJECTIVE[scene.state.operator];
  const equal = values.filter((v) => v.value === y || (Number.isNaN(y) && Number.isNaN(v.value)));
  if (Number.isNaN(y))
    return `A NaN in a window is its result: ${name} = NaN, and that input gets all of the gradient.`;
  if (equal.length < 2) return `The ${word} is ${short(y)}, at x${equal[0].at}: ${name} = ${short(y)}.`;
  const tie = {
    first: `the first, x${equal[0].at}, is remembered`,
    split: "they share the gradient",
    zero: "none of them will get any gradient",
  };
  return `The ${word} is ${short(y)}, and ${equal.length} inputs tie: ${tie[scene.state.ties]}.`;
}

/** What the cotangent of output `o` sends back, and the sums so far. */
export function backwardSentence(scene, e, o) {
  const { state, result } = scene;
  const g = fine(flat(scene.cotangent[e])[o]);
  const name = `g${at(o, result.out, state.dims)}`;
  const sent = received(scene, e, o);
  const begin = `${example(scene, e)}${name} = ${g}`;
  if (!sent.length) return `${begin} goes nowhere: ${nowhere(scene, e, o)}`;
  const same = sent.every((s) => s.term.weight === sent[0].term.weight);
  const sums = sent
    .filter((s) => s.before !== 0)
    .map((s) => `gx${s.at}: ${fine(s.before)} ${added(s.term.value, fine)} = ${fine(s.after)}`);
  const overlap = sums.length ? ` Windows overlap, so the parts are added: ${listed(sums, 4)}.` : "";
  if (sent.length === 1)
    return `${begin} goes to x${sent[0].at}${sent[0].term.weight === 1 ? " alone" : ""}: ${fine(sent[0].term.weight)} × ${g} = ${fine(sent[0].term.value)}.${overlap || losers(scene, e, o)}`;
  const shares = same
    ? `each with weight ${fine(sent[0].term.weight)}: ${fine(sent[0].term.value)} each`
    : `by their weights: ${listed(
        sent.map((s) => fine(s.term.value)),
        6,
      )}`;
  return `${begin} goes to ${sent.length} inputs, ${shares}.${overlap}`;
}

function losers(scene, e, o) {
  const rest = read(scene, e, o).length - 1;
  if (scene.state.operator === "unpool" || rest < 1) return "";
  return ` The other ${plural(rest, "input")} of the window ${rest === 1 ? "gets" : "get"} 0: a small change there leaves the output as it is.`;
}

function nowhere(scene, e, o) {
  if (scene.state.operator === "unpool") return "no index points to that output.";
  if (!read(scene, e, o).length) return "the window has no input.";
  if (scene.state.ties === "zero" && scene.result.winners) return "several inputs tie, and ties is “zero”.";
  return "all weights of the window are 0.";
}

/** Which windows read input `i`, and what each sends back. */
export function inputSentence(scene, e, i) {
  const { state, result } = scene;
  const name = at(i, result.in, state.dims);
  const readers = readersOf(scene, i);
  const terms = scene.back.terms[e][i].filter((term) => term.value !== 0);
  const value = short(flat(state.x[e])[i]);
  const begin = `${example(scene, e)}x${name} = ${value} is read by ${plural(readers.length, "window")}`;
  if (state.operator === "unpool")
    return `${example(scene, e)}x${name} = ${value} goes to one output, and gx${name} = ${short(flat(scene.back.gx[e])[i])} is read there.`;
  if (!readers.length) return `${begin}: the output does not depend on it, and its gradient is 0.`;
  if (!terms.length) return `${begin} and ${state.operator === "avg" ? "gets" : "wins none: it gets"} 0.`;
  if (scene.progress[e].backward === 0)
    return `${begin}. It decides ${listed([...new Set(terms.map((t) => `y${at(t.output, result.out, state.dims)}`))], 6)}${result.winners ? "" : ", together with the others"}.`;
  const parts = terms.map(
    (t) => `${fine(t.weight)} × ${fine(t.cotangent)} from y${at(t.output, result.out, state.dims)}`,
  );
  return `${begin}. It gets ${listed(parts, 6)}: gx${name} = ${fine(flat(scene.back.gx[e])[i])}.`;
}

export const flat = (plane) => plane.flat();

/** The inputs that the window of output `o` reads: flat index, value, weight, position in words. */
export function read(scene, e, o) {
  const { state, result } = scene;
  const x = flat(state.x[e]);
  return result.windows[o].taps
    .map((tap, t) => ({
      input: tap.input,
      value: x[tap.input],
      weight: result.weights[e][o][t],
      at: at(tap.input, result.in, state.dims),
      tap: t,
    }))
    .filter((tap) => tap.input >= 0 && (state.operator !== "unpool" || tap.weight !== 0));
}

/** The outputs whose windows read input `i`. */
export function readersOf(scene, i) {
  const outputs = [];
  scene.result.windows.forEach((window, o) => {
    if (window.taps.some((tap) => tap.input === i)) outputs.push(o);
  });
  return outputs;
}

/** What output `o` adds to the gradient of each input: the term, and the sums before and after. */
export function received(scene, e, o) {
  const found = [];
  scene.back.terms[e].forEach((terms, i) => {
    let sum = 0;
    let before = null;
    let last = null;
    for (const term of terms) {
      if (term.output > o) break;
      if (term.output === o && before === null) before = sum;
      sum += term.value;
      if (term.output === o) last = term;
    }
    if (last && last.weight !== 0)
      found.push({ input: i, term: last, before, after: sum, at: at(i, scene.result.in, scene.state.dims) });
  });
  return found;
}

/** What a step of the playback shows, in words. */
export function stepSentence(scene) {
  const { kind, example: e, output: o } = scene.step;
  if (kind === "start") return "Nothing is computed yet. Step forward, or press play.";
  return kind === "forward" ? forwardSentence(scene, e, o) : backwardSentence(scene, e, o);
}

const OVERLAP = {
  x: [
    [
      [1, 0, 2, 1, 0],
      [3, 2, 9, 1, 4],
      [0, 1, 0, 2, 1],
      [5, 0, 1, 6, 0],
      [1, 3, 0, 2, 1],
    ],
  ],
  cotangent: [
    [
      [1, 2],
      [3, 4],
    ],
  ],
  kernel: [3, 3],
  stride: [2, 2],
};
const TIED = {
  x: [
    [
      [3, 3],
      [2, 0.5],
    ],
  ],
  ties: "split",
};
const BATCH = {
  x: [
    [
      [1, 3],
      [2, 0.5],
    ],
    [
      [4, 0],
      [1, 2],
    ],
  ],
  cotangent: [[[2.5]], [[1]]],
};

/**
 * The guided tour. `change` is applied to the opening state; `position` is the number of steps that
 * are shown as done, and -1 means all of them. `light` is what is lit, `valuesOnly` without the winners.
 */
export const TOUR = [
  {
    name: "Forward",
    change: {},
    position: 1,
    light: { kind: "output", example: 0, index: 0, valuesOnly: true },
    text: "Max pooling keeps the largest number of a window: of 1, 3, 2 and 0.5 the 3 passes.",
  },
  {
    name: "Who won",
    change: {},
    position: 1,
    text: "It also remembers where the 3 stood, because that input alone decided the output.",
  },
  {
    name: "Backward",
    change: {},
    position: -1,
    text: "The gradient 2.5 goes to the winner; the losers get 0, because a small change of them changes nothing.",
  },
  {
    name: "Average",
    change: { operator: "avg" },
    position: -1,
    text: "An average depends on all four inputs alike, so each gets a quarter of 2.5.",
  },
  {
    name: "Overlap",
    change: OVERLAP,
    position: -1,
    light: { kind: "input", example: 0, index: 7 },
    text: "Where windows overlap the parts are added: the 9 won two windows and gets 1 + 2 = 3.",
  },
  {
    name: "Ties",
    change: TIED,
    position: -1,
    text: "Two equal winners can share the gradient (“split”), or the first gets all of it (“first”, as in PyTorch).",
  },
  {
    name: "Batch",
    change: BATCH,
    position: -1,
    tab: "batch",
    text: "Each example has its own winners; only gradients of weights are averaged (see below), and pooling has none.",
  },
];

export const FREE = "Everything here is free to change: the numbers, the operator, the windows.";

export const OPENING =
  "One window, [[1, 3], [2, 0.5]], and a gradient of 2.5 that comes back from the layers above.";
