// Which part of a map is in sight, and the hands that move it: wheel, drag, pinch.

const LARGEST_CELL = 56;

export class Viewport {
  constructor(rows, keys) {
    Object.assign(this, { rows, keys, x: 0, y: 0, zoom: 1, width: 1, height: 1 });
  }

  // Size of a cell in css pixels.
  get sx() { return (this.width / this.keys) * this.zoom; }
  get sy() { return (this.height / this.rows) * this.zoom; }
  get whole() { return this.zoom <= 1.0001; }
  get largest() { return Math.max(3, LARGEST_CELL / Math.min(this.width / this.keys, this.height / this.rows)); }

  resize(width, height) {
    this.width = Math.max(1, width);
    this.height = Math.max(1, height);
    this.clamp();
  }

  clamp() {
    this.zoom = Math.max(1, Math.min(this.largest, this.zoom));
    this.x = Math.max(0, Math.min(this.keys - this.width / this.sx, this.x));
    this.y = Math.max(0, Math.min(this.rows - this.height / this.sy, this.y));
  }

  fit() { this.zoom = 1; this.clamp(); }

  zoomAt(factor, px, py) {
    const key = this.x + px / this.sx, row = this.y + py / this.sy;
    this.zoom = Math.max(1, Math.min(this.largest, this.zoom * factor));
    this.x = key - px / this.sx;
    this.y = row - py / this.sy;
    this.clamp();
  }

  panBy(px, py) { this.x -= px / this.sx; this.y -= py / this.sy; this.clamp(); }

  // Brings a cell into sight with as little movement as there can be.
  reveal(row, key) {
    const wide = this.width / this.sx, high = this.height / this.sy;
    if (key < this.x) this.x = key;
    else if (key + 1 > this.x + wide) this.x = key + 1 - wide;
    if (row < this.y) this.y = row;
    else if (row + 1 > this.y + high) this.y = row + 1 - high;
    this.clamp();
  }

  toCell(px, py) {
    if (px < 0 || py < 0 || px >= this.width || py >= this.height) return null;
    const key = Math.floor(this.x + px / this.sx), row = Math.floor(this.y + py / this.sy);
    return row < this.rows && key < this.keys ? { row, key } : null;
  }

  toX(key) { return (key - this.x) * this.sx; }
  toY(row) { return (row - this.y) * this.sy; }
  rowsInSight() { return [Math.max(0, Math.floor(this.y)), Math.min(this.rows, Math.ceil(this.y + this.height / this.sy))]; }
  keysInSight() { return [Math.max(0, Math.floor(this.x)), Math.min(this.keys, Math.ceil(this.x + this.width / this.sx))]; }
}

// `origin()` is where the map begins inside the element; calls: moved(), hovered(px, py) or hovered(null), picked(px, py).
export function handleMoves(element, viewport, origin, { moved, hovered, picked }) {
  const fingers = new Map();
  let dragged = false, start = null;
  const at = (event) => {
    const box = element.getBoundingClientRect(), { x, y } = origin();
    return { x: event.clientX - box.left - x, y: event.clientY - box.top - y };
  };
  const settle = () => { element.style.touchAction = viewport().whole ? "pan-y" : "none"; moved(); };

  element.addEventListener("wheel", (event) => {
    // Nothing left to zoom out of: the page scrolls on.
    if (event.deltaY > 0 && viewport().whole) return;
    event.preventDefault();
    const { x, y } = at(event), size = event.deltaMode === 1 ? 20 : 1;
    if (event.shiftKey) viewport().panBy(-event.deltaY * size, 0);
    else viewport().zoomAt(Math.exp(-event.deltaY * size * (event.ctrlKey ? 0.01 : 0.002)), x, y);
    settle();
  }, { passive: false });

  element.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, at(event));
    start = at(event);
    dragged = fingers.size > 1;
    element.setPointerCapture(event.pointerId);
  });
  element.addEventListener("pointermove", (event) => {
    const now = at(event), before = fingers.get(event.pointerId);
    if (!before) return hovered(now.x, now.y);
    if (fingers.size === 1) {
      if (!dragged && Math.hypot(now.x - start.x, now.y - start.y) < 4) return;
      dragged = true;
      viewport().panBy(now.x - before.x, now.y - before.y);
    } else {
      const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
      const apart = (a) => Math.max(8, Math.hypot(a.x - other.x, a.y - other.y));
      viewport().panBy((now.x - before.x) / 2, (now.y - before.y) / 2);
      viewport().zoomAt(apart(now) / apart(before), (now.x + other.x) / 2, (now.y + other.y) / 2);
    }
    fingers.set(event.pointerId, now);
    settle();
  });
  const lift = (event) => {
    if (!fingers.delete(event.pointerId)) return;
    const now = at(event);
    if (!dragged && event.type === "pointerup") picked(now.x, now.y);
  };
  element.addEventListener("pointerup", lift);
  element.addEventListener("pointercancel", lift);
  element.addEventListener("pointerleave", () => fingers.size || hovered(null));
  element.style.touchAction = "pan-y";
}
