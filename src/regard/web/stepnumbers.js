// The numbers of one attention row, step by step, as the formula says: every one is computed here from q, k and v.
// M keys, d width of a head.

// For one row of one head: q (d), dots q.k (M), scores scale q.k (M), the keys [from, to) that the mask leaves,
// exps and weights (M, 0 where hidden), total; with values also the output (the sum of weights times v).
export function rowNumbers(doc, layer, head, row) {
  const { width: d, scale } = doc.layers[layer], keys = doc.shape(layer)[1], [from, to] = doc.allowedKeys(layer, row);
  const q = vectorAt(doc, layer + ".q", head, row), kv = doc.kvHead(layer, head);
  const dots = new Float64Array(keys), scores = new Float64Array(keys), exps = new Float64Array(keys);
  for (let key = 0; key < keys; key++) {
    dots[key] = dotProduct(q, vectorAt(doc, layer + ".k", kv, key));
    scores[key] = dots[key] * scale;
  }
  let largest = -Infinity, total = 0;
  for (let key = from; key < to; key++) largest = Math.max(largest, scores[key]);
  for (let key = from; key < to; key++) total += exps[key] = Math.exp(scores[key] - largest);
  const weights = exps.map((x) => (total > 0 ? x / total : 0));
  const k = (key) => vectorAt(doc, layer + ".k", kv, key);
  const v = doc.has(layer + ".v") ? (key) => vectorAt(doc, layer + ".v", kv, key) : null;
  return { d, scale, keys, from, to, q, k, v, dots, scores, exps, total, largest, weights, output: v && weightedSum(weights, v) };
}

export function vectorAt(doc, name, head, place) {
  const { data, shape } = doc.part(name, head);
  return data.subarray(place * shape[1], (place + 1) * shape[1]);
}

export function dotProduct(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

export function weightedSum(weights, v) {
  const out = new Float64Array(v(0).length);
  for (let key = 0; key < weights.length; key++) {
    const vector = v(key);
    if (weights[key]) for (let i = 0; i < out.length; i++) out[i] += weights[key] * vector[i];
  }
  return out;
}

// The largest `count` places of a list and `also` (where it is one), in reading order.
export function largestPlaces(list, count, also = -1) {
  const places = Array.from(list.keys());
  if (places.length <= count) return places;
  const best = places.sort((a, b) => list[b] - list[a]).slice(0, count);
  if (also >= 0 && !best.includes(also)) best[count - 1] = also;
  return best.sort((a, b) => a - b);
}
