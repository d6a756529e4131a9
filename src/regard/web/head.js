// One head: the map with its hands and keys, its legend, and the numbers beside it.
import { el, onceAFrame, formatNumber } from "./dom.js";
import { colour } from "./scales.js";
import { handleMoves } from "./viewport.js";
import { MapView } from "./mapview.js";
import { Readout } from "./readout.js";

const SIDE_BY_SIDE = 820, SIDE = 320; // css pixels: of the view, and of the numbers beside the map

export const headView = {
  id: "head",
  perHead: true,
  available: () => true,

  mount(root, doc, state, t) {
    const canvas = el("canvas", { class: "head-canvas", tabindex: 0, role: "application", id: "head-map" });
    const badge = el("span", { class: "head-badge", id: "head-badge", role: "status" }), legend = el("span", { class: "head-legend" });
    const box = el("div", { class: "head-box" }, canvas), side = el("aside", { class: "head-side" }), both = el("div", { class: "head-both" }, box, side);
    const frame = onceAFrame(draw), view = new MapView(canvas, doc, t, () => { frame(); readout.show(view.hover ?? view.focus); });
    const readout = new Readout(side, doc, view, t);
    const press = (sign, word, act) => el("button", { type: "button", class: "plain", "aria-label": t(word), title: t(word),
      onclick: () => { act(); frame(); } }, sign);
    root.append(el("div", { class: "head-tools" },
      el("span", { class: "head-zoom" }, press("+", "zoomIn", () => zoom(1.6)), press("−", "zoomOut", () => zoom(1 / 1.6)),
        press("⤢", "fit", () => view.viewport.fit())), badge, legend),
      both, el("p", { class: "note" }, t("honesty")));

    function zoom(factor) {
      const { viewport, focus } = view, inSight = focus && viewport.toX(focus.key) >= 0 && viewport.toX(focus.key) < viewport.width &&
        viewport.toY(focus.row) >= 0 && viewport.toY(focus.row) < viewport.height;
      viewport.zoomAt(factor, inSight ? viewport.toX(focus.key + 0.5) : viewport.width / 2, inSight ? viewport.toY(focus.row + 0.5) : viewport.height / 2);
    }

    function draw() {
      view.draw();
      if (!view.map) return;
      const pooled = view.pooledBin && !view.exactInSight, exactWord = view.pooledBin && view.cells.waiting ? "exact.loading" : "exact.cells";
      const pooledWord = !view.exactHere ? "pooled.none" : doc.lost(view.layer) ? "pooled.gone" : "pooled.zoom";
      const text = t(pooled ? pooledWord : exactWord, { rows: view.map.bin[0], keys: view.map.bin[1] });
      // Words are written when they change, not with every frame of a drag.
      if (badge.textContent !== text) { badge.textContent = text; badge.classList.toggle("head-pooled", pooled); }
      drawLegend(legend, view.top, view.pooledBin, view.theme, t);
    }

    function size() {
      const width = Math.floor(both.clientWidth), beside = width >= SIDE_BY_SIDE;
      if (!width || !view.map) return;
      view.measure(width);
      // Where the numbers stand below the map, both should be in sight.
      const room = innerHeight - both.getBoundingClientRect().top - scrollY - 20;
      if (beside) view.resize(width - SIDE, Math.max(400, room));
      else view.resize(width, Math.max(320, innerHeight * 0.56));
      both.style.gridTemplateColumns = beside ? `${view.width}px minmax(0, 420px)` : "";
      frame();
    }

    async function show(now) {
      view.focus = { row: now.row, key: now.key };
      view.hover = null;
      canvas.setAttribute("aria-label", t("head.map", { layer: doc.layers[now.layer].label, head: now.head + 1, rows: doc.shape(now.layer)[0],
        keys: doc.shape(now.layer)[1] }));
      if (!await view.show(now.layer, now.head, now.values, now.theme)) return;
      size();
      draw();
      readout.show(view.focus);
    }

    handleMoves(canvas, () => view.viewport, () => ({ x: view.margin.left, y: view.margin.top }), {
      moved: frame,
      hovered(x, y) { view.hover = x === null ? null : view.viewport.toCell(x, y); readout.show(view.hover ?? view.focus); frame(); },
      picked(x, y) { const cell = view.viewport.toCell(x, y); if (cell) state.set(cell); },
    });
    canvas.addEventListener("dblclick", (event) => { view.viewport.zoomAt(2.5, event.offsetX - view.margin.left, event.offsetY - view.margin.top); frame(); });
    canvas.addEventListener("keydown", (event) => {
      const act = { "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), 0: () => view.viewport.fit() }[event.key];
      if (act) act();
      else if (!moveFocus(event, view, state)) return;
      event.preventDefault();
      event.stopPropagation();
      frame();
    });
    new ResizeObserver(size).observe(both);
    state.subscribe((now, changed) => {
      if (["layer", "head", "values", "theme"].some((name) => changed.has(name))) return show(now);
      if (!changed.has("row") && !changed.has("key")) return;
      view.focus = { row: now.row, key: now.key };
      if (canvas === document.activeElement) view.viewport.reveal(now.row, now.key);
      readout.show(view.focus, canvas === document.activeElement);
      frame();
    });
    show(state.get());
  },
};

// One cell, or one bin where bins are what one sees; ten with Shift.
function moveFocus(event, view, state) {
  const way = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [-10, 0], PageDown: [10, 0] }[event.key];
  if (!way || !view.map) return false;
  const [rowWidth, keyWidth] = view.exactInSight ? [1, 1] : view.map.bin, far = event.shiftKey ? 10 : 1, { row, key } = state.get();
  view.hover = null;
  state.set({ row: row + way[0] * far * rowWidth, key: key + way[1] * far * keyWidth });
  return true;
}

// `cut`: stronger cells than `top` are there, and look like it.
function drawLegend(legend, top, cut, theme, t) {
  const name = (cut ? "≥ " : "") + formatNumber(top) + theme;
  if (legend.dataset.name === name) return;
  legend.dataset.name = name;
  const stops = Array.from({ length: 9 }, (_, i) => `${colour(i / 8, theme)} ${100 * i / 8}%`).join(", ");
  legend.replaceChildren("0", el("i", { class: "head-ramp", title: t("scale.note"), style: { background: `linear-gradient(90deg, ${stops})` } }),
    (cut ? "≥ " : "") + formatNumber(top));
}
