// What is on the screen, what it hangs on, and the link that brings it back.
import { ask, bytes, latest, unpack } from "./api.js";
import { byId, chart, colour, download, make, picture } from "./paint.js";
import { choosing } from "./choose.js";
import { flow, heat, layerName, legend, overlay } from "./inside.js";

const STILL = { turn: 0, scale: 1, right: 0, down: 0, mirror: false };
const UNITS = { turn: "°", scale: "×", right: " px", down: " px" };
const state = { run: 0, source: null, view: { ...STILL }, cls: null, moves: [], span: 0.25, layer: null, of: "turn" };
let runs = [], seen = [], choose = null, swept = null;

const within = (value, least, most) => typeof value === "number" && value >= least && value <= most;
const hue = (run) => colour(["accent", "other", "good"][run]);
const about = () => runs[state.run];
const shown = () => seen[state.run];
const chosenClass = () => state.cls ?? shown().seen;
const capsule = () => shown().capsules[chosenClass()].map((v, d) => v + (state.moves[d] ?? 0));

function failed(error) {
  byId("error").hidden = !error;
  byId("error").textContent = error ? error.message : "";
  if (error) console.debug(error);
}

// Links. Browsers take the address of a page that changes it all the time for a hanging one: it waits for a rest.
let writing = 0;
function remember() { clearTimeout(writing); writing = setTimeout(write, 200); }
function write() {
  const told = Object.fromEntries(Object.entries(state).filter(([, value]) => value !== null));
  history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(told))}`);
}

function recall() {
  try {
    const told = JSON.parse(decodeURIComponent(location.hash.slice(1))), count = (value, below) => Number.isInteger(value) && value >= 0 && value < below;
    if (count(told.run, runs.length)) state.run = told.run;
    const { config, ranges, widest } = about();
    if (Number.isInteger(told.source?.index) || typeof told.source?.pixels === "string") state.source = told.source;
    for (const [name, [least, most]] of Object.entries(ranges)) if (within(told.view?.[name], least, most)) state.view[name] = told.view[name];
    state.view.mirror = told.view?.mirror === true;
    if (count(told.cls, config.classes)) state.cls = told.cls;
    if ([0.25, 0.5, 1].includes(told.span)) state.span = told.span;
    if (Array.isArray(told.moves) && told.moves.length === config.class_dim && told.moves.every((v) => within(v, -widest, widest))) state.moves = told.moves;
    if (count(told.layer, 2 * config.blocks + 2)) state.layer = told.layer;
    if (Object.hasOwn(ranges, told.of)) state.of = told.of;
  } catch { /* A link that says nothing opens the page as it is. */ }
}

// Questions.
const look = latest(async (inside) => {
  const fields = { ...state.source, view: state.view, inside };
  const told = await Promise.all(runs.map((_, run) => ask("see", { run, ...fields })));
  seen = told.map((now, run) => {
    if (!inside) return { ...seen[run], ...now };
    for (const layer of now.layers) { layer.lengths = unpack(layer.lengths); layer.coupling &&= unpack(layer.coupling); }
    return { ...now, flows: now.flows.map(unpack), shares: now.shares.map(unpack) };
  });
  drawSeen();
  if (inside) drawInside();
  remember();
}, failed);
const redraw = latest(async () => {
  const { reconstruction } = await ask("reconstruct", { run: state.run, class: chosenClass(), capsule: capsule() });
  picture(byId("moved"), bytes(reconstruction), about().config.image_shape);
  byId("moved").dataset.drawn = String(Math.round(performance.now()));
}, failed);
const sweep = latest(async () => {
  swept = await ask("sweep", { run: state.run, ...state.source, view: state.view, of: state.of });
  drawSweep();
}, failed);
const drawSheet = latest(async () => {
  if (byId("sheet").hidden) return;
  const { rows, moves, pictures } = await ask("sheet", { run: state.run, class: chosenClass(), capsule: capsule(), span: state.span });
  const shape = about().config.image_shape, [, H, W] = shape, factor = Math.max(1, Math.floor(Math.min(84, (byId("move").clientWidth - 70) / 11 - 3) / W)), left = 30, top = 20;
  const canvas = byId("sheet-canvas"), small = make("canvas");
  canvas.width = left + moves.length * (W * factor + 3); canvas.height = top + rows * (H * factor + 3);
  const pen = canvas.getContext("2d");
  pen.fillStyle = colour("card"); pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = colour("soft"); pen.font = "11px system-ui, sans-serif"; pen.textAlign = "center"; pen.textBaseline = "middle";
  pen.imageSmoothingEnabled = false;
  moves.forEach((move, n) => pen.fillText(move.toFixed(2), left + (n + 0.5) * (W * factor + 3), 10));
  for (let row = 0; row < rows; row++) {
    pen.fillText(row + 1, 14, top + (row + 0.5) * (H * factor + 3));
    for (let n = 0; n < moves.length; n++) {
      picture(small, bytes(pictures[row * moves.length + n]), shape);
      pen.drawImage(small, left + n * (W * factor + 3), top + row * (H * factor + 3), W * factor, H * factor);
    }
  }
  byId("sheet-note").textContent = `A row for each dimension of capsule ${about().classes[chosenClass()]}, from −${state.span} to +${state.span}.`;
}, failed);

// Everything that hangs on the chosen class and its moves.
function capsuleChanged() { drawSliders(); redraw(); drawSheet(); remember(); }

let settling = 0;
function imageChanged(settled = true) {
  look(settled);
  clearTimeout(settling);
  settling = setTimeout(() => { if (!settled) look(true); sweep(); }, settled ? 60 : 160);
}

// Drawing.
function drawSeen() {
  const { config: { image_shape: shape }, classes } = about(), now = shown(), several = runs.length > 1, others = [...runs.keys()].filter((run) => run !== state.run);
  picture(byId("input"), bytes(now.input), shape);
  picture(byId("output"), bytes(now.reconstruction), shape);
  if (several) byId("output-note").replaceChildren(...named(state.run));
  byId("others").replaceChildren(...others.map((run) => {
    const canvas = make("canvas", { class: "picture", role: "img", "aria-label": `The reconstruction of ${runs[run].name}` });
    picture(canvas, bytes(seen[run].reconstruction), shape);
    return make("figure", {}, canvas, make("figcaption", {}, ...named(run)));
  }));
  const verdict = byId("verdict"), right = now.label === now.seen;
  verdict.replaceChildren(`${several ? about().name : "It"} sees `, make("b", { id: "seen-class" }, classes[now.seen]), `, length ${now.lengths[now.seen].toFixed(2)}`);
  if (now.label !== null) verdict.append(" — ", make("span", { class: right ? "right" : "wrong" }, right ? "right" : `it is ${classes[now.label]}`));
  for (const run of others) verdict.append(make("span", { class: "soft small" }, ` · ${runs[run].name}: ${classes[seen[run].seen]}, ${seen[run].lengths[seen[run].seen].toFixed(2)}`));
  const bars = byId("bars");
  bars.classList.toggle("several", several);
  bars.classList.toggle("many", classes.length > 20);
  if (bars.children.length !== classes.length) bars.replaceChildren(...classes.map((name, k) => {
    const button = make("button", { type: "button" }, make("span", { class: "name" }, name), make("span", { class: "track" }, ...runs.map(() => make("span", { class: "fill" }))), make("span", { class: "value" }));
    button.addEventListener("click", () => pickClass(k));
    return button;
  }));
  [...bars.children].forEach((button, k) => {
    button.querySelectorAll(".fill").forEach((fill, run) => {
      fill.style.width = `${100 * Math.min(seen[run].lengths[k], 1)}%`;
      fill.style.background = several ? hue(run) : "";
    });
    button.querySelector(".value").textContent = seen.map(({ lengths }) => lengths[k].toFixed(2)).join(" · ");
    button.classList.toggle("seen", k === now.seen);
    button.setAttribute("aria-pressed", String(k === chosenClass()));
    button.setAttribute("aria-label", `${classes[k]}, length ${now.lengths[k].toFixed(2)}`);
  });
  // Of many classes, the chosen one comes into sight, once.
  if (bars.dataset.chosen !== String(chosenClass())) {
    bars.scrollTop = bars.children[chosenClass()].offsetTop - bars.clientHeight / 2;
    bars.dataset.chosen = chosenClass();
  }
  choose.mark();
  for (const place of document.querySelectorAll(".chosen-name")) place.textContent = classes[chosenClass()];
  drawSliders(); redraw(); drawSheet();
}

function drawSliders() {
  const { config: { class_dim: E }, classes } = about(), place = byId("sliders"), base = shown().capsules[chosenClass()];
  if (place.children.length !== E) place.replaceChildren(...Array.from({ length: E }, (_, d) => {
    const input = make("input", { type: "range", step: "0.01", "aria-label": `Dimension ${d + 1}` });
    input.addEventListener("input", () => { state.moves = Array.from({ length: E }, (_, n) => (n === d ? +input.value : state.moves[n] ?? 0)); capsuleChanged(); });
    return make("label", {}, make("span", {}, String(d + 1)), input, make("output"));
  }));
  [...place.children].forEach((label, d) => {
    const input = label.querySelector("input"), move = state.moves[d] ?? 0;
    input.min = -state.span; input.max = state.span; input.value = move;
    label.querySelector("output").textContent = `${move < 0 ? "−" : "+"}${Math.abs(move).toFixed(2)}`;
    input.title = `${base[d].toFixed(3)} in this image`;
  });
  byId("span").value = String(state.span);
  const moved = state.moves.some((v) => v);
  byId("moved-note").textContent = `${classes[chosenClass()]}${moved ? ", moved" : ", as it is"}`;
}

function drawInside() {
  const now = shown(), { config, classes, primary } = about(), k = chosenClass();
  const columns = now.layers.slice(1);
  state.layer = state.layer === null || state.layer >= columns.length ? columns.length - 1 : state.layer;
  const first = now.shares[0];
  overlay(byId("primary"), bytes(now.input), config.image_shape, Float32Array.from({ length: first.shape[1] }, (_, i) => first.at(k, i)), primary);
  flow(byId("flow"), now, classes, k, state.layer, { pickLayer, pickClass });
  drawHeat();
  drawDepth();
}

function drawHeat() {
  const layer = shown().layers[state.layer + 1], last = layer.name === "caps2";
  const rows = Array.from({ length: layer.coupling.shape[0] }, (_, j) => (last ? about().classes[j] : `${j + 1}`));
  byId("heat-title").textContent = `Coupling into ${layerName(layer.name)}: ${layer.coupling.shape[0]} × ${layer.coupling.shape[1]}`;
  byId("legend-top").textContent = layer.coupling.top.toFixed(2);
  legend(byId("legend"));
  const sum = about().config.routing === "leaky-rba" ? "add up to less than one: the rest leaks" : "add up to one";
  const note = `How much of itself each capsule below sends to each capsule here. Each row is a capsule of this layer with its length; each column a capsule below. A column's shares ${sum}.`;
  heat(byId("heatmap"), layer, rows, (words) => { byId("heat-note").textContent = words || note; });
  byId("heat-note").textContent = note;
}

function drawDepth() {
  const lines = [];
  let deepest = 0, top = 0;
  // Words stand at one run's lines: colours tell the runs apart.
  const named = seen.findIndex(({ depth }) => depth.x.length > 1);
  runs.forEach((run, n) => {
    const { x, velocity, f } = seen[n].depth, word = (name) => (n === named ? name : "");
    deepest = Math.max(deepest, x.length); top = Math.max(top, ...x, ...velocity, ...f);
    lines.push({ name: word("x"), values: x, colour: hue(n), strong: true },
      { name: word(run.config.gamma === undefined ? "step" : "velocity"), values: velocity, colour: hue(n), strong: true, dash: "6 4", from: 1 },
      { name: word("f"), values: f, colour: hue(n), strong: true, dash: "2 3", from: 1 });
  });
  const layers = Array.from({ length: deepest }, (_, n) => n), every = Math.ceil(layers.length / 12);
  const names = runs.map((run) => `${run.name} (${run.config.model}${run.config.gamma ? `, γ ${run.config.gamma}` : ""})`).join("; ");
  byId("depth-chart").hidden = byId("depth-note").hidden = deepest < 2;
  byId("depth-text").textContent = deepest < 2 ? `There is no trunk here: CapsLayer 1 feeds the class capsules. ${names}.` : `Mean length over the capsules of the trunk, for this image: the state x, the step that each layer takes (in a momentum trunk, the velocity), and f, what the layer itself computes. ${names}.`;
  chart(byId("depth-chart"), layers, lines, { largest: top || 1, label: "State and velocity, layer by layer", ticks: layers.filter((n) => n % every === 0).map((n) => [n, String(n)]) });
}

function drawSweep() {
  if (!swept) return;
  const { classes } = about(), { of, values, lengths } = swept, now = state.view[of];
  const here = lengths[values.reduce((best, v, n) => (Math.abs(v - now) < Math.abs(values[best] - now) ? n : best), 0)];
  const ahead = [...here.keys()].sort((a, b) => here[b] - here[a]).slice(0, 3), hues = [colour("accent"), colour("other"), colour("good")];
  const lines = classes.map((name, k) => ({ name, values: lengths.map((row) => row[k]), colour: ahead.includes(k) ? hues[ahead.indexOf(k)] : colour("line"), strong: ahead.includes(k) }));
  lines.sort((a, b) => a.strong - b.strong);
  chart(byId("sweep"), values, lines, { largest: 1, now, label: `Lengths of all classes against ${of}`, ticks: [values[0], (values[0] + values[values.length - 1]) / 2, values[values.length - 1]].map((v) => [v, `${+v.toFixed(2)}${UNITS[of]}`]) });
  byId("sweep-note").textContent = `Lengths of all class capsules while “${of}” goes through its range; the three longest are named.`;
}

function drawView() {
  const place = byId("view-sliders"), { ranges } = about();
  if (!place.children.length) place.append(...Object.entries(ranges).map(([name, [least, most]]) => {
    const input = make("input", { type: "range", min: least, max: most, step: name === "scale" ? 0.01 : name === "turn" ? 1 : 0.5, "aria-label": name, id: `view-${name}` });
    input.addEventListener("input", () => { state.view[name] = +input.value; state.of = name; drawView(); drawSweep(); imageChanged(false); });
    return make("label", {}, make("span", {}, name), input, make("output"));
  }));
  for (const [n, name] of Object.keys(ranges).entries()) {
    const label = place.children[n];
    label.querySelector("input").value = state.view[name];
    label.querySelector("output").textContent = `${state.view[name]}${UNITS[name]}`;
  }
  byId("mirror").checked = state.view.mirror;
}

// What people do.
function pickClass(k) {
  state.cls = k === shown().seen ? null : k;
  state.moves = [];
  drawSeen(); drawInside(); remember();
}

function pickLayer(c) { state.layer = c; drawInside(); remember(); }

function chosen(source) {
  Object.assign(state, { source, cls: null, moves: [] });
  imageChanged(source.index !== undefined);
}

function theme(next) {
  const order = ["", "light", "dark"], now = document.documentElement.dataset.theme ?? "";
  const wanted = next ?? order[(order.indexOf(now) + 1) % 3];
  if (wanted) document.documentElement.dataset.theme = wanted; else delete document.documentElement.dataset.theme;
  byId("theme").textContent = { "": "◐", light: "☀", dark: "☾" }[wanted];
  for (const name of ["aria-label", "title"]) byId("theme").setAttribute(name, `Colours: ${wanted || "as the system"}`);
  redrawAll();
}

function redrawAll() { if (seen.length) { drawSeen(); drawInside(); drawSweep(); } }

function wire() {
  byId("span").addEventListener("change", (event) => {
    state.span = +event.target.value;
    state.moves = state.moves.map((v) => Math.max(-state.span, Math.min(state.span, v)));
    capsuleChanged();
  });
  byId("reset").addEventListener("click", () => { state.moves = []; capsuleChanged(); });
  byId("save").addEventListener("click", () => download(byId("moved"), `capsule-${about().classes[chosenClass()]}.png`, 10));
  byId("save-sheet").addEventListener("click", () => download(byId("sheet-canvas"), `dimensions-${about().classes[chosenClass()]}.png`));
  byId("show-sheet").addEventListener("click", () => {
    byId("sheet").hidden = !byId("sheet").hidden;
    byId("move").classList.toggle("open", !byId("sheet").hidden);
    byId("show-sheet").setAttribute("aria-expanded", String(!byId("sheet").hidden));
    drawSheet(); drawSweep();
  });
  byId("mirror").addEventListener("change", (event) => { state.view.mirror = event.target.checked; imageChanged(); });
  byId("view-reset").addEventListener("click", () => { state.view = { ...STILL }; drawView(); imageChanged(); });
  byId("theme").addEventListener("click", () => theme());
  byId("link").addEventListener("click", async () => {
    write();
    try { await navigator.clipboard.writeText(location.href); byId("link").textContent = "Copied"; } catch { byId("link").textContent = "It is in the address bar"; }
    setTimeout(() => { byId("link").textContent = "Copy link"; }, 1500);
  });
  // A link pasted into the open page; what the page itself writes there makes no such event.
  addEventListener("hashchange", () => location.reload());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redrawAll(); } });
}

// A run's name, in front of it the colour that stands for the run everywhere.
function named(run) {
  const mark = make("i", { class: "mark" });
  mark.style.background = hue(run);
  return [mark, runs[run].name];
}

function drawRuns() {
  const { config, test_accuracy: accuracy, parameters, dataset, name } = about();
  const words = [name, `${config.model} of ${config.blocks} block${config.blocks === 1 ? "" : "s"}, ${config.routing.toUpperCase()} routing`, `${(parameters / 1e6).toFixed(2)} M parameters`];
  if (accuracy !== null) words.push(`${(100 * accuracy).toFixed(2)} % right on the test images of ${dataset}`);
  byId("about").textContent = words.join(" · ");
  byId("runs").hidden = runs.length < 2;
  byId("runs").replaceChildren(...runs.map((run, n) => {
    const button = make("button", { type: "button", "aria-pressed": String(n === state.run) }, ...named(n));
    button.addEventListener("click", () => { Object.assign(state, { run: n, cls: null, moves: [], layer: null }); byId("sliders").replaceChildren(); drawRuns(); choose.fill(true); drawSeen(); drawInside(); sweep(); remember(); });
    return button;
  }));
  byId("inside-note").textContent = `From the picture (left) to the classes (right). Each ring is a capsule, its size the capsule's length. The fuller it is, the more it contributes to the chosen class; the lines are votes. Choose a class, or a layer to see its coupling.${runs.length > 1 ? ` This is ${name}; the others are at the top.` : ""}`;
  byId("foot").textContent = `Everything here is computed by the running explorer; nothing is loaded from elsewhere or stored.`;
}

async function start() {
  ({ runs } = await ask("about"));
  recall();
  choose = choosing({ about: about(), chosen, run: () => state.run, source: () => state.source, failed });
  wire(); drawRuns(); drawView();
  // An empty test set leaves a blank picture to draw on.
  const { config: { image_shape: [C, H, W] }, test_images: count } = about();
  const first = count ? { index: 0 } : { pixels: btoa("\0".repeat(C * H * W)) };
  state.source ??= first;
  if (!count) byId("tab-draw").click();
  // The picture comes first, what takes longer after it.
  await look(true);
  // A link to an image that is not here.
  if (!seen.length) { state.source = first; await look(true); }
  choose.fill(true); sweep();
}

start().catch(failed);
