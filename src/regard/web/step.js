// One row of one head, computed in front of the reader: q, k, q.k / sqrt(d), mask, softmax, weighted sum.
import { el, svgEl, formatNumber, placeLabel, tokenLabel } from "./dom.js";
import { headTitle, kindChips } from "./chooser.js";
import { readHash } from "./state.js";
import { rowNumbers, largestPlaces } from "./stepnumbers.js";
import { STEPS_WORDS } from "./words-panels.js";

// Which parts of the formula light up, and which columns of the table stand beside the newest, the last one.
const STEP_LIST = [
  { id: "query", parts: ["q"], columns: [] },
  { id: "keys", parts: ["k"], columns: ["k"] },
  { id: "dot", parts: ["dot"], columns: ["k", "dot"] },
  { id: "scale", parts: ["scale"], columns: ["dot", "score"] },
  { id: "mask", parts: ["mask"], columns: ["score", "masked"] },
  { id: "softmax", parts: ["softmax"], columns: ["masked", "exp", "weight"] },
  { id: "sum", parts: ["v"], columns: ["weight", "v", "part"] },
  { id: "heads", parts: ["all"], columns: [] },
];
const SHOWN_KEYS = 12, SHOWN_TOKENS = 48;
let stepNow = 0; // outlives a change of language

const minus = (text) => text.replace(/-/g, "−");
const fixed = (x, digits = 3) => minus(x.toFixed(digits).replace(/^-(0\.0+)$/, "$1"));
// Small shares keep two digits: here the numbers themselves are looked at.
const stepsShare = (x) => minus(formatNumber(100 * x, x < 0.1 ? 2 : 3)) + " %";
const inBrackets = (x) => (x < 0 ? `(${fixed(x)})` : fixed(x));

export const stepsView = {
  id: "steps", perHead: true, words: STEPS_WORDS,
  available: (doc) => doc.layers.length > 0,
  mount(root, doc, state, t) {
    const steps = new StepsPanel(root, doc, state, t);
    state.subscribe((now, changed) => {
      if (changed.has("key")) steps.key = now.key;
      else if (["layer", "head", "row"].some((name) => changed.has(name))) steps.key = null;
      else return;
      steps.draw();
    });
    steps.draw();
  },
};

class StepsPanel {
  constructor(root, doc, state, t) {
    Object.assign(this, { doc, state, t, drawn: 0, key: readHash(location.hash).key ?? null });
    this.tokens = el("div", { class: "steps-tokens", role: "group", "aria-label": t("steps.token"), onkeydown: (event) => this.tokenKeys(event) });
    this.body = el("div", { class: "steps-body" });
    this.tip = el("output", { class: "steps-tip", hidden: true });
    root.append(this.tokens, this.body, el("p", { class: "note" }, t("honesty")), this.tip);
    const keys = (event) => {
      if (!root.isConnected) removeEventListener("keydown", keys);
      else this.stepKeys(event, root);
    };
    addEventListener("keydown", keys);
  }

  stepKeys(event, root) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const busy = event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea, dialog");
    if (!by || busy || !root.getClientRects().length || !this.numbers) return;
    event.preventDefault();
    this.go(stepNow + by);
  }

  go(step) {
    const next = Math.max(0, Math.min(STEP_LIST.length - 1, step)), held = document.activeElement?.id;
    if (next === stepNow) return;
    stepNow = next;
    this.drawStep();
    if (held) document.getElementById(held)?.focus({ preventScroll: true });
  }

  async draw() {
    const { doc, state } = this, now = state.get(), turn = ++this.drawn, layer = doc.layers[now.layer];
    this.drawTokens(now);
    const computed = layer.exact === "qk" && doc.exact(now.layer, now.head) &&
      await doc.unlessGone(doc.load(now.layer + ".q", now.layer + ".k", now.layer + ".v")) !== null;
    const found = computed ? rowNumbers(doc, now.layer, now.head, now.row) : await stepsWeights(doc, now);
    if (turn !== this.drawn) return; // the reader went on meanwhile
    this.numbers = computed ? found : null;
    if (computed) this.drawStep();
    else this.body.replaceChildren(...this.withoutNumbers(found, now));
  }

  // ---- the token that reads

  // In a decoder that is shifted by one, a row stands where its token is about to be written.
  writes(now) { return Boolean(this.doc.axes.prefix) && this.doc.layers[now.layer].rows === "target"; }

  drawTokens(now) {
    const { doc, t } = this, tokens = doc.rowsAxis(now.layer).tokens, held = this.tokens.contains(document.activeElement);
    const from = tokens.length <= SHOWN_TOKENS ? 0 : Math.max(0, Math.min(tokens.length - SHOWN_TOKENS, now.row - SHOWN_TOKENS / 2));
    const shown = tokens.slice(from, from + SHOWN_TOKENS);
    const cut = (count, side) => (count > 0 ? el("span", { class: "steps-cut" }, t("steps.more." + side, { n: count.toLocaleString("en") })) : null);
    this.tokens.replaceChildren(...[el("span", { class: "label" }, t(this.writes(now) ? "steps.token.written" : "steps.token")), cut(from, "before"),
      ...shown.map((token, i) => el("button", {
      type: "button", class: "steps-chip", tabindex: from + i === now.row ? 0 : -1, "aria-pressed": String(from + i === now.row),
      title: t("head.rowOf", { i: from + i + 1, n: tokens.length }), onclick: () => this.state.set({ row: from + i }),
    }, tokenLabel(token))), cut(tokens.length - from - shown.length, "after")].filter(Boolean));
    if (held) this.tokens.querySelector("[aria-pressed=true]")?.focus({ preventScroll: true });
  }

  tokenKeys(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.state.set({ row: this.state.get().row + by });
  }

  // ---- one step

  drawStep() {
    const { doc, state, t, numbers } = this, step = STEP_LIST[stepNow];
    // The key of the examples: the one that the reader chose, or the one that is read most.
    const now = this.now = { ...state.get(), key: this.key ?? numbers.weights.indexOf(biggest(numbers.weights)) };
    this.keyTokens = doc.keysAxis(now.layer).tokens;
    const words = this.words(numbers, now);
    this.body.replaceChildren(
      this.stepper(), stepsFormula(step, numbers, doc.layers[now.layer], t),
      el("div", { class: "steps-say", "aria-live": "polite" }, el("h3", {}, `${stepNow + 1}. ${t(`steps.${step.id}`)}`),
        el("p", {}, t(this.sayKey(step, numbers), words))),
      ...this[step.id](numbers, words).filter(Boolean));
  }

  sayKey(step, { from, to, keys, v, scale, d }) {
    if (step.id === "mask" && from === 0 && to === keys) return "steps.mask.open";
    if (step.id === "sum" && !v) return "steps.sum.absent";
    if (step.id === "scale" && scale === 1 && d !== 1) return "steps.scale.none";
    return `steps.${step.id}.say`;
  }

  words(numbers, now) {
    const { doc } = this, layer = doc.layers[now.layer];
    return {
      token: this.t(this.writes(now) ? "steps.written" : "steps.quoted", { token: tokenLabel(doc.rowsAxis(now.layer).tokens[now.row]) }),
        key: tokenLabel(this.keyTokens[now.key]), d: numbers.d, keys: numbers.keys,
      hidden: numbers.keys - (numbers.to - numbers.from), scale: formatNumber(numbers.scale, 4), root: formatNumber(Math.sqrt(numbers.d), 4),
      heads: layer.heads, head: headTitle(doc, now, this.t), all: layer.heads * (numbers.output?.length ?? numbers.d),
    };
  }

  stepper() {
    const { t } = this, move = (by, id, sign) => el("button", { type: "button", class: "steps-move", id, "aria-label": t(id), title: t(id),
      disabled: !STEP_LIST[stepNow + by], onclick: () => this.go(stepNow + by) }, sign);
    return el("div", { class: "steps-stepper" }, move(-1, "steps.previous", "←"),
      el("ol", {}, STEP_LIST.map((step, i) => el("li", {}, el("button", { type: "button", id: "steps-to-" + step.id,
        "aria-current": i === stepNow ? "step" : null, class: i < stepNow ? "steps-done" : null, onclick: () => this.go(i) },
      el("b", {}, String(i + 1)), el("span", {}, t("steps." + step.id)))))), move(1, "steps.next", "→"));
  }

  query({ q }) {
    return [this.vectorRow("q", q), el("ol", { class: "steps-numbers", "aria-label": "q" }, Array.from(q, (x) => el("li", {}, fixed(x))))];
  }

  keys(numbers) { return [this.vectorRow("q", numbers.q), this.table(numbers)]; }

  dot(numbers) {
    const { q } = numbers, { key } = this.now, k = numbers.k(key), products = Float64Array.from(q, (x, i) => x * k[i]);
    const best = largestPlaces(products.map(Math.abs), 3).sort((a, b) => Math.abs(products[b]) - Math.abs(products[a]));
    const rest = products.length - best.length, left = numbers.dots[key] - best.reduce((sum, i) => sum + products[i], 0);
    return [this.worked("dot", [
      this.vectorRow("q", q), this.vectorRow("k", k, "k " + this.keyLabel(key)), this.vectorRow("q×k", products),
      el("p", { class: "steps-sum" }, "q·k = " + best.map((i) => `${inBrackets(q[i])} × ${inBrackets(k[i])}`).join(" + ")
        + (rest > 0 ? ` + ${this.t("steps.rest", { n: rest, x: inBrackets(left) })}` : "") + ` = ${fixed(numbers.dots[key])}`),
    ]), this.table(numbers)];
  }

  scale(numbers) {
    const { key } = this.now;
    const by = usualScale(numbers)
      ? `/ √${numbers.d} = ${fixed(numbers.dots[key])} / ${formatNumber(Math.sqrt(numbers.d), 4)}` : `× ${formatNumber(numbers.scale, 4)}`;
    return [this.worked("scale", [el("p", { class: "steps-sum" }, `${fixed(numbers.dots[key])} ${by} = ${fixed(numbers.scores[key])}`)]), this.table(numbers)];
  }

  mask(numbers) { return [this.table(numbers)]; }

  softmax(numbers) {
    const { key } = this.now, { scores, largest, exps, total, weights } = numbers, sum = formatNumber(total, 4);
    const line = key >= numbers.from && key < numbers.to
      ? `exp(${fixed(scores[key])} − ${inBrackets(largest)}) / ${sum} = ${formatNumber(exps[key], 4)} / ${sum} = ${stepsShare(weights[key])}`
      : `exp(−∞) / ${sum} = 0`;
    return [this.worked("softmax", [el("p", { class: "steps-sum" }, line)]), this.table(numbers)];
  }

  sum(numbers) {
    if (!numbers.v) return [this.table(numbers)];
    return [this.vectorRow("out", numbers.output, this.t("steps.output"), (i) => this.sumOf(numbers, i)), this.table(numbers)];
  }

  // How one number of the result came about.
  sumOf({ weights, v, output }, i) {
    const parts = weights.map((weight, key) => weight * v(key)[i]);
    const best = largestPlaces(parts.map(Math.abs), 3), left = output[i] - best.reduce((sum, key) => sum + parts[key], 0);
    const rest = weights.length - best.length;
    return best.map((key) => `${stepsShare(weights[key])} × ${inBrackets(v(key)[i])}`).join(" + ")
      + (rest > 0 ? ` + ${this.t("steps.rest", { n: rest, x: inBrackets(left) })}` : "");
  }

  heads(numbers) {
    const { doc, t, now } = this, { heads } = doc.layers[now.layer];
    const all = Array.from({ length: heads }, (_, head) => (head === now.head ? numbers : rowNumbers(doc, now.layer, head, now.row)));
    const top = Math.max(...all.map(({ output }) => (output ? biggest(output) : 0)));
    return [el("div", { class: "steps-scroll" }, el("table", { class: "steps-table steps-heads" },
      el("thead", {}, el("tr", {}, [t("headWord"), t("steps.reads"), t("steps.weights"), t("steps.output")].map((word) => el("th", { scope: "col" }, word)))),
      el("tbody", {}, all.map((row, head) => this.headRow(row, head, top)))))];
  }

  headRow({ weights, output }, head, top) {
    const { doc, now, state } = this, key = weights.indexOf(biggest(weights)), [bins, width] = stepsBins(weights);
    return el("tr", { class: head === now.head ? "steps-chosen" : null, onclick: () => state.set({ head }) },
      el("th", { scope: "row" }, el("button", { type: "button", class: "steps-key" }, String(head + 1)), kindChips(doc, now.layer, head, this.t)),
      el("td", {}, el("span", { class: "steps-token" }, this.keyLabel(key)), " ", el("span", { class: "steps-number" }, stepsShare(weights[key]))),
      el("td", { class: "steps-wide" }, this.strip(bins, { name: (i) =>
        (width === 1 ? this.keyLabel(i) : `${i * width + 1}–${Math.min(weights.length, (i + 1) * width)}`), show: stepsShare })),
      el("td", { class: "steps-wide" }, output ? this.strip(output, { top }) : "–"));
  }

  // ---- the table of keys

  table(numbers) {
    const { t } = this, step = STEP_LIST[stepNow], hidden = numbers.keys - (numbers.to - numbers.from);
    const columns = step.columns.filter((name) => numbers.v || !["v", "part"].includes(name));
    // A short text stands there whole, hidden keys too; of a long one the keys with the largest weights.
    const whole = numbers.keys <= SHOWN_KEYS + 4;
    const shown = whole ? Array.from({ length: numbers.keys }, (_, i) => i) : largestPlaces(numbers.weights, SHOWN_KEYS, this.now.key);
    const tops = { k: stepsTop(shown, numbers.k), v: numbers.v && stepsTop(shown, numbers.v),
      part: numbers.output && stepsTop(shown, (key) => this.partOf(numbers, key)),
      dot: biggest(shown.map((key) => numbers.dots[key])), score: biggest(shown.map((key) => numbers.scores[key])), weight: biggest(numbers.weights), exp: 1 };
    tops.masked = tops.score;
    const left = numbers.keys - shown.length, hiddenShown = shown.filter((key) => key < numbers.from || key >= numbers.to).length;
    return el("div", { class: "steps-scroll" }, el("table", { class: "steps-table" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, t("steps.key")),
        columns.map((name, i) => el("th", { scope: "col", class: i === columns.length - 1 ? "steps-new" : null }, t("steps.column." + name))))),
      el("tbody", {}, shown.map((key) => this.keyRow(numbers, key, columns, tops))),
      el("tfoot", {}, left > 0 ? this.othersRow(numbers, shown, columns, hidden - hiddenShown) : null, this.totalRow(numbers, columns, step.id))));
  }

  keyRow(numbers, key, columns, tops) {
    const hidden = key < numbers.from || key >= numbers.to;
    const cells = columns.map((name, i) => el("td", { "data-column": name,
      class: [i === columns.length - 1 ? "steps-new" : "", ["k", "v", "part"].includes(name) ? "steps-wide" : ""].join(" ") },
      this.cell(numbers, key, name, tops, hidden)));
    const after = ["mask", "softmax", "sum"].includes(STEP_LIST[stepNow].id);
    return el("tr", { "data-key": key, class: [key === this.now.key ? "steps-chosen" : "", hidden && after ? "steps-hidden" : ""].join(" "),
      onclick: () => this.state.set({ key }) },
      el("th", { scope: "row" }, el("button", { type: "button", class: "steps-key", id: "steps-key-" + key, title: this.keyTokens[key],
        "aria-pressed": String(key === this.now.key) }, this.keyLabel(key))), cells);
  }

  cell(numbers, key, name, tops, hidden) {
    if (name === "k") return this.strip(numbers.k(key), { top: tops.k });
    if (name === "v") return this.strip(numbers.v(key), { top: tops.v });
    if (name === "part") return this.strip(this.partOf(numbers, key), { top: tops.part });
    if (name === "masked" && hidden) return el("span", { class: "steps-number" }, "−∞");
    const value = { dot: numbers.dots, score: numbers.scores, masked: numbers.scores, exp: numbers.exps, weight: numbers.weights }[name][key];
    const text = name === "weight" ? stepsShare(value) : name === "exp" ? minus(formatNumber(value)) : fixed(value);
    return [stepsBar(value / (tops[name] || 1), name === "weight" || name === "exp"), el("span", { class: "steps-number", "data-value": value }, text)];
  }

  partOf(numbers, key) { return Float64Array.from(numbers.v(key), (x) => x * numbers.weights[key]); }

  othersRow(numbers, shown, columns, hidden) {
    const { t } = this, rest = (list) => list.reduce((sum, x) => sum + x, 0) - shown.reduce((sum, key) => sum + list[key], 0);
    const n = numbers.keys - shown.length, share = rest(numbers.weights);
    const words = t("steps.others", { n: n.toLocaleString("en"), share: stepsShare(Math.max(0, share)) }) +
      (hidden > 0 ? t("steps.others.hidden", { n: hidden.toLocaleString("en") }) : "");
    const value = { exp: () => formatNumber(rest(numbers.exps)), weight: () => stepsShare(Math.max(0, share)) };
    const first = columns.findIndex((name) => name in value), lead = first < 0 ? columns.length : first;
    return el("tr", { class: "steps-others" }, el("th", { scope: "row", colspan: 1 + lead }, words),
      columns.slice(lead).map((name) => el("td", {}, value[name]?.() ?? "")));
  }

  totalRow(numbers, columns, step) {
    const total = { exp: () => formatNumber(numbers.total, 4), weight: () => stepsShare(numbers.total > 0 ? 1 : 0), part: () => this.strip(numbers.output) };
    if (step !== "softmax" && step !== "sum") return null;
    return el("tr", { class: "steps-total" }, el("th", { scope: "row" }, this.t("steps.total")),
      columns.map((name) => el("td", { "data-column": name, class: name === "part" ? "steps-wide" : null }, total[name]?.() ?? "")));
  }

  worked(id, children) {
    return el("div", { class: "steps-worked" }, el("p", { class: "label" }, this.t("steps.for", { key: this.keyLabel(this.now.key) })), children);
  }

  // ---- vectors

  keyLabel(key) { return tokenLabel(this.keyTokens[key]); }

  vectorRow(id, vector, label = id, detail) {
    return el("div", { class: "steps-vector", "data-vector": id, style: `--steps-most: ${24 * vector.length}px` }, el("span", { class: "steps-name" }, label),
      this.strip(vector, { id, detail }),
      el("span", { class: "steps-size" }, this.t("steps.size", { n: vector.length })));
  }

  // Bars up and down from a line, one a number; the number itself where the pointer is.
  strip(vector, { top = biggest(vector), name = (i) => i + 1, show = fixed, detail } = {}) {
    const n = vector.length, up = [], down = [];
    for (let i = 0; i < n; i++) {
      const high = vector[i] / (top || 1);
      (high > 0 ? up : down).push(`M${i + 0.1} 0v${(-high).toFixed(4)}h.8V0z`);
    }
    const svg = svgEl("svg", { class: "steps-strip", viewBox: `0 -1.04 ${n} 2.08`, preserveAspectRatio: "none", role: "img",
      "aria-label": this.t("steps.strip", { n, low: fixed(vector.reduce((a, b) => Math.min(a, b))), high: fixed(vector.reduce((a, b) => Math.max(a, b))) }) },
    svgEl("rect", { class: "steps-at", y: -1.04, width: 1, height: 2.08, visibility: "hidden" }),
    svgEl("line", { x2: n }), svgEl("path", { class: "steps-up", d: up.join("") }), svgEl("path", { class: "steps-down", d: down.join("") }));
    const at = svg.firstChild;
    const tell = (event) => {
      const box = svg.getBoundingClientRect(), i = Math.max(0, Math.min(n - 1, Math.floor((event.clientX - box.left) / box.width * n)));
      at.setAttribute("x", i);
      at.setAttribute("visibility", "visible");
      this.showTip(event, `${name(i)}: ${detail ? `${detail(i)} = ` : ""}${show(vector[i])}`);
    };
    svg.addEventListener("pointermove", tell);
    svg.addEventListener("pointerdown", tell);
    svg.addEventListener("pointerleave", () => { at.setAttribute("visibility", "hidden"); this.tip.hidden = true; });
    return svg;
  }

  showTip(event, text) {
    this.tip.textContent = text;
    this.tip.hidden = false;
    const wide = this.tip.offsetWidth;
    this.tip.style.left = Math.max(8, Math.min(innerWidth - wide - 8, event.clientX - wide / 2)) + "px";
    this.tip.style.top = Math.max(8, event.clientY - 42) + "px";
  }

  // ---- where q, k and v are not there

  withoutNumbers({ labels, weights, kind }, now) {
    const { doc, t } = this, layer = doc.layers[now.layer], top = biggest(weights);
    const shown = largestPlaces(weights, SHOWN_KEYS).filter((i) => weights[i] > 0), left = weights.filter((x) => x > 0).length - shown.length,
      share = 1 - shown.reduce((sum, i) => sum + weights[i], 0);
    const reason = doc.lost(now.layer) ? "gone" : layer.exact === "qk" ? "pooled" : layer.exact ?? "pooled";
    return [stepsFormula({ parts: ["softmax"] }, null, layer, t), el("div", { class: "steps-say" }, el("h3", {}, t("steps.weights.only")),
      el("p", {}, t(reason === "gone" ? "gone" : "steps.why." + reason)), el("p", {}, t("steps.shown." + kind))),
    el("div", { class: "steps-scroll" }, el("table", { class: "steps-table steps-only" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, t("steps.key")), el("th", { scope: "col", class: "steps-new" }, t("steps.column.weight")))),
      el("tbody", {}, shown.map((i) => el("tr", { class: labels[i].key === now.key ? "steps-chosen" : null,
        onclick: () => this.state.set({ key: labels[i].key }) },
        el("th", { scope: "row" }, el("button", { type: "button", class: "steps-key" }, labels[i].text)),
        el("td", { "data-column": "weight", class: "steps-new" }, stepsBar(weights[i] / (top || 1), true),
          el("span", { class: "steps-number", "data-value": weights[i] }, stepsShare(weights[i])))))),
      el("tfoot", {}, left > 0 || kind === "top" ? el("tr", { class: "steps-others" },
        el("th", { scope: "row", colspan: 2 }, kind === "top" ? t("steps.others.top", { share: stepsShare(Math.max(0, share)) })
          : t("steps.others", { n: left.toLocaleString("en"), share: stepsShare(Math.max(0, share)) }))) : null)))];
  }
}

// The weights of a row as far as the document has them: exact, the largest few, or pooled.
async function stepsWeights(doc, now) {
  const { layer, head, row } = now, tokens = doc.keysAxis(layer).tokens, name = (key) => ({ key, text: placeLabel(tokens, key) });
  const exact = await doc.rows(layer, head, row, row + 1);
  if (exact) return { kind: "exact", weights: exact, labels: tokens.map((_, key) => name(key)) };
  if (doc.has(layer + ".top.weights")) {
    await doc.load(layer + ".top.weights", layer + ".top.keys");
    const weights = doc.part(layer + ".top.weights", head), keys = doc.part(layer + ".top.keys", head).data, k = weights.shape[1];
    // Where a row sees fewer keys than are kept, the places left over hold -1.
    const there = Array.from({ length: k }, (_, i) => row * k + i).filter((at) => keys[at] >= 0);
    return { kind: "top", weights: there.map((at) => weights.data[at]), labels: there.map((at) => name(keys[at])) };
  }
  await doc.load(layer + ".map");
  const [rows, width] = doc.layers[layer].bin, map = doc.part(layer + ".map", head), columns = map.shape[1], at = Math.floor(row / rows);
  const labels = Array.from({ length: columns }, (_, bin) => ({ key: bin * width, text: `${bin * width + 1}–${Math.min(tokens.length, (bin + 1) * width)}` }));
  return { kind: "pooled", weights: map.data.subarray(at * columns, (at + 1) * columns), labels };
}

function biggest(numbers) {
  let most = 0;
  for (const x of numbers) most = Math.max(most, Math.abs(x));
  return most;
}

// A long row of weights as at most 128 sums of neighbours, so that its bars can be seen.
function stepsBins(weights) {
  const width = Math.ceil(weights.length / 128), bins = new Float64Array(Math.ceil(weights.length / width));
  weights.forEach((weight, key) => { bins[Math.floor(key / width)] += weight; });
  return [bins, width];
}

const stepsTop = (keys, vector) => Math.max(...keys.map((key) => biggest(vector(key))));

// A number as a bar: from the left for a share, from the middle where it may be negative.
function stepsBar(part, share) {
  const size = 100 * Math.min(1, Math.abs(part)) / (share ? 1 : 2);
  return el("span", { class: "steps-bar" + (share ? "" : " steps-signed"), "aria-hidden": "true" },
    el("i", { class: part < 0 ? "steps-negative" : null, style: { width: size + "%", left: share ? "0" : (part < 0 ? 50 - size : 50) + "%" } }));
}

function mathEl(tag, part, ...children) {
  const node = document.createElementNS("http://www.w3.org/1998/Math/MathML", tag);
  if (part) node.setAttribute("data-part", part);
  node.append(...children);
  return node;
}

const usualScale = ({ scale, d }) => Math.abs(scale * Math.sqrt(d) - 1) < 1e-6;

// softmax(Q K^T / sqrt(d_k) + mask) V, the part that is being explained in colour.
function stepsFormula(step, numbers, layer, t) {
  const mi = (text, part) => mathEl("mi", part, text), mo = (text, part) => mathEl("mo", part, text);
  const open = (layer.band ?? [null, null]).every((side) => side === null);
  const mask = open ? [] : [mo("+", "mask"), mi("M", "mask")];
  const dots = mathEl("mrow", "dot", mi("Q", "q"), mathEl("msup", "k", mi("K"), mi("T")));
  // what this layer really does: most divide by the root, T5 does not scale, some have a number of their own
  const own = numbers && !usualScale(numbers), scale = own && numbers.scale !== 1 ? formatNumber(numbers.scale, 4) : "";
  const scores = own ? mathEl("mrow", "", ...(scale ? [mathEl("mn", "scale", scale)] : []), dots)
    : mathEl("mfrac", "", dots, mathEl("msqrt", "scale", mathEl("msub", "", mi("d"), mi("k"))));
  const math = mathEl("math", "all", mathEl("mrow", "", mi("softmax", "softmax"), mo("(", "softmax"), scores, ...mask, mo(")", "softmax"), mi("V", "v")));
  math.setAttribute("displaystyle", "true");
  const inside = own ? (scale && scale + " ") + "Q K^T" : "Q K^T / sqrt(d_k)";
  math.setAttribute("aria-label", `softmax(${inside}${open ? "" : " + M"}) V`);
  for (const node of [math, ...math.querySelectorAll("[data-part]")]) if (step.parts.includes(node.getAttribute("data-part"))) node.classList.add("steps-on");
  return el("div", { class: "steps-formula" }, math, el("p", {},
    [numbers ? t("steps.d", { d: numbers.d }) : null, open ? null : t("steps.m")].filter(Boolean).join(" · ")));
}
