// What happens without a head: the change of the loss, and the answer that comes out then.
import { el, formatNumber } from "./dom.js";
import { headTitle, kindChips } from "./chooser.js";
import { dotStrips } from "./plot.js";
import { ABLATION_WORDS } from "./words-panels.js";

const ABLATION_ROWS = 60;
const ABLATION_ORDERS = {
  head: (a, b) => a.layer - b.layer || a.head - b.head,
  change: (a, b) => b.change - a.change,
  answer: (a, b) => Number(b.changed) - Number(a.changed) || b.change - a.change,
};
const ablationSort = { by: "change", reversed: false, all: false }; // outlives a change of language

export const ablationView = {
  id: "ablation", perHead: false, words: ABLATION_WORDS,
  available: (doc) => Boolean(doc.ablation?.heads?.length),
  mount(root, doc, state, t) {
    const { ablation } = doc, changes = new Map(ablation.heads.map((row) => [`${row.layer}.${row.head}`, row.change]));
    const table = el("div", { class: "ablation-rows" }), draw = () => ablationTable(table, doc, state, t, draw);
    const worst = ablation.heads.reduce((a, b) => (b.change > a.change ? b : a)), harmless = ablation.heads.filter((row) => row.change <= 0).length;
    root.append(
      ...(ablation.given ? [ablationText("target", doc.answer, t), el("p", { class: "note" }, t("ablation.given"))] : []),
      el("p", { class: "ablation-sum" }, t("ablation.mode." + ablation.mode), " ",
        t("ablation.sum", { loss: formatNumber(ablation.loss), n: ablation.heads.length, harmless,
        worst: headTitle(doc, worst, t), change: signed(worst.change) })),
      dotStrips(doc, state, t, { id: "change", title: t(changeName(doc)), about: t("ablation.change.about"), zero: true,
        format: (x) => (Number.isFinite(x) ? (x > 0 ? "+" : x < 0 ? "−" : "") + formatNumber(Math.abs(x)) : "–"),
        value: (layer, head) => changes.get(`${layer}.${head}`) ?? NaN }),
      ablation.answer === null ? "" : ablationText("whole", ablation.answer, t), table);
    state.subscribe((now, changed) => { if (changed.has("layer") || changed.has("head")) ablationChoose(table, now); });
    draw();
  },
};

// Of a target that was given the loss is not that of the answers beside it.
function changeName(doc) { return doc.ablation.given ? "ablation.change.target" : "ablation.change"; }

function ablationText(name, text, t) {
  return el("p", { class: "ablation-answer ablation-" + name }, el("span", { class: "label" }, t("ablation." + name)), " ", el("q", {}, text));
}

function signed(x) {
  if (!Number.isFinite(x)) return "–";
  const size = Math.abs(x), text = size && size < 0.0005 ? size.toExponential(1) : size.toFixed(size < 10 ? 4 : 1);
  return (x > 0 ? "+" : x < 0 ? "−" : "") + text.replace("-", "−");
}

function ablationTable(root, doc, state, t, redraw) {
  const { heads } = doc.ablation, { by, reversed, all } = ablationSort, now = state.get(), held = document.activeElement?.id;
  const rows = [...heads].sort(ABLATION_ORDERS[by]);
  if (reversed) rows.reverse();
  const answers = heads.some((row) => row.answer !== null && row.answer !== undefined), top = Math.max(...heads.map((row) => Math.abs(row.change)), 1e-12);
  const column = (name) => el("th", { scope: "col", "aria-sort": by === name ? (reversed === (name === "head") ? "descending" : "ascending") : "none" },
    el("button", { type: "button", id: "ablation-by-" + name, onclick: () => {
      Object.assign(ablationSort, { by: name, reversed: by === name && !reversed });
      redraw();
    } }, t(name === "change" ? changeName(doc) : "ablation.column." + name),
    el("span", { "aria-hidden": "true" }, by === name ? (reversed ? " ▴" : " ▾") : "")));
  root.replaceChildren(el("table", { class: "ablation-table" },
    el("thead", {}, el("tr", {}, column("head"), column("change"), answers ? column("answer") : null)),
    el("tbody", {}, rows.slice(0, all ? rows.length : ABLATION_ROWS).map((row) => el("tr", { "data-head": `${row.layer}.${row.head}`,
      class: row.layer === now.layer && row.head === now.head ? "ablation-chosen" : null, onclick: () => state.set({ layer: row.layer, head: row.head }) },
    el("th", { scope: "row" }, el("button", { type: "button", class: "steps-key" }, headTitle(doc, row, t)), kindChips(doc, row.layer, row.head, t)),
    el("td", { class: "ablation-change" }, ablationBar(row.change / top), el("span", { class: "ablation-number" }, signed(row.change))),
    answers ? el("td", { class: "ablation-text" }, ablationAnswer(doc, row, t)) : null)))),
  rows.length > ABLATION_ROWS && !all ? el("button", { type: "button", class: "plain", id: "ablation-all",
    onclick: () => { ablationSort.all = true; redraw(); } },
    t("ablation.all", { n: rows.length - ABLATION_ROWS })) : "");
  if (held) document.getElementById(held)?.focus({ preventScroll: true });
}

function ablationChoose(root, now) {
  for (const row of root.querySelectorAll("tr[data-head]")) row.classList.toggle("ablation-chosen", row.dataset.head === `${now.layer}.${now.head}`);
}

// Worse to the right, better to the left.
function ablationBar(part) {
  const size = 50 * Math.min(1, Math.abs(part));
  return el("span", { class: "ablation-bar", "aria-hidden": "true" },
    el("i", { class: part < 0 ? "ablation-better" : null, style: { width: size + "%", left: (part < 0 ? 50 - size : 50) + "%" } }));
}

function ablationAnswer(doc, row, t) {
  if (!row.changed) return el("span", { class: "ablation-same" }, t("ablation.same"));
  if (row.answer === null || row.answer === undefined) return t("ablation.differs");
  return newWords(doc.ablation.answer, row.answer).map(([text, isNew]) => (isNew ? el("mark", {}, text) : text));
}

// The pieces of `after`, each with whether it is missing in `before` at that place (longest common subsequence of words).
export function newWords(before, after) {
  const split = (text) => text.match(/\s+|[\p{Script=Han}]|[^\s\p{Script=Han}]+/gu) ?? [];
  const a = split(before), b = split(after), width = b.length + 1, length = new Uint16Array(a.length * b.length < 4e6 ? (a.length + 1) * width : 0);
  if (!length.length) return [[after, false]]; // too long to compare word by word
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      length[i * width + j] = a[i] === b[j] ? length[(i + 1) * width + j + 1] + 1 : Math.max(length[(i + 1) * width + j], length[i * width + j + 1]);
    }
  }
  const pieces = [];
  for (let i = 0, j = 0; j < b.length;) {
    if (i < a.length && a[i] === b[j]) { pieces.push([b[j++], false]); i++; }
    else if (i < a.length && length[(i + 1) * width + j] >= length[i * width + j + 1]) i++;
    else { pieces.push([b[j], Boolean(b[j].trim())]); j++; }
  }
  return pieces;
}
