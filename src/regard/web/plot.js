// What the charts share: ticks, a box that is drawn anew when its width changes, marks, and one row of dots a layer.

import { el, svgEl, formatNumber } from "./dom.js";
import { categorical } from "./scales.js";
import { headTitle } from "./chooser.js";

// Each kind of head has a colour and a shape, so that colour is never alone.
export const HEAD_KINDS = ["previous", "next", "induction", "positional", "first", "broad", "alignment", "nothing"];
const MARK_SHAPES = [
  "M-4.2 0a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0 -8.4 0z", "M-3.8 -3.8h7.6v7.6h-7.6z", "M0 -5l4.8 8.4h-9.6z",
  "M0 -5.4l4.6 5.4l-4.6 5.4l-4.6 -5.4z", "M0 5l4.8 -8.4h-9.6z", "M-1.7 -4.8h3.4v3.1h3.1v3.4h-3.1v3.1h-3.4v-3.1h-3.1v-3.4h3.1z",
  "M0 -6l1.4 3.9l4.1 .2l-3.2 2.6l1.1 4l-3.4 -2.3l-3.4 2.3l1.1 -4l-3.2 -2.6l4.1 -.2z",
  "M-4.4 -3.2l1.2 -1.2l3.2 3.2l3.2 -3.2l1.2 1.2l-3.2 3.2l3.2 3.2l-1.2 1.2l-3.2 -3.2l-3.2 3.2l-1.2 -1.2l3.2 -3.2z",
];

export function kindOf(doc, layer, head) {
  return (doc.heads?.[layer]?.[head]?.kinds ?? []).find((kind) => HEAD_KINDS.includes(kind)) ?? null;
}

export function kindMark(kind, theme) {
  const at = HEAD_KINDS.indexOf(kind);
  if (at < 0) return svgEl("circle", { r: 3.6, class: "plot-plain" });
  // There are six colours; the star and the cross are ink.
  return svgEl("path", { d: MARK_SHAPES[at], fill: at < 6 ? categorical(at, theme) : "var(--ink)" });
}

// A kind's mark as a small picture that stands in a line of text.
export function kindIcon(kind, theme) {
  return svgEl("svg", { class: "plot-icon", viewBox: "-7 -7 14 14", "aria-hidden": "true" }, kindMark(kind, theme));
}

// Round numbers that divide a range, about `count` of them.
export function plotTicks(low, high, count = 4) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const off = (size) => Math.abs(Math.log(size * power / rough)), step = [1, 2, 5, 10].reduce((best, size) => (off(size) < off(best) ? size : best)) * power;
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9); at <= high / step + 1e-9; at++) ticks.push(Number((at * step).toPrecision(12)));
  return ticks;
}

// The range of numbers with round ends; null where there is none.
export function plotRange(numbers, { zero = false } = {}) {
  const real = numbers.filter((x) => Number.isFinite(x));
  if (!real.length) return null;
  let low = real.reduce((a, b) => Math.min(a, b), zero ? 0 : Infinity), high = real.reduce((a, b) => Math.max(a, b), zero ? 0 : -Infinity);
  if (low === high) [low, high] = [low - (Math.abs(low) / 2 || 1) * (zero && low === 0 ? 0 : 1), high + (Math.abs(high) / 2 || 1)];
  const room = (high - low) * 0.04;
  return [zero && low === 0 ? 0 : low - room, zero && high === 0 ? 0 : high + room];
}

export function plotLine([low, high], from, to) { return (x) => from + (x - low) / (high - low) * (to - from); }

// A box that knows its width: `draw(width)` gives what stands in it.
export function plotBox(draw, attributes) {
  const box = el("div", { class: "plot-box", ...attributes });
  let width = 0;
  box.redraw = () => { if (width) box.replaceChildren(draw(width)); };
  // drawn in the next frame: what changes its own size while it is measured makes browsers complain
  new ResizeObserver(([entry]) => requestAnimationFrame(() => {
    const wide = Math.floor(entry.contentRect.width);
    if (wide === width || !wide) return;
    width = wide;
    box.redraw();
  })).observe(box);
  return box;
}

const tickText = (x) => formatNumber(x).replace("-", "−");

// The x axis under a plot: thin lines up to `top`, numbers at `bottom`.
export function plotAxis(x, ticks, top, bottom, format = tickText) {
  return svgEl("g", { class: "plot-axis" }, ticks.map((tick) => svgEl("g", { transform: `translate(${x(tick)} 0)` },
    svgEl("line", { y1: top, y2: bottom, class: tick === 0 ? "plot-zero" : null }),
    svgEl("text", { y: bottom + 13, "text-anchor": "middle" }, format(tick)))));
}

export function plotAxisY(y, ticks, left, right, format = tickText) {
  return svgEl("g", { class: "plot-axis" }, ticks.map((tick) => svgEl("g", { transform: `translate(0 ${y(tick)})` },
    svgEl("line", { x1: left, x2: right, class: tick === 0 ? "plot-zero" : null }),
    svgEl("text", { x: left - 5, dy: "0.35em", "text-anchor": "end" }, format(tick)))));
}

// Which of these places is nearest to the pointer, within `reach` pixels?
export function plotNearest(event, svg, places, reach = 24) {
  const box = svg.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  let best = null, least = reach * reach;
  for (const place of places) {
    const far = (place.x - x) ** 2 + (place.y - y) ** 2;
    if (far < least) { least = far; best = place; }
  }
  return best;
}

// About how wide a label is at 12 pixels; a Chinese sign is twice as wide as a letter.
const labelWidth = (label) => [...label].reduce((sum, sign) => sum + (sign > "\u2e7f" ? 12.4 : 6.4), 0);

function plotClip(label, width) {
  let cut = label;
  while (cut && labelWidth(cut) > width) cut = cut.slice(0, -1);
  return cut === label ? label : cut.slice(0, -1) + "…";
}

// One row a layer, one mark a head, along a measure. A click chooses the head; the chosen one stands in all charts.
// `chart`: {title, about, unit, value(layer, head), format, zero, own}; with `own` each row ends at its largest number.
export function dotStrips(doc, state, t, chart) {
  const { value, format = formatNumber, unit = "" } = chart;
  const readout = el("output", { class: "plot-readout" });
  const say = ({ layer, head }) => {
    const x = value(layer, head);
    readout.textContent = `${headTitle(doc, { layer, head }, t)}: ${format(x)}${Number.isFinite(x) ? unit : ""}`;
  };
  const box = plotBox((width) => dotStripsDraw(doc, state, chart, width, say, () => say(state.get())));
  say(state.get());
  state.subscribe((now, changed) => {
    if (changed.has("theme")) box.redraw();
    if (!changed.has("layer") && !changed.has("head")) return;
    say(now);
    for (const mark of box.querySelectorAll(".plot-mark")) mark.classList.toggle("plot-chosen", mark.dataset.head === `${now.layer}.${now.head}`);
  });
  return el("section", { class: "plot-panel", "data-chart": chart.id },
    el("header", {}, el("h3", {}, chart.title), readout), el("p", { class: "plot-about" }, chart.about), box);
}

function dotStripsDraw(doc, state, { value, format = formatNumber, zero, own, title }, width, say, rest) {
  const layers = doc.layers, band = Math.max(13, Math.min(34, 520 / layers.length)), bottom = 6 + band * layers.length;
  const labels = Math.min(Math.max(...layers.map((layer) => labelWidth(layer.label))) + 10, width * 0.4);
  const rows = layers.map((layer, l) => Array.from({ length: layer.heads }, (_, h) => value(l, h)));
  const most = rows.map((row) => (own ? Math.max(...row.filter(Number.isFinite), 1e-12) : 1));
  const range = plotRange(rows.flatMap((row, l) => row.map((number) => number / most[l])), { zero });
  const svg = svgEl("svg", { width, height: bottom + 20, role: "img", "aria-label": title });
  const x = plotLine(range, labels + 6, width - 8), { theme, layer: chosenLayer, head: chosenHead } = state.get();
  svg.append(plotAxis(x, plotTicks(...range, Math.max(3, Math.min(8, Math.floor((width - labels) / 56)))), 2, bottom,
    own ? (share) => `${Math.round(100 * share)} %` : format));
  const places = [];
  layers.forEach((layer, l) => {
    const middle = 6 + band * (l + 0.5);
    svg.append(svgEl("line", { class: "plot-row", x1: labels, x2: width, y1: middle + band / 2, y2: middle + band / 2 }),
      svgEl("text", { class: "plot-label", x: labels - 2, y: middle, dy: "0.35em", "text-anchor": "end" }, plotClip(layer.label, labels - 4)));
    for (let h = 0; h < layer.heads; h++) {
      const number = rows[l][h] / most[l];
      if (!Number.isFinite(number)) continue;
      // The heads of a layer hang one under the other a little, so that equal numbers stay apart.
      const y = middle + (layer.heads > 1 ? (h / (layer.heads - 1) - 0.5) * (band - 9) : 0);
      places.push({ x: x(number), y, layer: l, head: h });
      svg.append(svgEl("g", { class: "plot-mark" + (l === chosenLayer && h === chosenHead ? " plot-chosen" : ""),
        "data-head": `${l}.${h}`, transform: `translate(${x(number)} ${y})` },
      svgEl("circle", { r: 8, class: "plot-ring" }), kindMark(kindOf(doc, l, h), theme)));
    }
  });
  svg.addEventListener("pointermove", (event) => { const found = plotNearest(event, svg, places); found ? say(found) : rest(); });
  svg.addEventListener("pointerleave", rest);
  svg.addEventListener("click", (event) => {
    const found = plotNearest(event, svg, places);
    if (found) state.set({ layer: found.layer, head: found.head });
  });
  return svg;
}
