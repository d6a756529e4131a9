// The numbers of one cell and its row, in words: what is under the pointer, or chosen with keys.
import { valueWeighted } from "./data.js";
import { el, formatNumber, formatShare, placeLabel, tokenLabel } from "./dom.js";
import { isWeighted } from "./maps.js";

const MOST = 6, KEPT_ROWS = 48;

export class Readout {
  constructor(root, doc, view, t) {
    Object.assign(this, { root, doc, view, t, rows: new Map(), cell: null });
    this.spoken = el("p", { class: "unseen", "aria-live": "polite" });
    this.body = el("div", { class: "readout-body", "aria-busy": true });
    root.append(this.body, this.spoken);
  }

  // `speak`: also for a screen reader; only where the reader moved on purpose.
  show(cell, speak = false) {
    this.cell = cell;
    clearTimeout(this.later);
    if (!cell || !this.view.map) return;
    const { layer, head } = this.view, name = `${layer}.${head}.${cell.row}`, here = this.rows.get(name) ?? this.view.cells.row(cell.row);
    this.write(cell, here, speak);
    // An exact row that is not here yet comes when the pointer rests.
    const coming = !here && this.view.exactHere && !this.doc.lost(layer);
    this.body.setAttribute("aria-busy", coming);
    if (here) return;
    if (!coming) return this.loadTop(cell, speak);
    this.later = setTimeout(() => this.loadExact(cell, name, speak), speak ? 0 : 90);
  }

  // An exact row, and the norms that it is weighted by: served live, neither is here by itself.
  async loadExact(cell, name, speak) {
    const { doc, view: { layer, head } } = this, still = () => this.cell === cell && this.view.layer === layer && this.view.head === head;
    try {
      const [row] = await Promise.all([doc.rows(layer, head, cell.row, cell.row + 1), doc.unlessGone(doc.load(layer + ".norms"))]);
      if (row) this.keep(name, row);
      if (still()) this.write(cell, row, speak);
    } finally {
      if (still()) this.body.setAttribute("aria-busy", false);
    }
  }

  // Without exact rows the largest weights of each may still be known.
  async loadTop(cell, speak) {
    const { layer } = this.view, names = [layer + ".top.weights", layer + ".top.keys"];
    if (!this.doc.has(names[0]) || this.doc.tensor(names[0])) return;
    await this.doc.load(...names);
    if (this.cell === cell && this.view.layer === layer) this.write(cell, null, speak);
  }

  topOf(row) {
    const { doc, view: { layer, head } } = this, weights = doc.part(layer + ".top.weights", head), keys = doc.part(layer + ".top.keys", head);
    if (!weights || !keys) return null;
    const k = weights.shape[1], tokens = doc.keysAxis(layer).tokens;
    return Array.from({ length: Math.min(k, MOST) }, (_, i) => row * k + i).filter((at) => keys.data[at] >= 0 && weights.data[at] > 0)
      .map((at, _, all) => ({ label: placeLabel(tokens, keys.data[at]), value: weights.data[at], share: weights.data[at] / weights.data[all[0]] }));
  }

  keep(name, row) {
    this.rows.set(name, row);
    if (this.rows.size > KEPT_ROWS) this.rows.delete(this.rows.keys().next().value);
  }

  write(cell, exactRow, speak) {
    const found = exactRow ? this.exactFacts(cell, exactRow) : this.pooledFacts(cell), { t } = this;
    this.body.replaceChildren(
      el("div", {}, el("p", { class: "readout-pair" }, el("b", {}, found.rowName), el("span", {}, t("reads")), el("b", {}, found.keyName)),
        el("p", { class: "readout-number" }, el("strong", { id: "cell-weight" }, formatNumber(found.value, 4)), el("span", {}, found.unit)),
        found.other ? el("p", { class: "readout-other" }, found.other) : "",
        found.note ? el("p", { class: "readout-note" }, found.note) : "", this.rowFacts(cell)),
      el("div", {}, el("h3", {}, found.mostTitle), el("ol", { class: "readout-most" }, found.most.map(mostLine))));
    if (speak) this.spoken.textContent = t("head.cell", { row: found.rowName, key: found.keyName, weight: `${formatNumber(found.value, 4)} ${found.unit}` });
  }

  names({ row, key }) {
    const { doc, view: { layer } } = this;
    return [tokenLabel(doc.rowsAxis(layer).tokens[row]), tokenLabel(doc.keysAxis(layer).tokens[key])];
  }

  exactFacts(cell, raw) {
    const { doc, view, t } = this, { layer, head } = view, norms = doc.part(layer + ".norms", head)?.data;
    // A server that ended between the row and the norms leaves raw weights, which are named so.
    const weighted = Boolean(norms) && isWeighted(doc, layer, view.values), shown = weighted ? valueWeighted(raw, norms) : raw;
    const [rowName, keyName] = this.names(cell), tokens = doc.keysAxis(layer).tokens;
    const other = weighted ? `${formatNumber(raw[cell.key], 4)} ${t("weightRaw")}` : norms
      ? `${formatNumber(valueWeighted(raw, norms)[cell.key], 4)} ${t("weightWeighted")}` : null;
    return {
      rowName, keyName, value: shown[cell.key], unit: t(weighted ? "weightWeighted" : "weightRaw"), other, mostTitle: t("head.most"),
      note: doc.allowed(layer, cell.row, cell.key) ? null : t("masked"),
      most: largest(shown).map((key) => ({ label: placeLabel(tokens, key), value: shown[key], share: shown[key] / (shown[largest(shown, 1)[0]] || 1) })),
    };
  }

  pooledFacts({ row, key }) {
    const { view: { map, layer, values }, t, doc } = this, [rowWidth, keyWidth] = map.bin, [rows, keys] = doc.shape(layer);
    const r = Math.floor(row / rowWidth), c = Math.floor(key / keyWidth), line = map.data.subarray(r * map.keys, (r + 1) * map.keys);
    const span = (bin, width, count) => ({ a: bin * width + 1, b: Math.min(count, (bin + 1) * width) }), brief = ({ a, b }) => `${a}–${b}`;
    const single = rowWidth === 1 && keyWidth === 1, [rowName, keyName] = this.names({ row, key });
    const named = (bin) => (keyWidth === 1 ? placeLabel(doc.keysAxis(layer).tokens, bin) : brief(span(bin, keyWidth, keys)));
    const order = largest(line), top = single ? null : this.topOf(row);
    return {
      rowName: rowWidth === 1 ? rowName : t("head.rows", span(r, rowWidth, rows)), keyName: keyWidth === 1 ? keyName : t("head.keys", span(c, keyWidth, keys)),
      value: line[c],
      unit: t(!single ? "share" : isWeighted(doc, layer, values) ? "weightWeighted" : "weightRaw"), other: null,
      note: single ? null : t("pooled.cells", { rows: rowWidth, keys: keyWidth }) + (doc.lost(layer) ? t("sentence") + t("gone") : ""),
      mostTitle: top ? t("head.mostRaw", { i: row + 1 }) : t(rowWidth === 1 ? "head.most" : "head.mostBin"),
      most: top ?? order.map((bin) => ({ label: named(bin), value: line[bin], share: line[bin] / (line[order[0]] || 1) })),
    };
  }

  rowFacts({ row, key }) {
    const { doc, t, view: { layer, head } } = this, [rows, keys] = doc.shape(layer);
    const fact = (name, place, format = formatNumber) => {
      const value = doc.part(`${layer}.${name}`, head)?.data[place];
      return value === undefined ? "" : el("span", { class: "fact" }, t(name === "first" ? "sink" : name) + " ", el("strong", {}, format(value)));
    };
    return el("dl", { class: "readout-facts" },
      el("dt", {}, t("head.rowOf", { i: row + 1, n: rows })),
      el("dd", {}, fact("entropy", row), fact("confidence", row), fact("distance", row), fact("first", row, formatShare)),
      el("dt", {}, t("head.keyOf", { i: key + 1, n: keys })), el("dd", {}, fact("received", key)));
  }
}

export function mostLine({ label, value, share }) {
  return el("li", {}, el("span", { class: "readout-token" }, label), el("i", { class: "readout-bar" }, el("b", { style: { width: 100 * share + "%" } })),
    el("span", { class: "readout-value" }, formatNumber(value, 3)));
}

// Places of the largest numbers, without sorting a long row.
export function largest(data, count = MOST) {
  const best = [];
  for (let i = 0; i < data.length; i++) {
    if (best.length === count && data[i] <= data[best[count - 1]]) continue;
    let at = best.length;
    while (at > 0 && data[best[at - 1]] < data[i]) at--;
    best.splice(at, 0, i);
    if (best.length > count) best.pop();
  }
  return best.filter((i) => data[i] > 0);
}
