// Where an image comes from: the test set, a drawing, a file.
import { ask, bytes, latest, send, text } from "./api.js";
import { byId, make, picture } from "./paint.js";

export function choosing({ about, chosen, run, source, failed }) {
  const [C, H, W] = about.config.image_shape;
  tabs();

  // The test set.
  const mark = () => { for (const button of byId("grid").children) button.setAttribute("aria-pressed", String(source()?.index === +button.dataset.index)); };
  let next = 0;
  for (const [k, name] of about.classes.entries()) byId("filter-class").append(make("option", { value: k }, name));
  const fill = latest(async (fresh) => {
    if (fresh) next = 0;
    const query = new URLSearchParams({ run: run(), start: next, which: byId("filter-which").value, label: byId("filter-class").value });
    const { images, next: after, total } = await ask(`grid?${query}`);
    const buttons = images.map((image) => {
      const canvas = make("canvas");
      picture(canvas, bytes(image.pixels), [C, H, W]);
      const right = image.label === image.seen;
      const words = `${about.classes[image.label]}, seen as ${about.classes[image.seen]}`;
      const button = make("button", { type: "button", class: right ? "" : "wrong", title: words, "aria-label": words, "aria-pressed": "false", "data-index": image.index }, canvas);
      button.addEventListener("click", () => chosen({ index: image.index }));
      return button;
    });
    fresh ? byId("grid").replaceChildren(...buttons) : byId("grid").append(...buttons);
    next = after;
    mark();
    byId("more").hidden = after === null;
    byId("more").textContent = images.length ? "More" : "Look further";
    const shown = byId("grid").children.length, all = `${about.tested}'s ${total.toLocaleString("en")}`;
    byId("grid-note").textContent = !total ? `No test images here: ${about.why_no_images}` : after === null ? `${shown} of ${all}` : `${shown} in the first ${after.toLocaleString("en")} of ${all}`;
  }, failed);
  for (const id of ["filter-class", "filter-which"]) byId(id).addEventListener("change", () => fill(true));
  byId("more").addEventListener("click", () => fill(false));

  // A drawing.
  const pad = byId("pad"), pen = pad.getContext("2d", { willReadFrequently: true });
  let last = null;
  const clear = () => { pen.fillStyle = "#000"; pen.fillRect(0, 0, pad.width, pad.height); };
  const place = (event) => {
    const box = pad.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width * pad.width, (event.clientY - box.top) / box.height * pad.height];
  };
  const stroke = (event) => {
    const [x, y] = place(event);
    pen.strokeStyle = "#fff"; pen.lineWidth = 22; pen.lineCap = pen.lineJoin = "round";
    pen.beginPath(); pen.moveTo(...(last ?? [x, y])); pen.lineTo(x, y + 0.01); pen.stroke();
    last = [x, y];
    told();
  };
  const told = () => chosen({ pixels: text(drawing()) });
  const drawing = () => {
    const small = make("canvas", { width: W, height: H }), to = small.getContext("2d", { willReadFrequently: true });
    to.imageSmoothingQuality = "high";
    to.fillRect(0, 0, W, H);
    const box = byId("centre").checked ? bounds(pen.getImageData(0, 0, pad.width, pad.height)) : null;
    if (box) {
      // The longer side of the ink is 20 of 28 pixels, the centre of its mass the picture's.
      const scale = 20 / 28 * Math.min(W, H) / Math.max(box.width, box.height);
      to.setTransform(scale, 0, 0, scale, W / 2 - scale * box.x, H / 2 - scale * box.y);
      to.drawImage(pad, 0, 0);
    } else to.drawImage(pad, 0, 0, W, H);
    const { data } = to.getImageData(0, 0, W, H);
    return Uint8Array.from({ length: C * H * W }, (_, n) => data[4 * (n % (H * W))]);
  };
  pad.addEventListener("pointerdown", (event) => { pad.setPointerCapture(event.pointerId); last = null; stroke(event); event.preventDefault(); });
  pad.addEventListener("pointermove", (event) => { if (event.buttons && last) stroke(event); });
  for (const kind of ["pointerup", "pointercancel"]) pad.addEventListener(kind, () => { last = null; });
  byId("clear").addEventListener("click", () => { clear(); told(); });
  byId("centre").addEventListener("change", told);
  clear();

  // A file.
  let uploaded = null;
  const show = () => chosen({ pixels: text(byId("invert").checked ? uploaded.map((v) => 255 - v) : uploaded) });
  const take = latest(async (file) => {
    if (file.size > 5e6) throw new Error(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; at most 5 MB can be uploaded`);
    uploaded = await send(`upload?run=${run()}`, file);
    // Digits here are bright on dark: a bright edge is paper.
    if (C === 1) byId("invert").checked = edge(uploaded, H, W) > 127;
    show();
  }, failed);
  byId("file").addEventListener("change", (event) => { if (event.target.files[0]) take(event.target.files[0]); });
  byId("invert").addEventListener("change", () => { if (uploaded) show(); });
  const drop = byId("drop");
  for (const kind of ["dragover", "dragleave", "drop"]) drop.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });

  return { fill, mark };
}

// The arrows move between tabs, as everywhere.
function tabs() {
  const all = ["test", "draw", "upload"].map((id) => byId(`tab-${id}`));
  const open = (tab) => {
    for (const other of all) {
      other.setAttribute("aria-selected", String(other === tab));
      other.tabIndex = other === tab ? 0 : -1;
      byId(other.getAttribute("aria-controls")).hidden = other !== tab;
    }
  };
  for (const [n, tab] of all.entries()) {
    tab.addEventListener("click", () => open(tab));
    tab.addEventListener("keydown", ({ key }) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
      if (!step) return;
      const to = all[(n + step + all.length) % all.length];
      to.focus(); open(to);
    });
  }
}

// The size of the ink and the centre of its mass.
function bounds({ data, width, height }) {
  let [left, right, top, bottom, mass, x, y] = [width, -1, height, -1, 0, 0, 0];
  for (let row = 0; row < height; row++) for (let column = 0; column < width; column++) {
    const ink = data[4 * (row * width + column)];
    if (ink < 40) continue;
    left = Math.min(left, column); right = Math.max(right, column); top = Math.min(top, row); bottom = Math.max(bottom, row);
    mass += ink; x += ink * column; y += ink * row;
  }
  return mass ? { width: right - left + 1, height: bottom - top + 1, x: x / mass, y: y / mass } : null;
}

function edge(content, H, W) {
  let sum = 0, count = 0;
  for (let p = 0; p < H * W; p++) {
    const row = Math.floor(p / W), column = p % W;
    if (row && column && row < H - 1 && column < W - 1) continue;
    sum += content[p]; count++;
  }
  return sum / count;
}
