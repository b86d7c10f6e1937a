// The way through the network: who speaks for a class, layer by layer, and the coupling of one layer.
import { colour, picture, ramp, svg } from "./paint.js";

const MOST_CLASSES = 24;

export const layerName = (name) => {
  const layer = /^trunk\.layers\.(\d+)$/.exec(name);
  if (layer) return `block ${Math.floor(layer[1] / 2) + 1}, layer ${layer[1] % 2 + 1}`;
  return { primary: "primary capsules", caps1: "CapsLayer 1", caps2: "class capsules" }[name] ?? name;
};

// Primary capsules over the input: the light of each falls on what it can see.
export function overlay(canvas, input, shape, share, { rows, columns, stride, field }) {
  const [, H, W] = shape, factor = 8, small = document.createElement("canvas");
  picture(small, input, shape);
  canvas.width = W * factor; canvas.height = H * factor;
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = false;
  pen.globalAlpha = 0.45;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(small, 0, 0, canvas.width, canvas.height);
  const places = new Float32Array(rows * columns);
  share.forEach((value, i) => { places[i % places.length] += value; });
  const top = Math.max(...places), hue = colour("other");
  places.forEach((value, p) => {
    const x = (stride * (p % columns) + field / 2) * factor, y = (stride * Math.floor(p / columns) + field / 2) * factor;
    pen.globalAlpha = 0.92 * value / top;
    pen.fillStyle = hue;
    pen.beginPath(); pen.arc(x, y, factor * stride * 0.46 * (0.35 + 0.65 * Math.sqrt(value / top)), 0, 7); pen.fill();
  });
  pen.globalAlpha = 1;
}

// Two short lines above a column.
const heading = (name, narrow) => {
  const layer = /^trunk\.layers\.(\d+)$/.exec(name), [block, number] = layer ? [Math.floor(layer[1] / 2) + 1, layer[1] % 2 + 1] : [];
  if (layer) return narrow ? ["block", `${block}.${number}`] : [`block ${block}`, `layer ${number}`];
  return name === "caps1" ? [narrow ? "Caps" : "CapsLayer", "1"] : ["class", narrow ? "caps" : "capsules"];
};

// Columns of capsules: a ring's size is a length, its filling the share in the class, lines are votes. Of many
// classes, the longest and the chosen one are shown.
export function flow(place, { layers, flows, shares }, names, chosen, selected, { pickLayer, pickClass }) {
  const columns = layers.slice(1), end = columns.length - 1;
  const shown = columns.map(({ lengths: { values } }, c) => {
    const all = [...values.keys()], longest = all.toSorted((a, b) => values[b] - values[a]).filter((k) => k !== chosen);
    return c < end || all.length <= MOST_CLASSES ? all : [chosen, ...longest.slice(0, MOST_CLASSES - 1)].toSorted((a, b) => a - b);
  });
  const gaps = shown.map(({ length: n }, c) => Math.max(c === end ? 18 : 6, Math.min(30, Math.max(380, Math.min(576, 18 * n)) / n)));
  const room = Math.max(...shown.map(({ length: n }, c) => n * gaps[c])), height = room + 44;
  const wide = Math.max(...shown[end].map((k) => names[k].length)) * 7 + 30, narrow = place.clientWidth < 500;
  const between = Math.max(narrow ? 46 : 74, Math.min(220, (place.clientWidth - wide - 60) / Math.max(end, 1)));
  const width = between * end + wide + 60, half = Math.min(32, between / 2 - 1);
  const X = (c) => 34 + c * between, Y = (c, j) => 34 + room / 2 + (shown[c].indexOf(j) - (shown[c].length - 1) / 2) * gaps[c];
  const drawn = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  const backs = columns.map((layer, c) => {
    const last = c === end, [head, rest] = heading(layer.name, narrow), some = shown[c].length < layer.lengths.values.length;
    const group = svg("g", { class: `column${c === selected ? " on" : ""}`, tabindex: 0, role: "button", "aria-pressed": String(c === selected), "aria-label": `Coupling into ${layerName(layer.name)}` },
      svg("rect", { x: X(c) - half, y: 1, width: last ? half + wide : 2 * half, height: height - 2, rx: 10 }),
      svg("text", { x: X(c), y: 15, "text-anchor": "middle" }, head), svg("text", { x: X(c), y: 28, "text-anchor": "middle" }, some ? `${shown[c].length} of ${layer.lengths.values.length}` : rest));
    group.addEventListener("click", () => pickLayer(c));
    group.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pickLayer(c); } });
    return group;
  });
  drawn.append(...backs);
  for (let c = 1; c < columns.length; c++) {
    const votes = flows[c - 1], above = shares[c + 1];
    for (let j = 0; j < votes.shape[0]; j++) for (let i = 0; i < votes.shape[1]; i++) {
      const weight = above.at(chosen, j) * votes.at(j, i);
      if (weight < 0.012 || !shown[c].includes(j)) continue;
      const [x, y, to, high] = [X(c - 1), Y(c - 1, i), X(c), Y(c, j)], half = (x + to) / 2;
      drawn.append(svg("path", { class: "edge", d: `M${x} ${y}C${half} ${y} ${half} ${high} ${to} ${high}`, "stroke-width": Math.max(0.6, 14 * weight), "stroke-opacity": Math.min(0.75, 0.18 + 1.6 * weight) }));
    }
  }
  columns.forEach((layer, c) => {
    const { values, top } = layer.lengths, share = shares[c + 1], largest = Math.max(...values.map((_, j) => share.at(chosen, j)));
    const isClasses = c === end, gap = gaps[c];
    shown[c].forEach((j) => {
      const length = values[j], part = share.at(chosen, j), radius = 2 + (Math.min(gap, 24) * 0.42 - 2) * Math.sqrt(length / Math.max(top, isClasses ? 1 : 0));
      const dot = svg("g", isClasses ? { class: `class${j === chosen ? " on" : ""}` } : {},
        svg("circle", { class: "ring", cx: X(c), cy: Y(c, j), r: radius }),
        svg("circle", { class: "dot", cx: X(c), cy: Y(c, j), r: radius, "fill-opacity": (0.06 + 0.94 * part / (largest || 1)).toFixed(3) }),
        svg("title", {}, `${isClasses ? names[j] : `capsule ${j + 1}`}, ${layerName(layer.name)}: length ${length.toFixed(2)}, ${(100 * part).toFixed(0)} % of ${names[chosen]}`));
      if (isClasses) {
        dot.prepend(svg("rect", { x: X(c) - 16, y: Y(c, j) - gap / 2, width: wide, height: gap, fill: "transparent" }));
        dot.append(svg("text", { x: X(c) + 20, y: Y(c, j) + 4 }, names[j]));
        dot.addEventListener("click", (event) => { event.stopPropagation(); pickClass(j); });
      }
      drawn.append(dot);
    });
  });
  const focused = place.contains(document.activeElement) ? [...place.querySelectorAll(".column")].indexOf(document.activeElement) : -1;
  place.replaceChildren(drawn);
  if (focused >= 0) backs[focused]?.focus({ preventScroll: true });
}

// The coupling of one layer: a row for each capsule of it, its length in front.
export function heat(canvas, layer, rowNames, note) {
  const { shape: [J, I], top } = layer.coupling, room = canvas.parentElement.clientWidth || 600;
  const front = 12 + 7.2 * Math.max(...rowNames.map((name) => name.length)), bar = 76, left = Math.ceil(front + bar + 12);
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const high = Math.max(12, Math.min(26, Math.floor(360 / J))), step = Math.max((room - left) / I, I > 400 ? 1.5 : 2), width = Math.ceil(left + step * I);
  canvas.width = width * ratio; canvas.height = high * J * ratio;
  canvas.style.width = `${width}px`; canvas.style.height = `${high * J}px`;
  const pen = canvas.getContext("2d"), shade = ramp();
  pen.scale(ratio, ratio);
  pen.textBaseline = "middle"; pen.font = `${Math.min(12, high - 1)}px system-ui, sans-serif`;
  const small = document.createElement("canvas");
  small.width = I; small.height = J;
  const image = new ImageData(I, J);
  layer.coupling.values.forEach((c, n) => { const [r, g, b] = shade(c / top); image.data.set([r, g, b, 255], 4 * n); });
  small.getContext("2d").putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, left, 0, step * I, high * J);
  for (let j = 0; j < J; j++) {
    const y = j * high, length = layer.lengths.values[j];
    pen.fillStyle = colour("soft"); pen.fillText(rowNames[j], 4, y + high / 2 + 1);
    pen.fillStyle = colour("line"); pen.fillRect(front, y + high / 2 - 3, bar, 6);
    pen.fillStyle = colour("other"); pen.fillRect(front, y + high / 2 - 3, bar * Math.min(length / Math.max(layer.lengths.top, 1), 1), 6);
    pen.strokeStyle = colour("card"); pen.lineWidth = 1; pen.beginPath(); pen.moveTo(left, y); pen.lineTo(width, y); pen.stroke();
  }
  canvas.onpointermove = ({ offsetX, offsetY }) => {
    const i = Math.floor((offsetX - left) / step), j = Math.floor(offsetY / high);
    if (j >= 0 && j < J) note(i >= 0 && i < I ? `capsule ${i + 1} below sends ${layer.coupling.at(j, i).toFixed(3)} of itself to ${rowNames[j]}` : `${rowNames[j]}: length ${layer.lengths.values[j].toFixed(3)}`);
  };
  canvas.onpointerleave = () => note("");
}

export function legend(canvas) {
  const pen = canvas.getContext("2d"), shade = ramp();
  for (let x = 0; x < canvas.width; x++) { pen.fillStyle = `rgb(${shade(x / canvas.width).join(" ")})`; pen.fillRect(x, 0, 1, canvas.height); }
}
