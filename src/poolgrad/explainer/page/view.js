// The page: holds the state, answers to controls, pointer and keys, and keeps all parts up to date.

import { byId, html, set } from "./dom.js";
import { choices, drawPanel } from "./panels.js";
import {
  check,
  decode,
  defaults,
  encode,
  InputError,
  pool,
  presets,
  pullback,
  written,
} from "./pooling.js";
import { focusCell, Stage } from "./stage.js";
import {
  backwardSentence,
  forwardSentence,
  FREE,
  inputSentence,
  OPENING,
  OPERATORS,
  short,
  stepSentence,
  TIES,
  TOUR,
} from "./words.js";

const PLAY_TIME = 20000; // milliseconds for a whole playback, where it has many steps
const STEP_TIME = { least: 60, most: 1300 };
const MOST_UNDO = 200;
const LIT_PANELS = ["matrix", "check"]; // those that show what is pointed at

const page = {
  state: defaults(), // what is shared and undone
  position: 0, // how many steps are done
  pointed: null, // what the pointer or the focus is on
  kept: null, // what the tour lights
  tab: "matrix",
  tour: null,
  playing: 0,
  frame: 0,
  past: [],
  future: [],
  scene: null,
};

// ---------------------------------------------------------------- states

/** Shows another state, or the sentence that says why it cannot be; the old one stays then. */
function propose(change, { remember = true, keepTour = false } = {}) {
  let next;
  try {
    next = fitted({ ...page.state, ...change });
  } catch (error) {
    complain(error);
    showControls();
    return false;
  }
  if (remember) {
    page.past = [...page.past.slice(-MOST_UNDO), page.state];
    page.future = [];
  }
  adopt(next, keepTour);
  return true;
}

function adopt(state, keepTour = false) {
  const whole = page.scene === null || page.position === total();
  page.state = state;
  page.scene = compute(state);
  page.position = whole ? total() : Math.min(page.position, total());
  if (!keepTour) leaveTour();
  byId("complaint").hidden = true;
  for (const field of document.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
  refresh();
  remember();
}

/** A state whose parts fit each other: gradient and indices get the shapes that the windows need. */
function fitted(wanted) {
  const state = { ...wanted };
  const old = page.state;
  const moved = ["x", "operator", "kernel", "stride", "padding"].some((field) => state[field] !== old[field]);
  if (state.operator === "unpool" && old.operator === "unpool" && moved) {
    if (state.indices === old.indices) state.indices = null;
    if (state.output_size === old.output_size) state.output_size = null;
  }
  if (state.windows === "adaptive" && !["max", "avg"].includes(state.operator)) state.windows = "fixed";
  if (state.windows === "adaptive" && !state.output_size) state.output_size = [2, 2];
  const { out } = pool({ ...state, cotangent: null });
  if (state.cotangent)
    state.cotangent = state.x.map((_, e) => resized(state.cotangent[e] ?? [[1]], out[0], out[1], () => 1));
  return check(state);
}

/** A plane of another size: what fits is kept, the rest is filled in. */
function resized(plane, rows, columns, fill = digit) {
  return Array.from({ length: rows }, (_, r) =>
    Array.from({ length: columns }, (_, c) => plane[r]?.[c] ?? fill(r, c)),
  );
}

/** A number from 0 to 9 that depends on the place alone, so that a size can be changed back and forth. */
const digit = (row, column) => (row * 7 + column * 3 + row * column) % 10;

/** Max pooling and unpooling follow each other: the outputs and winners of one are the inputs of the other. */
function changeOperator(operator) {
  const { state, scene } = page;
  if (operator === "unpool" && state.operator !== "unpool") return unpoolFrom(state, scene.result);
  if (operator !== "unpool" && state.operator === "unpool")
    return { operator, x: scene.result.y, indices: null, output_size: null };
  return { operator };
}

function unpoolFrom(state, result) {
  const plain = {
    operator: "unpool",
    windows: "fixed",
    dilation: [1, 1],
    ceil_mode: false,
    indices: null,
    output_size: null,
  };
  if (state.operator !== "max" || state.windows !== "fixed") return plain;
  const indices = result.winners.map((winners) =>
    resized([], ...result.out, (r, c) => {
      const o = r * result.out[1] + c;
      return result.windows[o].taps[winners[o][0]]?.input ?? 0;
    }),
  );
  const follow = { ...plain, x: result.y, indices, output_size: result.in };
  try {
    fitted({ ...state, ...follow });
    return follow;
  } catch {
    return plain; // windows whose unpooling has another size
  }
}

function compute(state) {
  const result = pool(state);
  const cotangent = state.cotangent ?? state.x.map(() => resized([], result.out[0], result.out[1], () => 1));
  return { state, result, back: pullback(state, result), cotangent };
}

function undo(from, to) {
  const state = page[from].pop();
  if (!state) return;
  page[to].push(page.state);
  adopt(state);
}

// ---------------------------------------------------------------- steps

const outputs = () => page.scene.result.windows.length;
const examples = () => page.state.x.length;
const total = () => 2 * outputs() * examples();

/** The step that was done last: forward through all examples, then backward through each of them. */
function stepAt(position) {
  if (position === 0) return { kind: "start", example: 0, output: 0 };
  const done = position - 1;
  const half = total() / 2;
  return {
    kind: done < half ? "forward" : "backward",
    example: Math.floor((done % half) / outputs()),
    output: done % outputs(),
  };
}

/** For each example, how many outputs are computed and how many have sent their gradient back. */
function progressAt(position) {
  const within = (steps, e) => Math.max(0, Math.min(outputs(), steps - e * outputs()));
  return page.state.x.map((_, e) => ({
    forward: within(position, e),
    backward: within(position - total() / 2, e),
  }));
}

function goTo(position, { stop = true } = {}) {
  if (stop) pause();
  page.position = Math.max(0, Math.min(total(), position));
  page.kept = null;
  refresh({ controls: false });
}

function play() {
  if (page.playing) return pause();
  if (page.position === total()) page.position = 0;
  page.kept = null;
  document.body.classList.add("playing");
  byId("play").setAttribute("aria-label", "Pause");
  const time = Math.max(STEP_TIME.least, Math.min(STEP_TIME.most, PLAY_TIME / total()));
  const tick = () => {
    goTo(page.position + 1, { stop: false });
    if (page.position === total()) return pause();
    page.playing = setTimeout(tick, time);
  };
  page.playing = setTimeout(tick, 250);
  refresh({ controls: false });
}

function pause() {
  clearTimeout(page.playing);
  page.playing = 0;
  document.body.classList.remove("playing");
  byId("play").setAttribute("aria-label", "Play");
}

// ---------------------------------------------------------------- drawing

let stage = null;

/** Brings everything on the page up to date. */
function refresh({ controls = true, panel = true } = {}) {
  const { scene, state } = page;
  scene.progress = progressAt(page.position);
  scene.step = stepAt(page.position);
  scene.light = lightOf(scene);
  stage.draw(scene);
  showWords(scene);
  if (panel) showPanel();
  set(byId("position"), { max: total() });
  byId("position").value = page.position;
  byId("position").setAttribute("aria-valuetext", positionWords(scene));
  byId("first").disabled = byId("back").disabled = page.position === 0;
  byId("last").disabled = byId("forth").disabled = page.position === total();
  byId("undo").disabled = !page.past.length;
  byId("redo").disabled = !page.future.length;
  if (controls) showControls(state);
}

/** What is pointed at, or what the tour or the step shows. */
function lightOf(scene) {
  const exists = (light) =>
    light &&
    light.example < examples() &&
    light.index < (light.kind === "input" ? scene.result.in[0] * scene.result.in[1] : outputs());
  if (exists(page.pointed)) return page.pointed;
  if (exists(page.kept)) return page.kept;
  const { kind, example, output } = scene.step;
  return kind === "start"
    ? null
    : { kind: "output", example, index: output, everywhere: page.position === total() };
}

function positionWords(scene) {
  const { kind, example, output } = scene.step;
  if (kind === "start") return `Before the first of ${total()} steps`;
  const of = examples() > 1 ? `, example ${example + 1}` : "";
  return `Step ${page.position} of ${total()}: ${kind}${of}, output ${output + 1} of ${outputs()}`;
}

/** What the sentence is about, where it is not the step. */
function countWords(scene) {
  if (page.pointed && page.pointed === scene.light) return "Under the pointer";
  if (page.kept && page.kept === scene.light && page.position === total()) return `After all ${total()} steps`;
  return positionWords(scene);
}

function showWords(scene) {
  const { light } = scene;
  byId("now-count").textContent = countWords(scene);
  let words = stepSentence(scene);
  if (light && [page.pointed, page.kept].includes(light))
    words =
      light.kind === "input" ? inputSentence(scene, light.example, light.index) : outputWords(scene, light);
  else if (scene.step.kind === "backward" && page.position === total() && outputs() * examples() === 1)
    words = outputWords(scene, light);
  if (byId("now").textContent !== words) byId("now").textContent = words;
}

function outputWords(scene, { example, index }) {
  const sent = scene.progress[example].backward > index;
  return sent
    ? `${forwardSentence(scene, example, index)} ${backwardSentence(scene, example, index)}`
    : forwardSentence(scene, example, index);
}

const panelActions = {
  light: pointAt,
  choose(target) {
    choices.input = target;
    page.kept = target;
    refresh({ controls: false });
  },
  redraw: () => showPanel(),
  width: () => byId(`panel-${page.tab}`).clientWidth || 600,
  two: () =>
    propose({ x: [page.state.x[0], resized([], page.state.x[0].length, page.state.x[0][0].length)] }),
  number: (text, use, field) =>
    withNumber(text, field, (value) => {
      use(value);
      showPanel();
    }),
  copy,
};

function showPanel() {
  for (const tab of document.querySelectorAll('[role="tab"]')) {
    const chosen = tab.id === `tab-${page.tab}`;
    set(tab, { "aria-selected": String(chosen), tabindex: chosen ? 0 : -1 });
    byId(tab.getAttribute("aria-controls")).hidden = !chosen;
  }
  drawPanel(page.tab, byId(`panel-${page.tab}`), page.scene, panelActions);
}

function openTab(name) {
  page.tab = name;
  showPanel();
}

/** Lights a cell; nothing is drawn again if it is lit already. */
function pointAt(target) {
  if (JSON.stringify(target) === JSON.stringify(page.pointed)) return;
  page.pointed = target;
  refresh({ controls: false, panel: false });
  cancelAnimationFrame(page.frame);
  if (LIT_PANELS.includes(page.tab)) page.frame = requestAnimationFrame(showPanel);
}

// ---------------------------------------------------------------- controls

const DERIVED = {
  rows: (state) => state.x[0].length,
  columns: (state) => state.x[0][0].length,
  examples: (state) => state.x.length,
};

/** The value of a control's path, such as "padding.0.1". */
function valueAt(state, path) {
  if (DERIVED[path]) return DERIVED[path](state);
  return path.split(".").reduce((value, key) => value?.[key], state);
}

/** The state's change that sets a path. */
function changeAt(state, path, value) {
  const [field, ...keys] = path.split(".");
  if (field === "rows" || field === "columns") return sizeChange(state, field, value);
  if (field === "examples")
    return {
      x:
        value === 1
          ? [state.x[0]]
          : [state.x[0], state.x[1] ?? state.x[0].map((row, r) => row.map((_, c) => digit(r + 1, c + 2)))],
    };
  if (field === "dims") return dimsChange(state, value);
  if (field === "operator") return changeOperator(value);
  if (!keys.length) return { [field]: value };
  const copy = structuredClone(state[field] ?? page.scene.result.out);
  const last = keys.pop();
  keys.reduce((part, key) => part[key], copy)[last] = value;
  if (field === "padding" && state.operator === "unpool") copy[Number(keys[0])].fill(value);
  return { [field]: copy };
}

function sizeChange(state, field, value) {
  if (!Number.isInteger(value) || value < 1 || value > 16)
    throw new InputError(field, `${field} must be an integer from 1 to 16, got ${value}`);
  const rows = field === "rows" ? value : state.x[0].length;
  const columns = field === "columns" ? value : state.x[0][0].length;
  return { x: state.x.map((plane) => resized(plane, rows, columns)) };
}

function dimsChange(state, dims) {
  if (dims === state.dims) return {};
  if (dims === 1) return { dims, x: state.x.map((plane) => [plane[0]]) };
  const columns = state.x[0][0].length;
  return {
    dims,
    x: state.x.map((plane) => resized(plane, columns, columns)),
    kernel: [state.kernel[1], state.kernel[1]],
    stride: [state.stride[1], state.stride[1]],
    dilation: [state.dilation[1], state.dilation[1]],
    padding: [state.padding[1], state.padding[1]],
  };
}

function showControls() {
  const { state } = page;
  for (const part of document.querySelectorAll("[data-for], [data-not], [data-windows], [data-dims]"))
    part.hidden = !applies(part.dataset, state);
  byId("controls").querySelector('[value="adaptive"]').parentElement.hidden = !["max", "avg"].includes(
    state.operator,
  );
  for (const field of document.querySelectorAll("[data-field]"))
    showField(field, valueAt(state, field.dataset.field));
  byId("formula").replaceChildren(
    html("code", {}, OPERATORS[state.operator].formula),
    " ",
    OPERATORS[state.operator].rule,
  );
  byId("ties-note").textContent = TIES[state.ties];
}

function applies({ for: operators, not, windows, dims }, state) {
  return (
    (!operators || operators.split(" ").includes(state.operator)) &&
    (!not || not !== state.operator) &&
    (!windows || windows === state.windows || (windows === "adaptive" && state.operator === "unpool")) &&
    (!dims || Number(dims) === state.dims)
  );
}

function showField(field, value) {
  if (field.type === "radio") field.checked = field.value === String(value);
  else if (field.type === "checkbox") field.checked = value;
  else if (field.dataset.field.startsWith("output_size"))
    field.value = value ?? page.scene.result.out[Number(field.dataset.field.at(-1))];
  else
    field.value =
      value === null || value === undefined
        ? ""
        : field.type === "number"
          ? value
          : short(value).replaceAll("−", "-").replace("∞", "inf");
}

function fieldChanged(field) {
  const { field: path, kind } = field.dataset;
  if (path === "ties" && field.value === "all") return refuseAll();
  const take = (value) => {
    pause();
    try {
      if (!propose(changeAt(page.state, path, value))) markInvalid(path);
      else if (path === "operator" && value === "unpool") lightLargest();
    } catch (error) {
      complain(error);
      markInvalid(path);
    }
  };
  if (field.type === "checkbox") return take(field.checked);
  if (kind === "optional" && !field.value.trim()) return take(null);
  if (field.type === "radio" && kind !== "number") return take(field.value);
  return withNumber(field.value, field, take);
}

/** Of an unpooling most outputs are 0: the largest input shows where a value goes. */
function lightLargest() {
  const values = page.state.x[0].flat();
  page.kept = { kind: "input", example: 0, index: Math.max(0, values.indexOf(Math.max(...values))) };
  refresh({ controls: false });
}

/** "all" is offered to say why it is refused. */
function refuseAll() {
  complain(new InputError("ties", TIES.all));
  showControls();
}

function buildControls() {
  byId("operators").append(
    ...Object.entries(OPERATORS).map(([id, { name }]) =>
      html(
        "label",
        {},
        html("input", { type: "radio", name: "operator", "data-field": "operator", value: id }),
        html("span", {}, name),
      ),
    ),
  );
  byId("presets").append(
    ...Object.keys(presets).map((name) =>
      html(
        "button",
        { type: "button", onclick: () => begin(presets[name], PRESET_LIGHT[name]) },
        name.charAt(0).toUpperCase() + name.slice(1),
      ),
    ),
  );
  byId("controls").addEventListener(
    "change",
    (event) => event.target.dataset.field && fieldChanged(event.target),
  );
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
}

/** What a preset is about: an input of several windows, the first window with a tie, NaN or padding. */
const PRESET_LIGHT = {
  "AlexNet 3x3 stride 2": { kind: "input", example: 0, index: 16 },
  "all equal": { kind: "output", example: 0, index: 0 },
  NaN: { kind: "output", example: 0, index: 0 },
  padding: { kind: "output", example: 0, index: 0 },
};

function begin(state, light = null) {
  pause();
  page.position = total();
  propose(state);
  page.kept = light;
  refresh({ controls: false });
}

// ---------------------------------------------------------------- numbers that are typed

/** The number of a text; NaN and infinities have names, and a fraction is a number, too. */
function numberOf(text) {
  const clean = text.trim().toLowerCase().replaceAll("−", "-").replace("∞", "inf");
  const words = {
    nan: NaN,
    inf: Infinity,
    "+inf": Infinity,
    "-inf": -Infinity,
    infinity: Infinity,
    "-infinity": -Infinity,
  };
  if (Object.hasOwn(words, clean)) return words[clean];
  const fraction = clean
    .split("/")
    .map((part) =>
      /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/.test(part.trim().replace(",", "."))
        ? Number(part.trim().replace(",", "."))
        : null,
    );
  if (fraction.includes(null) || fraction.length > 2)
    throw new InputError(
      "number",
      `${clean ? `“${text.trim().slice(0, 30)}” is not a number` : "There is no number in the field"}. Write for example 1.5, -2, 1/3, nan or inf.`,
    );
  return fraction.length === 2 ? fraction[0] / fraction[1] : fraction[0];
}

/** The planes' rows from pasted text: lists of Python or NumPy, CSV, or columns with spaces. */
function matrixOf(text) {
  const lines = text
    .trim()
    .replace(/^\w+\s*=|[\w.]*(?:array|tensor)\(|(?:dtype|device|requires_grad|grad_fn)=[^,)]+|[()]/gi, "")
    .split(/\]\s*,?\s*\[|\n|;/);
  const rows = lines
    .map((line) => line.replace(/[[\]]/g, " ").trim().replace(/,$/, ""))
    .filter(Boolean)
    .map((line) =>
      line
        .split(/\s*,\s*|\s+/)
        .filter(Boolean)
        .map(numberOf),
    );
  if (!rows.length)
    throw new InputError(
      "matrix",
      "There is no number in it. Write one row per line, or a list such as [[1, 3], [2, 0.5]].",
    );
  const odd = rows.findIndex((row) => row.length !== rows[0].length);
  if (odd > 0)
    throw new InputError(
      "matrix",
      `Row ${odd + 1} has ${rows[odd].length} numbers, row 1 has ${rows[0].length}. All rows of a matrix need the same length.`,
    );
  return rows;
}

function withNumber(text, field, use) {
  try {
    use(numberOf(text));
  } catch (error) {
    complain(error);
    field.setAttribute("aria-invalid", "true");
  }
}

function complain(error) {
  if (!(error instanceof InputError)) throw error;
  const sentence = error.message.charAt(0).toUpperCase() + error.message.slice(1);
  byId("complaint-text").textContent = /[.!?]$/.test(sentence) ? sentence : `${sentence}.`;
  byId("complaint").hidden = false;
}

function markInvalid(path) {
  for (const field of document.querySelectorAll(`[data-field="${path}"]`))
    field.setAttribute("aria-invalid", "true");
}

// ---------------------------------------------------------------- cells

function planeName(cell) {
  return cell.dataset.grid === "x" ? "x" : "cotangent";
}

function valueOf(cell) {
  const planes = cell.dataset.grid === "x" ? page.state.x : page.scene.cotangent;
  return planes[cell.dataset.example][cell.dataset.row][cell.dataset.column];
}

function withValue(cell, value) {
  const planes = structuredClone(cell.dataset.grid === "x" ? page.state.x : page.scene.cotangent);
  planes[cell.dataset.example][cell.dataset.row][cell.dataset.column] = value;
  return { [planeName(cell)]: planes };
}

/** Opens a text field over a cell. */
function edit(cell, typed) {
  pause();
  focusCell(cell);
  const bounds = cell.getBoundingClientRect();
  const field = html("input", {
    class: "editor",
    type: "text",
    inputmode: "decimal",
    "aria-label": cell.getAttribute("aria-label"),
    style: `left:${bounds.left + scrollX}px;top:${bounds.top + scrollY}px;width:${bounds.width}px;height:${bounds.height}px`,
  });
  const value = valueOf(cell);
  field.value =
    typed ??
    (Number.isFinite(value) ? String(value) : short(value).replace("−∞", "-inf").replace("∞", "inf"));
  const started = field.value;
  let open = true;
  const close = (keep) => {
    if (!open) return;
    open = false;
    const text = field.value;
    field.remove();
    if (keep && (text !== started || typed))
      withNumber(text, cell, (number) => propose(withValue(cell, number)));
  };
  field.addEventListener("blur", () => close(true));
  field.addEventListener("keydown", (event) => editorKey(event, cell.dataset.cell, field, close));
  document.body.append(field);
  field.focus();
  if (!typed) field.select();
}

function editorKey(event, name, field, close) {
  event.stopPropagation();
  const step = { ArrowUp: 1, ArrowDown: -1 }[event.key];
  if (step) {
    event.preventDefault();
    const number = Number(field.value);
    if (Number.isFinite(number)) field.value = String(Number((number + step).toPrecision(12)));
    return;
  }
  if (!["Enter", "Escape", "Tab"].includes(event.key)) return;
  event.preventDefault();
  close(event.key !== "Escape");
  const cell = stage.cell(name);
  const beside =
    event.key === "Tab" &&
    stage.cell(name.replace(/\d+$/, (index) => Number(index) + (event.shiftKey ? -1 : 1)));
  focusCell(beside || cell);
}

let dragged = null;

/** A drag changes the number step by step, and is undone as one. */
function drag(cell, kind, steps) {
  if (kind === "begin") {
    pause();
    const value = valueOf(cell);
    dragged = {
      value: Number.isFinite(value) ? value : 0,
      step: Number.isInteger(value) || !Number.isFinite(value) ? 1 : 0.1,
      before: page.state,
    };
    document.body.classList.add("dragging");
  } else if (kind === "move" && dragged) {
    propose(withValue(cell, Number((dragged.value + steps * dragged.step).toFixed(6))), { remember: false });
  } else if (dragged) {
    page.past.push(dragged.before);
    page.future = [];
    dragged = null;
    document.body.classList.remove("dragging");
    refresh();
  }
}

function randomise(field) {
  pause();
  const shape = field === "x" ? page.state.x : page.scene.cotangent;
  const draw = () => (field === "x" ? Math.floor(Math.random() * 10) : Math.floor(Math.random() * 9 + 1) / 2);
  propose({ [field]: shape.map((plane) => plane.map((row) => row.map(draw))) });
}

// ---------------------------------------------------------------- pasting

const PASTE = { x: "input x", cotangent: "upstream gradient g", indices: "indices" };

function openPaste() {
  pause();
  const fields = ["x", "cotangent", ...(page.state.operator === "unpool" ? ["indices"] : [])];
  const targets = page.state.x.flatMap((_, e) =>
    fields.map((field) => [`${field}-${e}`, PASTE[field] + (examples() > 1 ? ` of example ${e + 1}` : "")]),
  );
  byId("paste-target").replaceChildren(
    ...targets.map(([value, text], n) =>
      html(
        "label",
        {},
        set(html("input", { type: "radio", name: "target", value, onchange: fillPaste }), {
          checked: n === 0,
        }),
        html("span", {}, text),
      ),
    ),
  );
  byId("paste-error").textContent = "";
  fillPaste();
  byId("paste-dialog").showModal();
  byId("paste-text").select();
}

function pasteTarget() {
  const [field, example] = byId("paste-form").elements.target.value.split("-");
  return { field, example: Number(example) };
}

function fillPaste() {
  const { field, example } = pasteTarget();
  const planes = field === "cotangent" ? page.scene.cotangent : page.state[field];
  byId("paste-text").value = planes[example]
    .map((row) =>
      row
        .map((v) => (Number.isFinite(v) ? v : short(v).replace("−∞", "-inf").replace("∞", "inf")))
        .join(", "),
    )
    .join("\n");
}

function usePaste(event) {
  event.preventDefault();
  const { field, example } = pasteTarget();
  try {
    replacePlane(field, example, matrixOf(byId("paste-text").value));
    byId("paste-dialog").close();
  } catch (error) {
    if (!(error instanceof InputError)) throw error;
    byId("paste-error").textContent = error.message;
  }
}

/** Puts a matrix in place of a plane. The input may change its size; the other example follows it. */
function replacePlane(field, example, rows) {
  const planes = field === "cotangent" ? page.scene.cotangent : page.state[field];
  if (field === "x" && page.state.dims === 1 && rows.length > 1)
    throw new InputError("x", `A one-dimensional input is one row, got ${rows.length} rows.`);
  if (field !== "x" && (rows.length !== planes[0].length || rows[0].length !== planes[0][0].length)) {
    throw new InputError(
      field,
      `${PASTE[field]} has ${planes[0].length} × ${planes[0][0].length} numbers, got ${rows.length} × ${rows[0].length}.`,
    );
  }
  const next = planes.map((plane, e) => (e === example ? rows : resized(plane, rows.length, rows[0].length)));
  fitted({ ...page.state, [field]: next }); // throws where propose() would only show the message
  propose({ [field]: next });
}

/** Ctrl+V anywhere outside a text field. */
function pasted(event) {
  if (event.target.closest?.("input, textarea, dialog")) return;
  const text = event.clipboardData?.getData("text");
  if (!text?.trim()) return;
  event.preventDefault();
  try {
    replacePlane("x", 0, matrixOf(text));
  } catch (error) {
    complain(error);
  }
}

// ---------------------------------------------------------------- tour

function buildTour() {
  byId("tour-steps").append(
    ...TOUR.map(({ name }, n) =>
      html(
        "li",
        {},
        html(
          "button",
          { type: "button", id: `tour-${n}`, onclick: () => visit(n) },
          html("span", { class: "tour-number", "aria-hidden": "true" }, n + 1),
          html("span", { class: "tour-name" }, name),
        ),
      ),
    ),
  );
  byId("tour-next").addEventListener("click", () =>
    page.tour === TOUR.length - 1 ? begin(defaults()) : visit(page.tour === null ? 0 : page.tour + 1),
  );
}

function visit(n) {
  const { change, position, light = null, tab } = TOUR[n];
  pause();
  page.tour = n;
  propose({ ...defaults(), ...change }, { keepTour: true });
  page.position = position < 0 ? total() : position;
  page.kept = light;
  if (tab) page.tab = tab;
  showTour();
  refresh();
}

function leaveTour() {
  page.tour = null;
  page.kept = null;
  showTour(JSON.stringify(page.state) === JSON.stringify(defaults()) ? OPENING : FREE);
}

function showTour(text = OPENING) {
  const now = page.tour;
  byId("tour-text").textContent = now === null ? text : TOUR[now].text;
  byId("tour-text").classList.toggle("free", now === null && text === FREE);
  byId("tour-next").textContent =
    now === null ? "Take the tour" : now === TOUR.length - 1 ? "End of the tour" : "Next";
  TOUR.forEach((_, n) =>
    set(byId(`tour-${n}`), {
      "aria-current": n === now ? "step" : null,
      class: now !== null && n < now ? "visited" : null,
    }),
  );
}

// ---------------------------------------------------------------- sharing

let remembering = 0;

/** Writes the state to the URL's fragment, a little later: browsers limit how often it may change. */
function remember() {
  clearTimeout(remembering);
  remembering = setTimeout(() => {
    if (parent !== window) parent.postMessage({ poolgrad: written(page.state) }, "*");
    try {
      history.replaceState(null, "", `#${encode(page.state)}`);
    } catch {
      // A page inside a notebook's frame has no address of its own.
    }
  }, 300);
}

/** Shows a state that the page around this frame sends: the widget of a notebook. */
function received({ source, data }) {
  if (parent === window || source !== parent || typeof data?.poolgrad !== "string") return;
  try {
    const state = fitted(check(JSON.parse(data.poolgrad)));
    if (written(state) !== written(page.state)) begin(state);
  } catch (error) {
    complain(error);
  }
}

function readFragment() {
  if (location.hash.length < 2) return null;
  try {
    return decode(location.hash);
  } catch (error) {
    complain(error);
    return null;
  }
}

async function copy(text, button) {
  const old = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyBySelection(text);
  }
  button.textContent = "Copied";
  setTimeout(() => {
    button.textContent = old;
  }, 1500);
}

/** Where the clipboard is not allowed, such as in a frame. */
function copyBySelection(text) {
  const area = html("textarea", { class: "unseen" }, text);
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

function share(event) {
  copy(`${location.href.split("#")[0]}#${encode(page.state)}`, event.currentTarget);
}

// ---------------------------------------------------------------- theme, legend, keys

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").textContent = dark ? "Light" : "Dark";
}

function buildTheme() {
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  setTheme(preferred.matches);
  preferred.addEventListener("change", (event) => setTheme(event.matches));
  byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
}

function buildLegend() {
  const entries = [
    ["window", "window"],
    ["winner", "winner (corner)"],
    ["forward", "forward"],
    ["backward", "backward (dashed)"],
    ["padding", "padding"],
  ];
  byId("legend").append(
    ...entries.map(([kind, text]) =>
      html("li", {}, html("span", { class: `key ${kind}`, "aria-hidden": "true" }), text),
    ),
  );
}

/** Arrows step and space plays, wherever the focus has no use of its own for them. */
function keyPressed(event) {
  if (event.ctrlKey || event.metaKey) return undoKeys(event);
  if (
    event.altKey ||
    byId("paste-dialog").open ||
    event.target.closest?.("input, textarea, select, pre, [role=tab], .scroll.tall")
  )
    return;
  if (event.key === "ArrowRight") goTo(page.position + 1);
  else if (event.key === "ArrowLeft") goTo(page.position - 1);
  else if (event.key === " " && !event.target.closest?.("button, a")) play();
  else return;
  event.preventDefault();
}

function undoKeys(event) {
  if (event.target.closest?.("input[type=text], textarea")) return;
  const key = event.key.toLowerCase();
  if (key === "z") undo(...(event.shiftKey ? ["future", "past"] : ["past", "future"]));
  else if (key === "y") undo("future", "past");
  else return;
  event.preventDefault();
}

function tabKeys(event) {
  const names = ["matrix", "check", "shift", "batch", "code"];
  const move = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
  if (!move) return;
  event.preventDefault();
  event.stopPropagation();
  const next = Number.isFinite(move)
    ? (names.indexOf(page.tab) + move + names.length) % names.length
    : move > 0
      ? names.length - 1
      : 0;
  openTab(names[next]);
  byId(`tab-${names[next]}`).focus();
}

function connect() {
  const clicks = {
    randomise: () => randomise("x"),
    "randomise-g": () => randomise("cotangent"),
    paste: openPaste,
    undo: () => undo("past", "future"),
    redo: () => undo("future", "past"),
    reset: () => begin(defaults()),
    first: () => goTo(0),
    back: () => goTo(page.position - 1),
    play,
    forth: () => goTo(page.position + 1),
    last: () => goTo(total()),
    share,
    "paste-cancel": () => byId("paste-dialog").close(),
    "complaint-close": () => {
      byId("complaint").hidden = true;
    },
  };
  for (const [id, click] of Object.entries(clicks)) byId(id).addEventListener("click", click);
  byId("share").hidden = location.protocol === "about:"; // a notebook's frame has no address
  for (const tab of document.querySelectorAll('[role="tab"]'))
    tab.addEventListener("click", () => openTab(tab.id.slice(4)));
  byId("tabs").addEventListener("keydown", tabKeys);
  byId("position").addEventListener("input", (event) => goTo(Number(event.target.value)));
  byId("paste-form").addEventListener("submit", usePaste);
  document.addEventListener("keydown", keyPressed);
  document.addEventListener("paste", pasted);
  addEventListener("message", received);
  addEventListener("hashchange", () => {
    const state = readFragment();
    if (state) begin(state);
  });
  new ResizeObserver(() => refresh({ controls: false })).observe(byId("stage"));
}

/** The state of the address, or the one that the file was written with, or the opening one. */
function startState() {
  const shared = readFragment();
  if (shared) return shared;
  try {
    return fitted(check(JSON.parse(byId("start").textContent) ?? defaults()));
  } catch (error) {
    complain(error);
    return defaults();
  }
}

buildTheme();
stage = new Stage(byId("stage"), { light: pointAt, edit, drag });
buildControls();
buildLegend();
page.scene = compute(page.state);
const start = startState();
page.state = start;
page.scene = compute(start);
page.position = total();
buildTour();
leaveTour();
connect();
refresh();
