// Asking the server: one question of a kind at a time, the newest waits, those between are dropped.

export class Refusal extends Error {}

export async function ask(path, fields) {
  const options = fields === undefined ? {} : {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(fields),
  };
  return (await answered(fetch(`api/${path}`, options))).json();
}

export async function send(path, content) {
  const response = await answered(fetch(`api/${path}`, { method: "POST", body: content }));
  return new Uint8Array(await response.arrayBuffer());
}

async function answered(request) {
  let response;
  try { response = await request; } catch { throw new Refusal("The explorer does not answer; is it still running?"); }
  if (response.ok) return response;
  let why = `The explorer answered ${response.status}`;
  try { why = (await response.json()).error; } catch { /* Its status says enough. */ }
  throw new Refusal(why);
}

// A function that runs a task at once, or after the one under way, with the newest arguments.
export function latest(task, failed) {
  let busy = false, next = null;
  return async function run(...given) {
    if (busy) { next = given; return; }
    busy = true;
    try { await task(...given); failed(null); } catch (error) { failed(error); }
    busy = false;
    if (next) { const again = next; next = null; run(...again); }
  };
}

export function bytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

export function text(content) {
  let letters = "";
  for (const value of content) letters += String.fromCharCode(value);
  return btoa(letters);
}

// Numbers >= 0 as the server packs them.
export function unpack({ shape, top, data }) {
  const raw = bytes(data), view = new DataView(raw.buffer), values = new Float32Array(raw.length / 2);
  for (let i = 0; i < values.length; i++) values[i] = view.getUint16(2 * i, true) * top / 65535;
  return { shape, top, values, at: (j, i) => values[j * shape[1] + i] };
}
