// Keys that work everywhere on the page, and the list of them.
import { el } from "./dom.js";
import { stepHead } from "./chooser.js";

export function pageKeys(state, doc, views) {
  const other = (name, a, b) => state.set({ [name]: state.get()[name] === a ? b : a });
  const actions = {
    n: () => stepHead(state, doc, 1), p: () => stepHead(state, doc, -1),
    N: () => state.set({ layer: state.get().layer + 1 }), P: () => state.set({ layer: state.get().layer - 1 }),
    v: () => other("values", "weighted", "raw"), d: () => other("theme", "dark", "light"), l: () => other("language", "en", "zh"),
    "?": () => document.getElementById("help").showModal(),
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea, dialog")) return;
    const view = /^[1-9]$/.test(event.key) && views[event.key - 1];
    if (view) state.set({ view: view.id });
    else if (Object.hasOwn(actions, event.key)) actions[event.key]();
    else return;
    event.preventDefault();
  });
}

export function helpDialog(t) {
  const line = (keys, word) => el("tr", {}, el("td", {}, keys.map((key) => el("kbd", {}, key))), el("td", {}, t(word)));
  return el("dialog", { id: "help", class: "help", "aria-labelledby": "help-title", onclick: (event) => event.target.id === "help" && event.target.close() },
    el("form", { method: "dialog" }, el("h2", { id: "help-title" }, t("keysTitle")),
      el("table", {}, el("tbody", {}, line(["1", "…", "9"], "keys.tabs"), line(["n", "p"], "keys.head"), line(["N", "P"], "keys.layer"),
        line(["v"], "keys.values"), line(["←", "↑", "→", "↓"], "keys.arrows"), line(["+", "−", "0"], "keys.zoom"), line(["Enter"], "keys.enter"),
        line(["d"], "keys.theme"), line(["l"], "keys.language"), line(["?"], "keys.help"))),
      el("button", { class: "plain" }, t("close"))));
}
