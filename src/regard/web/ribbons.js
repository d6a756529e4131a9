// Two columns of tokens, the readers and what they read, and a ribbon for each weight between them.
import { valueWeighted } from "./data.js";
import { el, svgEl, formatShare, formatNumber, tokenLabel } from "./dom.js";
import { headMap, isWeighted, mapTensors } from "./maps.js";
import { segmented } from "./chooser.js";

const STEP = 26, WINDOW = 36, LEAST = 0.02;

export const ribbonsView = {
  id: "ribbons",
  perHead: true,
  available: () => true,

  mount(root, doc, state, t) {
    const stage = el("div", { class: "ribbons-stage" }), about = el("p", { class: "note", id: "ribbons-note" }),
      switchBox = el("div", { hidden: !doc.alignment });
    const move = el("div", { class: "ribbons-move" });
    let mode = "head", asked = null;
    root.append(el("div", { class: "head-tools" }, switchBox, move), stage, about, el("p", { class: "note" }, t("honesty")));
    if (doc.alignment) {
      switchBox.append(segmented("ribbons-mode", t("ribbons.show"), [["head", t("ribbons.head")], ["alignment", t("ribbons.alignment")]], mode, (chosen) => {
        mode = chosen;
        if (mode === "alignment") state.set({ layer: doc.alignment.layer, head: doc.alignment.head });
        show(state.get());
      }));
    }

    async function show(now) {
      const mine = (asked = {});
      if (mode === "alignment" && now.layer !== doc.alignment.layer) { mode = "head"; switchBox.querySelector("input").checked = true; }
      const sight = await (mode === "alignment" ? alignedSight(doc, now, t) : headSight(doc, now, t));
      if (mine !== asked) return;
      const focused = document.activeElement?.closest(".ribbons-stage") && document.activeElement.dataset.side;
      drawStage(stage, sight, state, t);
      about.textContent = sight.note;
      drawMove(move, sight, state, t);
      if (focused) stage.querySelector(`[data-side="${focused}"][aria-current]`)?.focus();
    }
    state.subscribe((now, changed) => { if (["layer", "head", "row", "key", "values"].some((name) => changed.has(name))) show(now); });
    show(state.get());
  },
};

// A sight: readers [from, to), keys [keyFrom, keyTo), their names, weight(reader, key), and the width of a place (a bin's, else 1).
// `outside` says in words what the chosen row reads elsewhere, `none` why it has no ribbon where none is drawn.
async function headSight(doc, now, t) {
  const { layer, head, values } = now, top = layer + ".top.weights";
  const [rows, keys] = doc.shape(layer), [from, to] = windowOf(now.row, rows), exact = await doc.rows(layer, head, from, to);
  if (!exact && !(doc.has(top) && (doc.layers[layer].bin ?? [1, 1]).some((width) => width > 1))) return pooledSight(doc, now, t);
  const known = exact ?? await topRows(doc, layer, head, from, to, keys), weighted = exact && isWeighted(doc, layer, values);
  if (weighted) await doc.load(layer + ".norms");
  const lines = Array.from({ length: to - from }, (_, i) => {
    const line = known.subarray(i * keys, (i + 1) * keys);
    return weighted ? valueWeighted(line, doc.part(layer + ".norms", head).data) : line;
  });
  const line = lines[now.row - from], [keyFrom, keyTo] = windowOf(readMost(line, now.row, doc.layers[layer].kind), keys);
  return {
    from, to, rows, keyFrom, keyTo, keys, row: now.row, key: now.key, width: [1, 1],
    rowName: (i) => tokenLabel(doc.rowsAxis(layer).tokens[i]), keyName: (j) => tokenLabel(doc.keysAxis(layer).tokens[j]),
    weight: (i, j) => lines[i - from][j],
    outside: exact ? outsideNote(line, keyFrom, keyTo, t) : knownNote(line, keyFrom, keyTo, doc.tensors[top].shape[2], t),
    none: noneNote(line, exact ? "ribbons.none" : "ribbons.none.known", t),
    note: exact ? t("ribbons.exact", { least: LEAST }) : t("ribbons.top", { k: doc.tensors[top].shape[2] }) + goneNote(doc, layer, t),
  };
}

// The known largest weights of each row, zero elsewhere.
async function topRows(doc, layer, head, from, to, keys) {
  await doc.load(layer + ".top.weights", layer + ".top.keys");
  const weights = doc.part(layer + ".top.weights", head), places = doc.part(layer + ".top.keys", head), k = weights.shape[1];
  const out = new Float32Array((to - from) * keys);
  for (let row = from; row < to; row++) for (let i = row * k; i < (row + 1) * k; i++) {
    if (places.data[i] >= 0) out[(row - from) * keys + places.data[i]] = weights.data[i];
  }
  return out;
}

function sumOf(line, from = 0, to = line.length) { return line.subarray(from, to).reduce((sum, x) => sum + x, 0); }

function outsideNote(line, from, to, t) {
  const out = sumOf(line) - sumOf(line, from, to);
  return out > 0.005 ? t("ribbons.outside", { share: formatShare(out) }) : "";
}

// Of a row whose largest weights alone are known: where the rest of its 100 % lies, nobody can say.
function knownNote(line, from, to, k, t) {
  const sum = sumOf(line), inside = sumOf(line, from, to), rest = 1 - sum;
  if (sum === 0 || rest < 0.0005) return outsideNote(line, from, to, t);
  return t("ribbons.known", { k, sum: formatShare(sum), inside: formatShare(inside), out: formatShare(sum - inside), rest: formatShare(rest) });
}

// A row that may read nowhere has no weights at all.
function noneNote(line, why, t) { return t(sumOf(line) === 0 ? "ribbons.nowhere" : why, { least: LEAST }); }

function goneNote(doc, layer, t) { return doc.lost(layer) ? t("sentence") + t("gone") : ""; }

async function pooledSight(doc, now, t) {
  const { layer, head, values } = now;
  await doc.load(...mapTensors(doc, layer, values));
  const map = headMap(doc, layer, head, values), [rowWidth, keyWidth] = map.bin, [rows, keys] = doc.shape(layer);
  const row = Math.floor(now.row / rowWidth), [from, to] = windowOf(row, map.rows);
  const line = (i) => map.data.subarray(i * map.keys, (i + 1) * map.keys), pooled = rowWidth * keyWidth > 1,
    [keyFrom, keyTo] = windowOf(readMost(line(row), row, doc.layers[layer].kind), map.keys);
  const named = (axis, width, count) => (bin) => (width === 1 ? tokenLabel(axis.tokens[bin]) : `${bin * width + 1}–${Math.min(count, (bin + 1) * width)}`);
  return {
    from, to, rows: map.rows, keyFrom, keyTo, keys: map.keys, row, key: Math.floor(now.key / keyWidth), width: map.bin,
    rowName: named(doc.rowsAxis(layer), rowWidth, rows), keyName: named(doc.keysAxis(layer), keyWidth, keys),
    weight: (i, j) => line(i)[j], outside: outsideNote(line(row), keyFrom, keyTo, t),
    none: noneNote(line(row), pooled ? "ribbons.none.pooled" : "ribbons.none", t),
    note: pooled ? t("ribbons.pooled", { rows: rowWidth, keys: keyWidth }) + goneNote(doc, layer, t)
      : t("ribbons.exact", { least: LEAST }),
  };
}

async function alignedSight(doc, now, t) {
  const { layer, pairs, error } = doc.alignment, [rows, keys] = doc.shape(layer), [from, to] = windowOf(now.row, rows);
  const linked = new Set(pairs.map(([row, key]) => row * keys + key)), first = pairs.find(([row]) => row === now.row);
  const [keyFrom, keyTo] = windowOf(first ? first[1] : now.key, keys);
  return {
    from, to, rows, keyFrom, keyTo, keys, row: now.row, key: now.key, width: [1, 1], even: true,
    rowName: (i) => tokenLabel(doc.rowsAxis(layer).tokens[i]), keyName: (j) => tokenLabel(doc.keysAxis(layer).tokens[j]),
    weight: (i, j) => (linked.has(i * keys + j) ? 0.5 : 0), outside: "", none: t("ribbons.none.aligned"),
    note: error === null || error === undefined ? t("ribbons.noGold") : t("ribbons.error", { error: formatShare(error) }),
  };
}

function windowOf(place, count) {
  const from = Math.max(0, Math.min(count - WINDOW, place - WINDOW / 2));
  return [from, Math.min(count, from + WINDOW)];
}

// Where to look on the other side: around the reader itself where half of what it reads is there, else around what it reads most.
function readMost(line, row, kind) {
  const [from, to] = windowOf(row, line.length), near = line.subarray(from, to).reduce((sum, x) => sum + x, 0);
  return kind === "self" && near >= 0.5 ? row : line.reduce((best, x, j) => (x > line[best] ? j : best), 0);
}

function drawStage(stage, sight, state, t) {
  const { from, to, keyFrom, keyTo } = sight, height = Math.max(to - from, keyTo - keyFrom) * STEP;
  const lines = svgEl("svg", { class: "ribbons-lines", viewBox: `0 0 100 ${height}`, preserveAspectRatio: "none", role: "img",
    "aria-label": t("ribbons.label", { row: sight.rowName(sight.row) }) });
  const column = (side, first, last, name, chosen, choose) =>
    el("ol", { class: "ribbons-" + side, "aria-label": t(side === "rows" ? "ribbons.reader" : "ribbons.read"),
    onkeydown: (event) => { const step = { ArrowUp: -1, ArrowDown: 1 }[event.key]; if (step) { event.preventDefault(); choose(chosen + step); } } },
    Array.from({ length: last - first }, (_, i) => el("li", {},
      el("button", { type: "button", "data-side": side, tabindex: first + i === chosen ? 0 : -1, "aria-current": first + i === chosen,
      onclick: () => choose(first + i), onmouseenter: () => light(lines, side, first + i), onmouseleave: () => light(lines, "rows", sight.row) },
        name(first + i)))));
  const readers = [], rest = [];
  for (let i = from; i < to; i++) {
    let filled = 0;
    for (let j = keyFrom; j < keyTo; j++) {
      const weight = sight.weight(i, j);
      if (weight < LEAST) continue;
      const start = (i - from + 0.5) * STEP + (sight.even ? 0 : (filled + weight / 2 - 0.5) * (STEP - 6)), end = (j - keyFrom + 0.5) * STEP;
      filled += weight;
      const path = svgEl("path", { d: `M0 ${start.toFixed(1)}C45 ${start.toFixed(1)} 55 ${end.toFixed(1)} 100 ${end.toFixed(1)}`, "data-row": i, "data-key": j,
        "stroke-width": Math.max(0.8, weight * (STEP - 6)).toFixed(2) },
        svgEl("title", {}, `${sight.rowName(i)} → ${sight.keyName(j)}: ${formatNumber(weight)}`));
      (i === sight.row ? readers : rest).push(path);
    }
  }
  lines.append(...rest, ...readers);
  lines.style.height = height + "px";
  const [rowWidth, keyWidth] = sight.width, said = [sight.outside, readers.length ? "" : sight.none].filter(Boolean).join(t("sentence"));
  stage.replaceChildren(
    el("div", { class: "ribbons-heads" }, el("span", {}, t("ribbons.reader")),
      el("span", { id: "ribbons-said" }, said), el("span", {}, t("ribbons.read"))),
    column("rows", from, to, sight.rowName, sight.row, (i) => state.set({ row: Math.max(0, i) * rowWidth })), lines,
    column("keys", keyFrom, keyTo, sight.keyName, sight.key, (j) => state.set({ key: Math.max(0, j) * keyWidth })));
  light(lines, "rows", sight.row);
}

function light(lines, side, place) {
  const name = side === "rows" ? "row" : "key";
  lines.dataset.side = side;
  for (const path of lines.querySelectorAll("path")) path.classList.toggle("ribbons-lit", path.dataset[name] === String(place));
}

function drawMove(move, { from, to, rows, row, keyFrom, keyTo, keys, width }, state, t) {
  const window = (word, a, b, n, each) => t(word, { a: a * each + 1, b: b * each, n: n * each });
  const read = keys <= WINDOW ? "" : el("span", { class: "fact" }, window("ribbons.keys", keyFrom, keyTo, keys, width[1]));
  if (rows <= WINDOW) return move.replaceChildren(read);
  const go = (word, place) => el("button", { type: "button", class: "plain", disabled: place < 0 || place >= rows,
    onclick: () => state.set({ row: place * width[0] }) }, t(word));
  move.replaceChildren(go("earlier", from === 0 ? -1 : Math.max(0, row - WINDOW)),
    el("span", { class: "fact" }, window("ribbons.window", from, to, rows, width[0])),
    go("later", to >= rows ? rows : Math.min(rows - 1, row + WINDOW)), read);
}
