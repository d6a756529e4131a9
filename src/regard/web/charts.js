// What the heads are like, layer by layer, and which of them are of one kind.
import { el, formatNumber, formatShare } from "./dom.js";
import { headTitle, kindWord } from "./chooser.js";
import { HEAD_KINDS, dotStrips, kindIcon, kindOf } from "./plot.js";
import { LAYERS_WORDS } from "./words-panels.js";

// Each measure: its tensor (where there is one), its format, its unit; `own`: each layer has a scale of its own.
const LAYER_CHARTS = [
  { id: "entropy", unit: "nats" }, { id: "confidence", format: formatShare }, { id: "distance", unit: "tokens" },
  { id: "importance", own: true }, { id: "first", format: formatShare },
];

export const layersView = {
  id: "layers", perHead: false, words: LAYERS_WORDS,
  available: (doc) => LAYER_CHARTS.some((chart) => layerChartThere(doc, chart.id)),
  mount(root, doc, state, t) {
    const about = el("div", { class: "layers-chosen" }), legend = el("ul", { class: "layers-legend" }), kinds = el("div", { class: "layers-kinds" });
    const charts = el("div", { class: "layers-charts" }, el("section", { class: "plot-panel" }, about, legend));
    root.append(charts, el("h3", {}, t("layers.kinds")), el("p", { class: "plot-about" }, t("layers.kinds.about")), kinds);
    const draw = (now) => { layersChosen(about, doc, state, t, now); layersLegend(legend, doc, t, now.theme); layersKinds(kinds, doc, state, t, now); };
    state.subscribe((now, changed) => { if (["layer", "head", "theme"].some((name) => changed.has(name))) draw(now); });
    layersLoad(doc).then(() => {
      draw(state.get());
      for (const chart of LAYER_CHARTS.filter(({ id }) => layerChartThere(doc, id))) {
        charts.append(dotStrips(doc, state, t, { ...chart, zero: true, title: t("layers." + chart.id), about: t(`layers.${chart.id}.about`),
          unit: chart.unit ? " " + t("layers." + chart.unit) : "", value: (layer, head) => layerNumber(doc, chart.id, layer, head) }));
      }
    });
  },
};

// A score that the document states, or else the mean of the head's rows.
function layerNumber(doc, id, layer, head) {
  // Importance compares the heads of a layer: of one alone it says nothing.
  if (id === "importance" && doc.layers[layer].heads === 1) return NaN;
  const facts = doc.heads?.[layer]?.[head], stated = id === "importance" ? facts?.importance : facts?.scores?.[id];
  if (stated !== null && stated !== undefined) return stated;
  const rows = id === "importance" ? null : doc.part(`${layer}.${id}`, head);
  return rows ? rows.data.reduce((sum, x) => sum + x, 0) / rows.data.length : NaN;
}

function layerChartThere(doc, id) {
  return doc.layers.some(({ heads }, layer) => doc.has(`${layer}.${id}`) ||
    doc.heads?.[layer]?.some((head) => Number.isFinite(id !== "importance" ? head.scores?.[id] : heads > 1 ? head.importance : null)));
}

// Tensors of rows are fetched only where the document states no score.
async function layersLoad(doc) {
  const missing = (layer, id) => doc.has(`${layer}.${id}`) && !Number.isFinite(doc.heads?.[layer]?.[0]?.scores?.[id]);
  await doc.load(...doc.layers.flatMap((_, layer) => LAYER_CHARTS.filter(({ id }) => missing(layer, id)).map(({ id }) => `${layer}.${id}`)));
}

function layersChosen(root, doc, state, t, now) {
  const kinds = (doc.heads?.[now.layer]?.[now.head]?.kinds ?? []).map((kind) => kindWord(kind, t));
  const link = (view, word) => el("button", { type: "button", class: "plain", onclick: () => state.set({ view }) }, word);
  root.replaceChildren(el("h3", {}, headTitle(doc, now, t)), el("p", { class: "plot-about" }, kinds.join(", ") || t("layers.other")),
    el("dl", { class: "layers-facts" }, LAYER_CHARTS.map(({ id, format = formatNumber }) =>
      [id, layerNumber(doc, id, now.layer, now.head), format]).filter(([, x]) => Number.isFinite(x))
      .map(([id, x, format]) => el("div", {}, el("dt", {}, t("layers." + id)), el("dd", {}, format(x))))),
    link("head", t("layers.open")), " ", link("steps", t("layers.steps")));
}

function layersLegend(root, doc, t, theme) {
  const there = HEAD_KINDS.filter((kind) => doc.heads?.some((heads, layer) => heads.some((_, head) => kindOf(doc, layer, head) === kind)));
  root.replaceChildren(...there.map((kind) => el("li", {}, kindIcon(kind, theme), kindWord(kind, t))), el("li", {}, kindIcon(null, theme), t("layers.other")));
}

// A head may be of several kinds, and stands in each.
function layersKinds(root, doc, state, t, now) {
  const groups = new Map(HEAD_KINDS.map((kind) => [kind, []]));
  let without = 0;
  doc.heads?.forEach((heads, layer) => heads.forEach(({ kinds, scores }, head) => {
    for (const kind of kinds ?? []) {
      if (!groups.has(kind)) groups.set(kind, []);
      groups.get(kind).push({ layer, head, score: scores?.[kind === "broad" ? "evenness" : kind] });
    }
    if (!kinds?.length) without++;
  }));
  const held = root.contains(document.activeElement) ? document.activeElement.dataset.at : null;
  root.replaceChildren(...[...groups].filter(([, heads]) => heads.length).map(([kind, heads]) => el("section", { class: "layers-kind", "data-kind": kind },
    el("h4", {}, kindIcon(kind, now.theme), kindWord(kind, t), el("span", { class: "layers-count" }, String(heads.length))),
    el("p", {}, layersWhy(kind, t)),
    el("div", { class: "layers-heads" }, heads.sort((a, b) => (b.score ?? 0) - (a.score ?? 0)).map(({ layer, head, score }) => el("button", {
      type: "button", class: "layers-head", "data-at": `${kind}.${layer}.${head}`, "aria-pressed": String(layer === now.layer && head === now.head),
      onclick: () => state.set({ layer, head }) }, headTitle(doc, { layer, head }, t), Number.isFinite(score) ? el("small", {}, score.toFixed(2)) : null))))),
  el("p", { class: "plot-about layers-without" }, t("layers.without", { n: without })));
  if (held) root.querySelector(`[data-at="${CSS.escape(held)}"]`)?.focus({ preventScroll: true });
}

function layersWhy(kind, t) {
  const key = "layers.why." + kind, why = t(key);
  return why === key ? "" : why;
}
