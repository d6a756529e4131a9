// The pooled map of a head, as it is shown: raw, or weighted by the norms of what is read.
import { binMeans } from "./data.js";
import { robustTop, paint } from "./scales.js";

export function isWeighted(doc, layer, values) { return values === "weighted" && doc.has(layer + ".norms"); }

// Pooled weights are exact sums; weighted, a bin counts with the mean norm of its keys. That is an estimate, and said.
export function estimateNote(doc, layer, values, t) {
  const pooled = (doc.layers[layer].bin ?? [1, 1]).some((width) => width > 1);
  return pooled && isWeighted(doc, layer, values) ? t("pooled.estimate") : "";
}

// Names of the tensors that a map needs; `await doc.load(...mapTensors(...))` before `headMap`.
export function mapTensors(doc, layer, values) {
  return isWeighted(doc, layer, values) ? [layer + ".map", layer + ".norms"] : [layer + ".map"];
}

// -> {data, rows, keys, top, bin: [row width, key width]}.
export function headMap(doc, layer, head, values) {
  const part = doc.part(layer + ".map", head);
  if (!part) return null;
  const [rows, keys] = part.shape, bin = doc.layers[layer].bin ?? [1, 1];
  const norms = isWeighted(doc, layer, values) ? doc.part(layer + ".norms", head) : null;
  const data = norms ? weightedMap(part.data, rows, keys, binMeans(norms.data, bin[1])) : part.data;
  return { data, rows, keys, bin, top: robustTop(data) };
}

function weightedMap(map, rows, keys, norms) {
  const out = new Float32Array(map.length);
  for (let row = 0; row < rows; row++) {
    let before = 0, after = 0;
    for (let key = 0, at = row * keys; key < keys; key++, at++) { before += map[at]; after += out[at] = map[at] * norms[key]; }
    if (after > 0) for (let key = 0, at = row * keys; key < keys; key++, at++) out[at] *= before / after;
  }
  return out;
}

// A canvas with one pixel a number.
export function mapImage(canvas, { data, rows, keys, top }, theme) {
  canvas.width = keys;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(keys, rows);
  paint(data, top, theme, new Uint32Array(image.data.buffer));
  context.putImageData(image, 0, 0);
  return canvas;
}
