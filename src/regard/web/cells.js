// Exact cells of one head: fetched in chunks of rows for what is in sight, painted in tiles, kept while there is room.
import { valueWeighted } from "./data.js";
import { paint } from "./scales.js";
import { isWeighted } from "./maps.js";

const ROOM = 2 ** 24; // numbers kept in all
const TILE_KEYS = 1024;
const SLICE_MS = 10; // of computing before the page may draw again

export class ExactCells {
  constructor(doc, arrived) {
    Object.assign(this, { doc, arrived, chunks: new Map(), floats: 0, queue: [], working: false });
    this.use(0, 0);
  }

  use(layer, head) {
    Object.assign(this, { layer, head, queue: [] });
    this.keys = this.doc.shape(layer)[1];
    // A chunk is computed in one go: few rows where rows are long.
    this.height = Math.max(4, Math.min(32, 2 ** Math.floor(Math.log2(2 ** 18 / this.keys))));
  }

  name(chunk) { return `${this.layer}.${this.head}.${chunk}`; }
  get waiting() { return this.queue.length > 0 || this.working; }

  // Asks for the rows in sight, those in the middle first.
  want(from, to) {
    const middle = (from + to) / 2 / this.height, wanted = [];
    for (let chunk = Math.floor(from / this.height); chunk * this.height < to; chunk++) if (!this.chunks.has(this.name(chunk))) wanted.push(chunk);
    this.queue = wanted.sort((a, b) => Math.abs(a + 0.5 - middle) - Math.abs(b + 0.5 - middle));
    if (!this.working && this.queue.length) this.work();
  }

  // Are all of these rows here?
  covers(from, to) {
    for (let chunk = Math.floor(from / this.height); chunk * this.height < to; chunk++) if (!this.chunks.has(this.name(chunk))) return false;
    return true;
  }

  async work() {
    this.working = true;
    try {
      let since = performance.now();
      while (this.queue.length) {
        const { layer, head } = this, chunk = this.queue.shift(), name = this.name(chunk), from = chunk * this.height;
        const raw = await this.doc.rows(layer, head, from, Math.min(this.doc.shape(layer)[0], from + this.height));
        if (!raw || !await this.doc.unlessGone(this.doc.load(layer + ".norms").then(() => true))) break;
        this.keep(name, { raw, from, layer, head, tiles: new Map() });
        if (performance.now() - since < SLICE_MS) continue;
        this.arrived();
        await new Promise((next) => setTimeout(next));
        since = performance.now();
      }
    } finally {
      this.working = false;
      this.arrived();
    }
  }

  keep(name, chunk) {
    this.chunks.set(name, chunk);
    this.floats += chunk.raw.length;
    // A Map gives its oldest entry first; `chunk` renews those that are looked at.
    for (const [oldest, old] of this.chunks) {
      if (this.floats <= ROOM) break;
      this.chunks.delete(oldest);
      this.floats -= old.raw.length;
    }
  }

  chunk(index) {
    const name = this.name(index), found = this.chunks.get(name);
    if (found) { this.chunks.delete(name); this.chunks.set(name, found); }
    return found;
  }

  // One row as it is, or null while it is not here.
  row(row) {
    const found = this.chunk(Math.floor(row / this.height));
    return found ? found.raw.subarray((row - found.from) * this.keys, (row - found.from + 1) * this.keys) : null;
  }

  shown(chunk, values) {
    if (!isWeighted(this.doc, chunk.layer, values)) return chunk.raw;
    if (!chunk.weighted) {
      const norms = this.doc.part(chunk.layer + ".norms", chunk.head).data;
      chunk.weighted = new Float32Array(chunk.raw.length);
      for (let at = 0; at < chunk.raw.length; at += this.keys) chunk.weighted.set(valueWeighted(chunk.raw.subarray(at, at + this.keys), norms), at);
    }
    return chunk.weighted;
  }

  // A canvas with one pixel a weight: some rows by up to 1,024 keys.
  tile(index, block, values, theme, top) {
    const chunk = this.chunk(index), look = values + theme + top;
    if (!chunk) return null;
    if (chunk.look !== look) { chunk.tiles.clear(); chunk.look = look; }
    if (!chunk.tiles.has(block)) chunk.tiles.set(block, this.paintTile(this.shown(chunk, values), block, theme, top));
    return chunk.tiles.get(block);
  }

  paintTile(data, block, theme, top) {
    const rows = data.length / this.keys, from = block * TILE_KEYS, width = Math.min(TILE_KEYS, this.keys - from);
    const canvas = document.createElement("canvas");
    canvas.width = width;
    canvas.height = rows;
    const context = canvas.getContext("2d"), image = context.createImageData(width, rows), pixels = new Uint32Array(image.data.buffer);
    for (let row = 0; row < rows; row++) {
      const start = row * this.keys + from;
      paint(data.subarray(start, start + width), top, theme, pixels.subarray(row * width, (row + 1) * width));
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }

  // Calls draw(canvas, row, key, rows, keys) for each tile in sight that is here.
  eachTile([fromRow, toRow], [fromKey, toKey], look, draw) {
    for (let index = Math.floor(fromRow / this.height); index * this.height < toRow; index++) {
      for (let block = Math.floor(fromKey / TILE_KEYS); block * TILE_KEYS < toKey; block++) {
        const canvas = this.tile(index, block, look.values, look.theme, look.top);
        if (canvas) draw(canvas, index * this.height, block * TILE_KEYS, canvas.height, canvas.width);
      }
    }
  }
}
