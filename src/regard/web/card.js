// The check beside every explanation: do the tokens that it names really matter to the answer?
import { el, svgEl, formatNumber } from "./dom.js";
import { categorical } from "./scales.js";
import { plotAxis, plotAxisY, plotBox, plotLine, plotRange, plotTicks } from "./plot.js";
import { CARD_WORDS } from "./words-panels.js";

// These know nothing of the model, or are the plainest gradient: what an explanation has to beat.
const CARD_ORDERS = ["random", "recency"], CARD_REFERENCES = [...CARD_ORDERS, "gradient"];
const CARD_LEAST = 5; // texts: fewer have no intervals that could be trusted
const CARD_CHECKS = ["comprehensiveness", "sufficiency"];
const CARD_CURVES = ["deletion", "insertion"];
const CARD_DASHES = { random: "2 4", recency: "7 4", gradient: "1 3 7 3" };

export const cardView = {
  id: "card", perHead: false, words: CARD_WORDS,
  available: (doc) => Boolean(doc.card),
  mount(root, doc, state, t) {
    const { card } = doc, { language } = state.get(), boxes = [];
    const box = (draw) => { const made = plotBox((width) => draw(width, state.get().theme)); boxes.push(made); return made; };
    const panel = (id, child, foot) => el("section", { class: "plot-panel", "data-chart": id }, el("h3", {}, t("card." + id)),
      el("p", { class: "plot-about" }, t(`card.${id}.about`)), child, foot);
    const facts = [["examples", card.examples], ["seeds", card.seeds], ["tops", card.fractions.map((share) => `${formatNumber(100 * share)} %`).join(", ")]];
    root.append(
      el("blockquote", { class: "card-verdict" }, card.verdict[language] ?? card.verdict.en),
      el("dl", { class: "card-facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, t("card." + name)), el("dd", {}, String(value))))),
      el("div", { class: "card-grid" },
        CARD_CHECKS.map((id) => panel(id, box((width, theme) => cardIntervals(width, card, id, theme, t)), cardBeaten(card, id, t))),
        CARD_CURVES.map((id) => panel(id, box((width, theme) => cardCurves(width, card, id, theme, t))))),
      el("ul", { class: "card-legend" }, card.methods.map((method, i) =>
        el("li", {}, box((width, theme) => cardSwatch(card, i, theme)), el("strong", {}, cardName(method.name, t)),
        " ", t(`card.method.${method.name}.about`)))),
      el("p", { class: "plot-about" }, t("card.intervals" + (card.examples === 1 ? ".one" : card.examples < CARD_LEAST ? ".few" : ""),
        { n: card.examples, least: CARD_LEAST })));
    state.subscribe((now, changed) => { if (changed.has("theme")) for (const each of boxes) each.redraw(); });
  },
};

function cardName(name, t) {
  const key = "card.method." + name, word = t(key);
  return word === key ? name : word;
}

// Explanations have colours, what they are compared with is grey and dashed.
function cardStyle(card, at, theme) {
  const { name } = card.methods[at], reference = CARD_REFERENCES.indexOf(name);
  if (reference >= 0) return { class: "card-reference", "stroke-dasharray": CARD_DASHES[name] };
  const place = card.methods.slice(0, at).filter((method) => !CARD_REFERENCES.includes(method.name)).length;
  return { class: "card-method", style: { color: categorical(place, theme) } };
}

function cardSwatch(card, at, theme) {
  return svgEl("svg", { width: 34, height: 12, "aria-hidden": "true" },
    svgEl("g", cardStyle(card, at, theme), svgEl("line", { class: "card-line", x1: 2, x2: 32, y1: 6, y2: 6 })));
}

// Mean and interval of each method, one line each; the two blind orders as bands behind.
function cardIntervals(width, card, id, theme, t) {
  const rows = card.methods.map((method) => method[id]), range = plotRange(rows.flat(), { zero: true }), high = 26;
  const left = Math.min(150, width * 0.4), x = plotLine(range, left + 6, width - 12), bottom = 8 + high * rows.length;
  const svg = svgEl("svg", { width, height: bottom + 20, role: "img", "aria-label": t("card." + id) },
    plotAxis(x, plotTicks(...range, Math.max(3, Math.floor((width - left) / 70))), 2, bottom));
  const readout = (row) => t("card.interval", { mean: formatNumber(row[0]), low: formatNumber(row[1]), high: formatNumber(row[2]) });
  card.methods.forEach((method, i) => {
    const [mean, low, high_] = method[id], y = 8 + high * (i + 0.5), blind = CARD_ORDERS.includes(method.name);
    if (blind) svg.append(svgEl("rect", { class: "card-band", x: x(low), width: Math.max(1, x(high_) - x(low)), y: 2, height: bottom - 2 }));
    svg.append(svgEl("g", { ...cardStyle(card, i, theme), "data-method": method.name },
      svgEl("title", {}, `${cardName(method.name, t)}: ${readout(method[id])}`),
      svgEl("rect", { class: "card-hit", x: 0, width, y: y - high / 2, height: high }),
      svgEl("text", { class: "plot-label", x: left - 2, y, dy: "0.35em", "text-anchor": "end" }, cardName(method.name, t)),
      svgEl("line", { class: "card-line", x1: x(low), x2: x(high_), y1: y, y2: y, "stroke-dasharray": "none" }),
      svgEl("circle", { class: "card-dot", "stroke-dasharray": "none", cx: x(mean), cy: y, r: 5 })));
  });
  return svg;
}

// In words, whom each explanation beats: a chart may be read wrongly. It is the card that says so; one of too few texts,
// or one from before cards said it, does not.
function cardBeaten(card, id, t) {
  const told = card.examples >= CARD_LEAST ? card.methods.filter((method) => method.beats && !CARD_REFERENCES.includes(method.name)) : [];
  const orders = card.methods.map((method) => method.name).filter((name) => CARD_ORDERS.includes(name));
  if (!told.length) return null;
  return el("ul", { class: "card-beaten" }, told.map((method) => {
    const beaten = orders.filter((name) => method.beats[id]?.includes(name)), all = orders.length > 0 && beaten.length === orders.length;
    return el("li", { class: all ? "card-yes" : "card-no" }, el("span", { "aria-hidden": "true" }, all ? "✓" : "○"), " ",
      t(beaten.length ? "card.beats" : "card.beats.none",
        { method: cardName(method.name, t), others: beaten.map((name) => cardName(name, t)).join(t("card.and")) }));
  }));
}

// The score of the answer while tokens go or come. A point is a mean, or a mean with its band [mean, low, high].
function cardCurves(width, card, id, theme, t) {
  const high = 220, left = 44, right = width - 10, bottom = high - 34, xs = card.curve;
  const point = (number) => (Array.isArray(number) ? number : [number, number, number]);
  const range = plotRange(card.methods.flatMap((method) => method[id].flatMap(point)), {});
  const x = plotLine([xs[0], xs.at(-1)], left, right), y = plotLine(range, bottom, 8), place = (i, number) => `${x(xs[i]).toFixed(1)} ${y(number).toFixed(1)}`;
  const svg = svgEl("svg", { width, height: high, role: "img", "aria-label": t("card." + id) }, plotAxisY(y, plotTicks(...range, 5), left, right),
    plotAxis(x, xs.length > 6 ? xs.filter((_, i) => i % 2 === 0) : xs, bottom, bottom, (share) => Math.round(100 * share) + " %"),
    svgEl("text", { class: "plot-label", x: (left + right) / 2, y: high - 4, "text-anchor": "middle" }, t(`card.${id}.axis`)));
  // What it is compared with lies behind.
  const order = card.methods.map((_, i) => i).sort((a, b) => CARD_REFERENCES.includes(card.methods[b].name) - CARD_REFERENCES.includes(card.methods[a].name));
  for (const i of order) {
    const points = card.methods[i][id].map(point), banded = points.some(([mean, low]) => low !== mean);
    const edge = [...points.map(([, , top], at) => place(at, top)), ...points.map(([, low], at) => place(at, low)).reverse()];
    svg.append(svgEl("g", { ...cardStyle(card, i, theme), "data-method": card.methods[i].name }, svgEl("title", {}, cardName(card.methods[i].name, t)),
      banded ? svgEl("polygon", { class: "card-area", points: edge.join(" ") }) : null,
      svgEl("polyline", { class: "card-line", points: points.map(([mean], at) => place(at, mean)).join(" ") })));
  }
  return svg;
}
