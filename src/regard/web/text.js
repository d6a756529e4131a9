// The text itself, coloured: by what one head reads, by what is received, by rollout, by relevance. Its check stands beside it.
import { valueWeighted } from "./data.js";
import { el, placeLabel, tokenLabel } from "./dom.js";
import { headMap, isWeighted, mapTensors } from "./maps.js";
import { segmented, headTitle } from "./chooser.js";
import { largest, mostLine } from "./readout.js";
import { drawText } from "./passage.js";

export const textView = {
  id: "text",
  perHead: true,
  available: () => true,

  mount(root, doc, state, t) {
    const texts = el("div", { class: "text-texts" }), side = el("aside", { class: "text-side" }), why = el("p", { class: "text-why" });
    const measures = measuresOf(doc);
    const choice = segmented("text-measure", t("text.measure"), measures.map((name) => [name, t("text." + name)]), chosenMeasure(doc, state.get()),
      (measure) => state.set({ measure }));
    root.append(el("div", { class: "head-tools" }, choice), why, el("div", { class: "text-both" }, texts, side));
    let asked = null;

    async function show(now) {
      const mine = (asked = {}), measure = chosenMeasure(doc, now), found = await readings(doc, now, measure);
      if (mine !== asked) return;
      choice.querySelector(`input[value="${measure}"]`).checked = true;
      const pooled = found.parts.find((part) => part.width > 1);
      const blank = measure === "relevance" && !found.parts.some((part) => part.values.some((x) => x > 0));
      const said = [t(`text.${measure}.why`, { head: headTitle(doc, now, t) }), blank && t("text.relevance.none"),
        pooled && t("text.pooled", { keys: pooled.width }),
        pooled && measure === "attention" && doc.lost(now.layer) && t("gone")];
      why.textContent = said.filter(Boolean).join(" ");
      const focused = document.activeElement?.closest(".text-texts") !== null && document.activeElement?.dataset.place !== undefined;
      drawBlocks(texts, doc, now, found, state, t);
      if (focused) texts.querySelector('[aria-current="true"]')?.focus({ preventScroll: true });
      drawSide(side, doc, now, measure, found, state, t);
    }
    state.subscribe((now, changed) => { if (["layer", "head", "row", "answer", "values", "theme", "measure"].some((name) => changed.has(name))) show(now); });
    show(state.get());
  },
};

function measuresOf(doc) { return [...(doc.relevance ? ["relevance"] : []), ...(doc.rollout ? ["rollout"] : []), "attention", "received"]; }

function chosenMeasure(doc, now) {
  const all = measuresOf(doc);
  return all.includes(now.measure) ? now.measure : all[0];
}

// -> {parts: [{axis, values, width}], rows: axis of the tokens to choose from (null: none), chosen, choose(place)}
async function readings(doc, now, measure) {
  if (measure === "attention" || measure === "received") {
    const { layer } = now, axes = doc.layers[layer];
    const part = measure === "received" ? await received(doc, now) : await headRow(doc, now);
    return { parts: part ? [{ axis: axes.keys, ...part }] : [], rows: measure === "received" ? null : axes.rows, chosen: now.row, choose: (row) => ({ row }) };
  }
  const about = doc[measure], byAnswer = about.rows === doc.answerAxis(), chosen = byAnswer ? now.answer : now.row;
  // What of the answer itself was read stands on the answer's own axis, without what a row starts from.
  const own = measure + ".target";
  await doc.load(measure, own);
  const parts = [[about.keys, measure], ["target", own]].filter(([, name]) => doc.has(name)).map(([axis, name]) => {
    const [bins, count] = [doc.tensors[name].shape, doc.axes[axis].tokens.length], width = binWidth(count, bins[1]);
    const values = spread(doc.part(name, Math.floor(chosen / binWidth(doc.axes[about.rows].tokens.length, bins[0]))).data, width, count);
    // Relevance starts from 1 at the row's own place: that says nothing, and would hide the rest.
    if (name === "relevance" && width === 1 && about.keys === about.rows) return { axis, width, values: values.with(chosen, 0) };
    return { axis, width, values };
  });
  return { parts, rows: about.rows, chosen, choose: (place) => (byAnswer ? { answer: place } : { row: place }) };
}

// The smallest power of two that leaves at most `bins` bins: how the document pools.
function binWidth(count, bins) {
  let width = 1;
  while (Math.ceil(count / width) > bins) width *= 2;
  return width;
}

// A decoder reads the answer one token late: what it read at place i + 1 of "prefix" is the answer's token i.
function onAnswer(doc, part) {
  const target = doc.axes.target?.tokens, prefix = doc.axes.prefix?.tokens;
  if (part.axis !== "prefix" || !target || target.length !== prefix.length || prefix.slice(1).some((token, i) => token !== target[i])) return part;
  return { ...part, axis: "target", values: Float32Array.from(part.values, (_, i) => part.values[i + 1] ?? 0) };
}

async function received(doc, { layer, head }) {
  await doc.load(layer + ".received");
  const found = doc.part(layer + ".received", head);
  if (!found) return null;
  const [rows, keys] = doc.shape(layer);
  return { width: 1, values: found.data.map((x) => (x * keys) / rows) };
}

// The exact row, else the pooled one spread over its places.
async function headRow(doc, { layer, head, row, values }) {
  const weighted = isWeighted(doc, layer, values), exact = await doc.rows(layer, head, row, row + 1);
  if (exact && weighted) await doc.load(layer + ".norms");
  if (exact) return { width: 1, values: weighted ? valueWeighted(exact, doc.part(layer + ".norms", head).data) : exact };
  await doc.load(...mapTensors(doc, layer, values));
  const map = headMap(doc, layer, head, values);
  if (!map) return null;
  const { keys, bin: [rowWidth, width] } = map, bin = Math.floor(row / rowWidth);
  return { width, values: spread(map.data.subarray(bin * keys, (bin + 1) * keys), width, doc.shape(layer)[1]) };
}

function spread(bins, width, count) {
  if (width === 1) return bins;
  return Float32Array.from({ length: count }, (_, i) => bins[Math.floor(i / width)] / Math.min(width, count - Math.floor(i / width) * width));
}

function drawBlocks(texts, doc, now, found, state, t) {
  const shown = found.parts.map((part) => onAnswer(doc, part)), names = [...new Set([...shown.map((part) => part.axis), ...(found.rows ? [found.rows] : [])])],
    one = names.length === 1;
  const top = Math.max(...found.parts.map((part) => part.values.reduce((most, x) => Math.max(most, x), 0)), 1e-12);
  texts.replaceChildren(...names.map((name) => {
    const part = shown.find((each) => each.axis === name), readable = name === found.rows;
    const title = one || (readable && name === "source") ? t("text.one") : readable ? t("text.reading") : t("text.read");
    return el("section", { class: "text-block" }, el("h3", {}, title), readable ? el("p", { class: "label" }, t("text.choose")) : "",
      drawText(doc.axes[name], { values: part?.values ?? null, top, theme: now.theme, label: title, t,
        chosen: readable ? found.chosen : null, near: readable ? found.chosen : part ? largest(part.values, 1)[0] ?? 0 : 0,
        choose: readable ? (place) => state.set(found.choose(place)) : null }));
  }), found.parts.length ? "" : el("p", { class: "note" }, t("text.absent")));
}

// The tokens that got most, or the bins where places share one number.
function strongest(doc, { axis, values, width }, t) {
  if (width === 1) return largest(values, 8).map((place) =>
    ({ label: placeLabel(doc.axes[axis].tokens, place), value: values[place] }));
  const bins = new Float32Array(Math.ceil(values.length / width));
  values.forEach((x, i) => { bins[Math.floor(i / width)] += x; });
  return largest(bins, 8).map((bin) => ({ label: t("text.places", { a: bin * width + 1, b: Math.min(values.length, (bin + 1) * width) }), value: bins[bin] }));
}

function drawSide(side, doc, now, measure, found, state, t) {
  const verdict = doc.card?.verdict?.[now.language] ?? doc.card?.verdict?.en, headOnly = measure === "attention" || measure === "received";
  const most = found.parts.flatMap((part) => strongest(doc, part, t)).sort((a, b) => b.value - a.value).slice(0, 8)
    .map((each, _, all) => ({ ...each, share: each.value / all[0].value }));
  side.replaceChildren(
    el("div", { class: "readout-body" }, found.rows ? el("p", { class: "readout-pair" }, el("span", {}, t("text.chosen")),
      el("b", {}, tokenLabel(doc.axes[found.rows].tokens[found.chosen]))) : "",
      el("div", {}, el("h3", {}, t("text.top")), el("ol", { class: "readout-most" }, most.map(mostLine)))),
    el("div", { class: "text-check", role: "note" }, el("h3", {}, t("check.title")),
      el("p", { id: "text-verdict" }, verdict ?? t("check.none")), verdict && headOnly ? el("p", {}, t("check.head")) : "",
      verdict ? el("button", { type: "button", class: "plain", onclick: () => state.set({ view: "card" }) }, t("check.see")) : ""),
    el("p", { class: "note" }, t("honesty")));
}
