// Pictures, heat and lines.

export const byId = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const numbers = (name) => {
  const hex = colour(name).slice(1);
  return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
};
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// From the card's colour to the accent's.
export function ramp() {
  const from = numbers("card"), to = numbers("accent");
  return (t) => { const s = Math.sqrt(Math.min(Math.max(t, 0), 1)); return from.map((low, c) => low + s * (to[c] - low)); };
}

// uint8 [C,H,W] on a canvas of just those pixels; channels nobody has colours for are averaged.
export function picture(canvas, content, [C, H, W]) {
  if (canvas.width !== W || canvas.height !== H) { canvas.width = W; canvas.height = H; }
  const image = new ImageData(W, H), place = H * W;
  for (let p = 0; p < place; p++) {
    let mean = 0;
    for (let c = 0; c < C; c++) mean += content[c * place + p] / C;
    for (let c = 0; c < 3; c++) image.data[4 * p + c] = C === 3 ? content[c * place + p] : mean;
    image.data[4 * p + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

export function download(canvas, name, factor = 1) {
  const copy = make("canvas", { width: canvas.width * factor, height: canvas.height * factor });
  const pen = copy.getContext("2d");
  pen.imageSmoothingEnabled = false;
  pen.drawImage(canvas, 0, 0, copy.width, copy.height);
  copy.toBlob((blob) => {
    const address = URL.createObjectURL(blob);
    make("a", { href: address, download: name }).click();
    URL.revokeObjectURL(address);
  });
}

// Lines over shared x values; each {name, values, colour, dash, strong}; names stand at their ends.
export function chart(place, xs, lines, { largest, now, label, ticks }) {
  const step = [0.05, 0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100].find((size) => largest / size <= 5) ?? largest, top = step * Math.ceil(largest / step);
  const width = Math.max(place.clientWidth, 260), height = 210, left = 34, longest = Math.max(...lines.filter(({ strong }) => strong).map(({ name }) => name.length)), right = width - Math.max(78, 14 + 7.2 * longest), low = height - 26;
  const [first, last] = [xs[0], xs[xs.length - 1]];
  const X = (x) => left + (x - first) / (last - first || 1) * (right - left), Y = (y) => low - y / top * (low - 10);
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (let y = 0; y < top + step / 2; y += step) {
    drawn.append(svg("line", { class: "axis", x1: left, x2: right, y1: Y(y), y2: Y(y) }),
      svg("text", { x: left - 6, y: Y(y) + 4, "text-anchor": "end" }, +y.toFixed(2)));
  }
  for (const [x, word] of ticks) drawn.append(svg("text", { x: X(x), y: height - 6, "text-anchor": "middle" }, word));
  if (now !== undefined) drawn.append(svg("line", { class: "now", x1: X(now), x2: X(now), y1: 6, y2: low }));
  const words = [];
  for (const { name, values, colour, dash, strong, from = 0 } of lines) {
    const points = values.map((y, n) => `${X(xs[n + from]).toFixed(1)},${Y(Math.min(y, top)).toFixed(1)}`).join(" ");
    const line = svg("polyline", { points, fill: "none", stroke: colour, "stroke-width": strong ? 2.5 : 1.2 });
    if (dash) line.setAttribute("stroke-dasharray", dash);
    drawn.append(line);
    if (strong && name && values.length) words.push({ name, colour, x: X(xs[values.length - 1 + from]) + 6, y: Y(values[values.length - 1]) + 4 });
  }
  // From the lowest up, so that words keep the order of their lines.
  let free = height;
  for (const { name, colour, x, y } of words.sort((a, b) => b.y - a.y)) {
    const word = svg("text", { class: "strong", x, y: Math.min(y, free) }, name);
    word.style.fill = colour;
    drawn.append(word);
    free = Math.min(y, free) - 13;
  }
  place.replaceChildren(drawn);
}
