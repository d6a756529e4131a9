// One head drawn large: pooled map below, exact cells above it where they are in sight, labels and two strips around.
import { sharpContext, cssColour, tokenLabel } from "./dom.js";
import { headMap, mapImage, mapTensors } from "./maps.js";
import { ExactCells } from "./cells.js";
import { Viewport } from "./viewport.js";

const STRIP = 30, GAP = 6, LABEL_CELL = 11;
const MOST_EXACT = 2 ** 23; // numbers fetched for one sight

export class MapView {
  constructor(canvas, doc, t, arrived) {
    Object.assign(this, { canvas, doc, t, arrived, image: document.createElement("canvas"), hover: null, focus: null, viewport: new Viewport(1, 1),
      map: null });
    this.cells = new ExactCells(doc, arrived);
    this.margin = { left: 0, top: 0, right: STRIP + GAP + 16, bottom: STRIP + GAP + 2 };
  }

  // What is shown; resolves when the pooled map is there to be drawn.
  async show(layer, head, values, theme) {
    const { doc } = this, sameShape = this.layer !== undefined && doc.shape(layer).join() === doc.shape(this.layer).join();
    Object.assign(this, { layer, head, values, theme, map: null });
    const asked = (this.asked = {});
    await doc.load(...mapTensors(doc, layer, values));
    if (asked !== this.asked) return false;
    this.cells.use(layer, head);
    if (!sameShape) this.viewport = new Viewport(...doc.shape(layer));
    this.map = headMap(doc, layer, head, values);
    this.exactTop = this.usualLargest();
    if (this.map) mapImage(this.image, this.map, theme);
    // The strips may come later than the map.
    doc.load(layer + ".confidence", layer + ".entropy", layer + ".received").then(() => {
      if (asked !== this.asked) return;
      this.exactTop = this.usualLargest();
      this.arrived();
    });
    return true;
  }

  // Colours of exact cells end where nine rows of ten have their largest weight.
  usualLargest() {
    const largest = this.doc.part(this.layer + ".confidence", this.head)?.data;
    return largest ? Math.max(1e-6, Float32Array.from(largest).sort()[Math.floor(largest.length * 0.9)]) : 1;
  }

  // Room for the labels of this text, in the width that there is.
  measure(width) {
    const { doc, layer } = this, context = this.canvas.getContext("2d"), narrow = width < 520;
    context.font = "12px " + cssColour("--sans");
    const widest = (tokens) => tokens.slice(0, 400).reduce((most, token) => Math.max(most, context.measureText(tokenLabel(token)).width), 30);
    this.margin.left = Math.min(narrow ? 64 : 110, Math.max(58, widest(doc.rowsAxis(layer).tokens) + 14));
    this.margin.top = Math.min(narrow ? 62 : 92, widest(doc.keysAxis(layer).tokens) * 0.8 + 16);
  }

  // As large as there is room, with cells that are not much wider than high.
  resize(widest, tallest) {
    const { margin, viewport } = this, wide = widest - margin.left - margin.right;
    const shape = Math.max(0.45, Math.min(1.3, viewport.rows / viewport.keys));
    const high = Math.max(160, Math.min(wide * shape, tallest - margin.top - margin.bottom)), width = Math.min(wide, (high / shape) * 1.45);
    Object.assign(this, { width: Math.round(width + margin.left + margin.right), height: Math.round(high + margin.top + margin.bottom) });
    viewport.resize(this.width - margin.left - margin.right, this.height - margin.top - margin.bottom);
  }

  get exactHere() { return this.doc.exact(this.layer, this.head); }
  get pooledBin() { return this.map && (this.map.bin[0] > 1 || this.map.bin[1] > 1); }

  // Are single weights what is in sight? A map whose bins are one by one is exact already.
  get exactInSight() {
    if (!this.pooledBin) return true;
    const { viewport } = this, [from, to] = viewport.rowsInSight();
    const fine = Math.min(viewport.sx, viewport.sy) * Math.min(2, devicePixelRatio) >= 0.5;
    if (!this.exactHere || !fine || (to - from) * viewport.keys > MOST_EXACT) return false;
    return !this.doc.lost(this.layer) || this.cells.covers(from, to);
  }

  // Top of the colours that are on the screen now.
  get top() { return this.pooledBin && this.exactInSight ? this.exactTop : this.map?.top; }

  draw() {
    if (!this.map) return;
    const context = sharpContext(this.canvas, this.width, this.height), { margin, viewport } = this;
    this.ink = cssColour("--ink"); this.soft = cssColour("--soft"); this.line = cssColour("--line"); this.accent = cssColour("--accent");
    context.clearRect(0, 0, this.width, this.height);
    context.save();
    context.translate(margin.left, margin.top);
    this.labels(context);
    context.beginPath();
    context.rect(0, 0, viewport.width, viewport.height);
    context.save();
    context.clip();
    this.pooled(context);
    if (this.pooledBin && this.exactInSight) this.exact(context);
    this.masked(context);
    this.marks(context);
    context.restore();
    if (viewport.zoom > 1.5) this.inset(context);
    context.strokeStyle = this.line;
    context.strokeRect(-0.5, -0.5, viewport.width + 1, viewport.height + 1);
    this.strips(context);
    context.restore();
  }

  pooled(context) {
    const { viewport, map } = this, [rowWidth, keyWidth] = map.bin;
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, viewport.x / keyWidth, viewport.y / rowWidth, viewport.width / viewport.sx / keyWidth,
      viewport.height / viewport.sy / rowWidth, 0, 0, viewport.width, viewport.height);
  }

  exact(context) {
    const { viewport } = this, rows = viewport.rowsInSight(), ratio = Math.min(2, devicePixelRatio);
    this.cells.want(...rows);
    context.imageSmoothingEnabled = Math.min(viewport.sx, viewport.sy) * ratio < 1;
    // Edges on whole pixels: neighbours leave no seam.
    const whole = (x) => Math.round(x * ratio) / ratio;
    const keys = viewport.keysInSight();
    this.cells.eachTile(rows, keys, { values: this.values, theme: this.theme, top: this.exactTop }, (canvas, row, key, high, wide) => {
      const top = Math.max(row, rows[0]), bottom = Math.min(row + high, rows[1]), left = Math.max(key, keys[0]), right = Math.min(key + wide, keys[1]);
      const x = whole(viewport.toX(left)), y = whole(viewport.toY(top));
      context.drawImage(canvas, left - key, top - row, right - left, bottom - top, x, y, whole(viewport.toX(right)) - x, whole(viewport.toY(bottom)) - y);
    });
  }

  // Where rows may not read, in grey: nothing there is not the same as zero there.
  masked(context) {
    const { viewport, doc, layer } = this, [left, right] = doc.layers[layer].band ?? [null, null];
    if (left === null && right === null) return;
    const [from, to] = viewport.rowsInSight(), step = Math.max(1, Math.ceil(1 / viewport.sy));
    context.fillStyle = this.line;
    context.globalAlpha = 0.45;
    for (const side of [0, 1]) {
      if ((side ? right : left) === null) continue;
      const edge = side ? viewport.width + 2 : -2;
      context.beginPath();
      context.moveTo(edge, viewport.toY(from));
      for (let row = from; row < to; row += step) {
        const x = Math.max(-2, Math.min(viewport.width + 2, viewport.toX(doc.allowedKeys(layer, row)[side])));
        context.lineTo(x, viewport.toY(row));
        context.lineTo(x, viewport.toY(row + step));
      }
      context.lineTo(edge, viewport.toY(to));
      context.fill();
    }
    context.globalAlpha = 1;
  }

  // The whole map small, with a frame around what is in sight.
  inset(context) {
    const { viewport, image } = this, size = Math.min(84, viewport.width / 4), x = viewport.width - size - 8, y = 8,
      high = size * Math.min(1.3, viewport.height / viewport.width);
    context.imageSmoothingEnabled = true;
    context.fillStyle = this.line;
    context.fillRect(x - 1, y - 1, size + 2, high + 2);
    context.drawImage(image, x, y, size, high);
    context.strokeStyle = this.theme === "dark" ? "#ffffff" : "#000000";
    context.lineWidth = 1;
    const wide = Math.max(3, size / viewport.zoom), tall = Math.max(3, high / viewport.zoom);
    context.strokeRect(x + Math.min(size - wide, (viewport.x / viewport.keys) * size), y + Math.min(high - tall, (viewport.y / viewport.rows) * high),
      wide, tall);
  }

  // The cell (or bin) under the pointer or chosen with keys.
  marks(context) {
    for (const [cell, strong] of [[this.focus, true], [this.hover, false]]) {
      if (!cell) continue;
      const { viewport } = this, [rowWidth, keyWidth] = this.exactInSight ? [1, 1] : this.map.bin;
      const row = Math.floor(cell.row / rowWidth) * rowWidth, key = Math.floor(cell.key / keyWidth) * keyWidth;
      const x = viewport.toX(key), y = viewport.toY(row), wide = Math.max(3, viewport.sx * keyWidth), high = Math.max(3, viewport.sy * rowWidth);
      context.strokeStyle = this.accent;
      context.globalAlpha = strong ? 0.55 : 0.3;
      context.lineWidth = 1;
      context.strokeRect(-2, y - 0.5, viewport.width + 4, high + 1);
      context.strokeRect(x - 0.5, -2, wide + 1, viewport.height + 4);
      context.globalAlpha = 1;
      context.lineWidth = strong ? 2.5 : 1.5;
      context.strokeStyle = this.theme === "dark" ? "#ffffff" : "#000000";
      context.strokeRect(x - 1, y - 1, wide + 2, high + 2);
    }
  }

  labels(context) {
    const { viewport, margin } = this;
    context.font = "12px " + cssColour("--sans");
    context.textBaseline = "middle";
    this.side(viewport.rowsInSight(), viewport.sy, this.doc.rowsAxis(this.layer).tokens, (place, word, chosen) => {
      context.fillStyle = chosen ? this.ink : this.soft;
      context.textAlign = "right";
      context.fillText(fitted(context, word, margin.left - 12), -7, viewport.toY(place + 0.5));
    }, this.focus?.row);
    this.side(viewport.keysInSight(), viewport.sx, this.doc.keysAxis(this.layer).tokens, (place, word, chosen) => {
      context.save();
      context.translate(viewport.toX(place + 0.5) + 1, -7);
      context.rotate(-Math.PI / 3.6);
      context.fillStyle = chosen ? this.ink : this.soft;
      context.textAlign = "left";
      context.fillText(fitted(context, word, margin.top * 1.2 - 8), 0, 0);
      context.restore();
    }, this.focus?.key);
  }

  // Tokens where they fit beside their cell, else round numbers of places.
  side([from, to], size, tokens, write, chosen) {
    if (size >= LABEL_CELL) {
      for (let i = from; i < to; i++) write(i, tokenLabel(tokens[i]), i === chosen);
      return;
    }
    const step = [1, 2, 5].flatMap((x) => [0, 1, 2, 3, 4, 5].map((p) => x * 10 ** p)).sort((a, b) => a - b).find((x) => x * size >= 56) ?? tokens.length;
    for (let i = Math.ceil(from / step) * step; i < to; i += step) write(i - 0.5, String(i), false);
  }

  // Entropy of each row at the right, what each key receives (as its square root: a sink would hide the rest) below.
  strips(context) {
    const { viewport, doc, layer, head, t } = this;
    const entropy = doc.part(layer + ".entropy", head)?.data, received = doc.part(layer + ".received", head)?.data;
    context.fillStyle = this.accent;
    context.globalAlpha = 0.75;
    if (entropy) bars(entropy, viewport.rowsInSight(), viewport.sy, (row) => viewport.toY(row), viewport.height,
      (at, size, share) => context.fillRect(viewport.width + GAP, at, share * STRIP, size));
    if (received) bars(received, viewport.keysInSight(), viewport.sx, (key) => viewport.toX(key), viewport.width,
      (at, size, share) => context.fillRect(at, viewport.height + GAP, size, Math.sqrt(share) * STRIP));
    context.globalAlpha = 1;
    context.fillStyle = this.soft;
    context.font = "10.5px " + cssColour("--sans");
    context.textAlign = "right";
    context.textBaseline = "top";
    if (received) context.fillText(t("received.strip"), -7, viewport.height + GAP);
    context.translate(viewport.width + GAP + STRIP + 3, 0);
    context.rotate(-Math.PI / 2);
    if (entropy) context.fillText(t("entropy.strip"), 0, 0);
  }
}

function fitted(context, word, room) {
  if (context.measureText(word).width <= room) return word;
  let end = Math.min(word.length, 40);
  while (end > 1 && context.measureText(word.slice(0, end) + "…").width > room) end--;
  return word.slice(0, end) + "…";
}

// One bar a place, or one a pixel with the mean of the places in it, as a share of the longest in sight.
function bars(data, [from, to], size, toPixel, length, draw) {
  let most = 1e-12;
  for (let i = from; i < to; i++) if (data[i] > most) most = data[i];
  if (size >= 2) {
    const gap = size > 5 ? 1 : 0;
    for (let i = from; i < to; i++) {
      const start = Math.max(0, toPixel(i)), stop = Math.min(length, toPixel(i + 1));
      if (stop > start) draw(start, stop - start - gap, Math.max(0, data[i]) / most);
    }
    return;
  }
  for (let pixel = 0; pixel < length; pixel++) {
    const first = Math.floor(pixel / size - toPixel(0) / size),
      last = Math.min(data.length, Math.max(first + 1, Math.floor((pixel + 1) / size - toPixel(0) / size)));
    let sum = 0;
    for (let i = first; i < last; i++) sum += data[i];
    draw(pixel, 1, Math.max(0, sum / Math.max(1, last - first)) / most);
  }
}
