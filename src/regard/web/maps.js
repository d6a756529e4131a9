// The pooled map of a head, as it is shown: raw, or weighted by the norms of what is read.
import { valueWeighted } from "./data.js";
import { robustTop, paint } from "./scales.js";

export function isWeighted(doc, layer, values) { return values === "weighted" && doc.has(layer + ".norms"); }

// Names of the tensors that a map needs; `await doc.load(...mapTensors(...))` before `headMap`.
export function mapTensors(doc, layer, values) {
  if (!isWeighted(doc, layer, values)) return [layer + ".map"];
  return doc.has(layer + ".weighted") ? [layer + ".weighted"] : [layer + ".map", layer + ".norms"];
}

// -> {data, rows, keys, top, bin: [row width, key width]}. A weighted map comes pooled; one of single cells is made here.
export function headMap(doc, layer, head, values) {
  const weighted = isWeighted(doc, layer, values), pooled = weighted && doc.has(layer + ".weighted");
  const part = doc.part(layer + (pooled ? ".weighted" : ".map"), head);
  if (!part) return null;
  const [rows, keys] = part.shape, bin = doc.layers[layer].bin ?? [1, 1];
  const norms = weighted && !pooled ? doc.part(layer + ".norms", head) : null;
  const data = norms ? weightedMap(part.data, rows, keys, norms.data) : part.data;
  return { data, rows, keys, bin, top: robustTop(data) };
}

function weightedMap(map, rows, keys, norms) {
  const out = new Float32Array(map.length);
  for (let at = 0; at < rows * keys; at += keys) out.set(valueWeighted(map.subarray(at, at + keys), norms), at);
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
