// The document and its tensors: decoded when first asked for, exact rows computed when looked at.
// N rows (queries), M keys, H heads, K key heads, d width of a head.

const ELEMENT = { f4: Float32Array, i4: Int32Array, u1: Uint8Array, f2: Uint16Array };
let halfTable = null;

// All 65,536 halves as floats: one look-up a number is faster than any arithmetic on its bits.
function halves() {
  if (halfTable) return halfTable;
  halfTable = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const exponent = (bits >> 10) & 31, fraction = bits & 1023, sign = bits & 0x8000 ? -1 : 1;
    halfTable[bits] = sign * (exponent === 0 ? fraction * 2 ** -24
      : exponent === 31 ? (fraction ? NaN : Infinity) : (1 + fraction / 1024) * 2 ** (exponent - 15));
  }
  return halfTable;
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text), bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

function decode(bytes, { dtype, shape }) {
  const wanted = shape.reduce((a, b) => a * b, ELEMENT[dtype].BYTES_PER_ELEMENT);
  if (bytes.byteLength !== wanted) throw new Error(`a tensor of this file is cut off: ${bytes.byteLength} bytes, not ${wanted}`);
  const raw = new ELEMENT[dtype](bytes.buffer, bytes.byteOffset, bytes.byteLength / ELEMENT[dtype].BYTES_PER_ELEMENT);
  if (dtype !== "f2") return { data: raw, shape };
  const table = halves(), data = new Float32Array(raw.length);
  for (let i = 0; i < raw.length; i++) data[i] = table[raw[i]];
  return { data, shape };
}

// Resolves when the whole file has been read: what stands at its end may come after the page has begun to draw.
const fileRead = new Promise((done) => {
  if (document.readyState !== "loading") done();
  else document.addEventListener("DOMContentLoaded", done);
});

// Tensors that stand in the file itself.
export const inlineSource = {
  here(name) {
    const element = document.getElementById("tensor:" + name);
    // While the file is read, the element that is there last may hold only the first part of its numbers.
    const whole = element && (document.readyState !== "loading" || element.nextSibling);
    return whole ? fromBase64(element.textContent.trim()) : null;
  },
  async fetch(name) {
    await fileRead;
    return inlineSource.here(name) ?? Promise.reject(new Error("the file holds no tensor " + name));
  },
};

// Tensors that a server on this machine hands out.
export function liveSource(base) {
  return {
    here: inlineSource.here,
    async fetch(name) { return new Uint8Array(await getBuffer(base + "/tensor/" + encodeURIComponent(name))); },
  };
}

// The server was there when the page was opened, and does not answer any more.
export class ServerGone extends Error {}

async function getBuffer(url) {
  const answer = await fetch(url).catch((error) => { throw new ServerGone(error.message); });
  if (!answer.ok) throw new Error(answer.status + " " + url);
  return answer.arrayBuffer();
}

export class Doc {
  constructor(json, source) {
    Object.assign(this, json);
    this.source = source;
    this.decoded = new Map();
    this.coming = new Map();
    this.gone = false; // the server, where there was one
    this.onGone = () => {};
    this.shapes = this.layers.map((layer) => [this.axes[layer.rows]?.tokens.length, this.axes[layer.keys]?.tokens.length]);
  }

  has(name) { return name in this.tensors; }

  tensor(name) {
    if (!this.decoded.has(name)) {
      const bytes = this.has(name) ? this.source.here(name) : null;
      if (!bytes) return null;
      this.decoded.set(name, decode(bytes, this.tensors[name]));
    }
    return this.decoded.get(name);
  }

  part(name, index) {
    const whole = this.tensor(name);
    if (!whole) return null;
    const shape = whole.shape.slice(1), size = shape.reduce((a, b) => a * b, 1);
    return { data: whole.data.subarray(index * size, (index + 1) * size), shape };
  }

  async load(...names) {
    const all = await Promise.all(names.filter((name) => this.has(name)).map((name) => this.tensor(name) ?? this.fetched(name)));
    return all[0] ?? null;
  }

  // What a server is asked for; it is asked no more once it is gone.
  async ask(call) {
    try {
      if (this.gone) throw new ServerGone();
      return await call();
    } catch (error) {
      if (error instanceof ServerGone && !this.gone) { this.gone = true; this.onGone(); }
      throw error;
    }
  }

  // What an answer gives, or null where the server is gone.
  async unlessGone(answer) {
    try { return await answer; } catch (error) { if (error instanceof ServerGone) return null; throw error; }
  }

  // Are exact rows of this layer what the server took with it?
  lost(layer) {
    const kind = this.layers[layer].exact;
    return Boolean(this.gone && kind) && (kind === "live" || (kind === "weights" ? [".weights"] : [".q", ".k"]).some((name) => !this.tensor(layer + name)));
  }

  fetched(name) {
    if (!this.coming.has(name)) {
      this.coming.set(name, this.ask(() => this.source.fetch(name)).then((bytes) => {
        this.decoded.set(name, decode(bytes, this.tensors[name]));
        return this.decoded.get(name);
      }).finally(() => this.coming.delete(name)));
    }
    return this.coming.get(name);
  }

  // Fetches what a page may need later, as long as there is room: then it is here, whatever becomes of the server.
  async fetchAhead(room = 2 ** 25) {
    for (const [name, { shape }] of Object.entries(this.tensors)) {
      if (/\.(q|k|v|weights)$/.test(name) && !name.endsWith(".top.weights")) continue;
      room -= shape.reduce((a, b) => a * b, 1);
      if (room < 0 || this.gone) return;
      await this.unlessGone(this.load(name));
    }
  }

  shape(layer) { return this.shapes[layer]; }
  rowsAxis(layer) { return this.axes[this.layers[layer].rows]; }
  keysAxis(layer) { return this.axes[this.layers[layer].keys]; }
  answerAxis() { return ["target", "source"].find((name) => this.axes[name]) ?? this.layers.at(-1).rows; }

  kvHead(layer, head) {
    const { heads, kv_heads } = this.layers[layer];
    return Math.floor(head / (heads / (kv_heads || heads)));
  }

  exact(layer, head) {
    if (!this.layers[layer].exact) return false;
    return !this.exact_heads || this.exact_heads.some(([l, h]) => l === layer && h === head);
  }

  // The keys [from, to) that a row may attend to.
  allowedKeys(layer, row) {
    const [left, right] = this.layers[layer].band ?? [null, null], keys = this.shape(layer)[1];
    return [left === null ? 0 : Math.max(0, row - left), right === null ? keys : Math.min(keys, row + right + 1)];
  }

  allowed(layer, row, key) {
    const [from, to] = this.allowedKeys(layer, row);
    return key >= from && key < to;
  }

  rows(layer, head, from, to) { return this.unlessGone(this.exactRows(layer, head, from, to)); }

  async exactRows(layer, head, from, to) {
    if (!this.exact(layer, head)) return null;
    const kind = this.layers[layer].exact, keys = this.shape(layer)[1];
    if (kind === "live") {
      return new Float32Array(await this.ask(() => getBuffer(`${this.live ?? ""}/rows?layer=${layer}&head=${head}&from=${from}&to=${to}`)));
    }
    if (kind === "weights") {
      await this.load(layer + ".weights");
      return this.part(layer + ".weights", head).data.subarray(from * keys, to * keys);
    }
    await this.load(layer + ".q", layer + ".k");
    const out = new Float32Array((to - from) * keys);
    for (let row = from; row < to; row++) this.weigh(layer, head, row, out.subarray((row - from) * keys, (row - from + 1) * keys));
    return out;
  }

  // softmax over the band of scale q.k, the formula as it is written
  weigh(layer, head, row, out) {
    const d = this.layers[layer].width, scale = this.layers[layer].scale, [from, to] = this.allowedKeys(layer, row);
    const q = this.part(layer + ".q", head).data.subarray(row * d, (row + 1) * d);
    const k = this.part(layer + ".k", this.kvHead(layer, head)).data;
    let largest = -Infinity, total = 0;
    for (let key = from, at = from * d; key < to; key++) {
      let score = 0;
      for (let i = 0; i < d; i++) score += q[i] * k[at++];
      out[key] = score * scale;
      if (out[key] > largest) largest = out[key];
    }
    for (let key = from; key < to; key++) total += out[key] = Math.exp(out[key] - largest);
    for (let key = from; key < to; key++) out[key] /= total;
  }

  // How much of its attention a head leaves on the first token, as a mean over its rows.
  sinkShare(layer, head) {
    const score = this.heads?.[layer]?.[head]?.scores?.first;
    if (score !== undefined && score !== null) return score;
    const first = this.part(layer + ".first", head);
    return first ? first.data.reduce((a, b) => a + b, 0) / first.data.length : null;
  }
}

// Weights times the norms of what is read, each row brought back to the sum that it had.
export function valueWeighted(row, norms) {
  const out = new Float32Array(row.length);
  let before = 0, after = 0;
  for (let i = 0; i < row.length; i++) { before += row[i]; after += out[i] = row[i] * norms[i]; }
  if (after > 0) for (let i = 0; i < row.length; i++) out[i] *= before / after;
  return out;
}
