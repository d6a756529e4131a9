"""The step view, the charts, the card, ablation and drift in real Chromium, against numbers of numpy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

STEPS = ["query", "keys", "dot", "scale", "mask", "softmax", "sum", "heads"]


def number(text: str) -> float:
    return float(text.strip().replace("−", "-").removesuffix(" %"))


def near(shown: float, truth: float, digits: int = 3) -> bool:
    """Equal as far as `digits` significant digits show."""
    size = 10.0 ** (np.floor(np.log10(max(abs(truth), 1e-12))) - digits + 1)
    return bool(abs(shown - truth) <= 0.51 * size)


def column(tab: Any, name: str) -> list[float]:
    """The numbers of a column of the table of keys, in full precision."""
    return list(tab.each(f"td[data-column={name}] [data-value]", "+e.dataset.value"))


def strip(tab: Any, selector: str, count: int) -> list[float]:
    """What the bars of a vector say under the pointer."""
    drawn = tab.locator(selector)
    drawn.scroll_into_view_if_needed()
    box, found = drawn.bounding_box(), []
    for i in range(count):
        tab.mouse.move(box["x"] + (i + 0.5) / count * box["width"], box["y"] + box["height"] / 2)
        tab.until(f"document.querySelector('.steps-tip').innerText.startsWith('{i + 1}:')")
        found.append(number(re.split("[=:] ", tab.text(".steps-tip"))[-1]))
    return found


# a cross layer, a causal one, a row that may read itself alone, grouped queries in a window
@pytest.mark.parametrize(
    ("name", "layer", "head", "row"),
    [("translation", 8, 1, 4), ("translation", 5, 0, 8), ("translation", 3, 2, 0), ("grouped", 0, 3, 9)],
)
def test_steps_compute_what_numpy_computes(tab: Any, pages: Any, name: str, layer: int, head: int, row: int) -> None:
    url, truth = pages(name)
    scores, allowed = truth.scores(layer, head)[row], truth.allowed(layer)[row]
    tab.show(url, view="steps", layer=layer, head=head, row=row)
    query = pytest.approx(truth.tensors[f"{layer}.q"][head, row], abs=6e-4)
    tab.shows(lambda: [number(text) for text in tab.locator(".steps-numbers li").all_inner_texts()], query)
    tab.keyboard.press("ArrowRight")
    tab.shows(lambda: tab.locator("[data-column=k] svg").count(), len(scores))
    tab.keyboard.press("ArrowRight")
    products = pytest.approx(scores / truth.doc["layers"][layer]["scale"], abs=1e-5)
    tab.shows(lambda: column(tab, "dot"), products)
    tab.keyboard.press("ArrowRight")
    tab.shows(lambda: column(tab, "score"), pytest.approx(scores, abs=1e-5))
    tab.keyboard.press("ArrowRight")
    tab.shows(lambda: column(tab, "masked"), pytest.approx(scores[allowed], abs=1e-5))
    assert tab.each("tr.steps-hidden", "+e.dataset.key") == np.flatnonzero(~allowed).tolist()
    assert all("−∞" in text for text in tab.locator("tr.steps-hidden").all_inner_texts())
    tab.keyboard.press("ArrowRight")
    powers = pytest.approx(np.where(allowed, np.exp(scores - scores[allowed].max()), 0), abs=1e-6)
    tab.shows(lambda: column(tab, "exp"), powers)
    assert column(tab, "weight") == pytest.approx(truth.weights(layer, head)[row], abs=1e-6)
    assert tab.text(".steps-total").endswith("100 %")
    tab.keyboard.press("ArrowRight")
    output = truth.output(layer, head)[row]
    tab.locator('[data-vector="out"] svg').wait_for()
    assert strip(tab, '[data-vector="out"] svg', len(output)) == pytest.approx(output, abs=6e-4)
    tab.keyboard.press("ArrowRight")
    tab.locator(".steps-heads tbody tr").first.wait_for()
    for i in range(truth.doc["layers"][layer]["heads"]):
        line = f".steps-heads tbody tr:nth-child({i + 1})"
        assert near(number(tab.text(f"{line} .steps-number")), 100 * truth.weights(layer, i)[row].max(), 2)
        assert strip(tab, f"{line} td:last-child svg", len(output)) == pytest.approx(
            truth.output(layer, i)[row], abs=6e-4
        )
    tab.keyboard.press("ArrowRight")
    tab.drawn()
    assert tab.locator("[aria-current=step]").get_attribute("id") == "steps-to-heads", "the last step stays"


def test_steps_light_the_formula_and_follow_the_choice(tab: Any, pages: Any) -> None:
    url, truth = pages("translation")
    tab.show(url, view="steps", layer=5, head=0, row=8)
    lit = []
    for step in STEPS:
        tab.locator(f"#steps-to-{step}[aria-current=step]").wait_for()
        lit.append(tab.locator(".steps-on").first.get_attribute("data-part"))
        tab.locator('[id="steps.next"]').click(force=True)
    assert lit == ["q", "k", "dot", "scale", "mask", "softmax", "v", "all"]
    tab.locator("#steps-to-dot").click()
    tab.locator("#steps-key-2").click()
    tab.chose("key=2")
    product = truth.scores(5, 0)[8, 2] / 0.25
    tab.shows(lambda: near(number(tab.text(".steps-sum").split("=")[-1]), product), True)
    tab.locator(".steps-chip").nth(4).click()
    tab.chose("row=4")
    tab.locator(".steps-chip[aria-pressed=true]").focus()
    tab.keyboard.press("ArrowRight")
    tab.chose("row=5")
    tab.keyboard.press("l")
    tab.says("#view-steps h2", "逐步计算")
    tab.locator("#steps-to-dot[aria-current=step]").wait_for()  # another language, the same step


def test_steps_say_who_asks(tab: Any, pages: Any) -> None:
    url, _ = pages("translation")
    tab.show(url, view="steps", layer=5, head=0, row=8)
    tab.says(".steps-say p", "“red” asks")
    url, _ = pages("shifted")
    tab.show(url, view="steps", layer=5, head=0, row=7)
    tab.says(".steps-say p", "The place where “red” is about to be written asks")
    tab.show(url, view="steps", layer=0, head=0, row=2)
    tab.says(".steps-say p", "“junge” asks")


def test_steps_cut_a_long_list(tab: Any, pages: Any) -> None:
    url, truth = pages("exact")
    weights = truth.weights(1, 1)[600]
    tab.show(url, view="steps", layer=1, head=1, row=600)
    tab.locator("#steps-to-softmax").click()
    best = np.sort(np.argsort(-weights)[:12])
    tab.locator("#steps-to-softmax[aria-current=step]").wait_for()
    tab.shows(lambda: tab.each("tr[data-key]", "+e.dataset.key"), best.tolist())
    assert column(tab, "weight") == pytest.approx(weights[best], abs=1e-6)
    others = re.search(r"and 1,012 others, together (.+?) %; 423 of them hidden", tab.text(".steps-others"))
    assert others is not None
    assert near(number(others[1]), 100 * (1 - weights[best].sum()), 2)
    tab.locator("#steps-to-sum").click()
    tab.says(".steps-say", "no values")
    tab.locator("#steps-to-heads").click()
    bins = np.add.reduceat(weights, range(0, 1024, 8))
    box = tab.locator(".steps-heads tr:nth-child(2) svg").bounding_box()
    best = int(bins.argmax())
    tab.mouse.move(box["x"] + (best + 0.5) / 128 * box["width"], box["y"] + 9)
    tab.says(".steps-tip", f"{8 * best + 1}–{8 * best + 8}: ")
    assert near(number(tab.text(".steps-tip").split(": ")[1]), 100 * bins[best], 2)


def test_steps_without_vectors_say_why(tab: Any, pages: Any) -> None:
    url, truth = pages("long")
    tab.show(url, view="steps", layer=2, head=3, row=20_000)
    tab.says(".steps-say", "too long")
    line = np.sort(truth.tensors["2.map"][3, 20_000 // 256].astype(np.float64))
    tab.shows(lambda: sorted(column(tab, "weight")), pytest.approx(line[-12:]))


def test_rows_that_see_few_keys_show_those(tab: Any, pages: Any) -> None:
    build = pages.build("grouped")
    about, keys = build.doc["layers"][0], build.tensors["0.top.keys"]
    keys[build.tensors["0.top.weights"] == 0] = -1
    about.update(exact=None, bin=[2, 2])  # as of a text that is too long for exact rows
    url, row = pages.write("few", build), 1
    tab.show(url, view="steps", layer=0, head=1, row=row)
    tab.locator("td[data-column=weight]").first.wait_for()
    there = keys[1, row] >= 0
    assert there.sum() == 2
    tokens = build.doc["axes"]["source"]["tokens"]
    assert tab.each(".steps-only .steps-key", "e.textContent") == [tokens[key] for key in keys[1, row][there]]
    assert column(tab, "weight") == pytest.approx(build.tensors["0.top.weights"][1, row][there], abs=1e-6)
    tab.locator("#tab-ribbons").click()
    tab.says("#view-ribbons", "8 largest raw weights")


def test_steps_show_weights_that_are_given(tab: Any, pages: Any) -> None:
    url, truth = pages("weighed")
    tab.show(url, view="steps", layer=0, head=1, row=6)
    tab.says(".steps-say", "more than q·k")
    line = truth.tensors["0.weights"][1, 6]
    tab.shows(lambda: column(tab, "weight"), pytest.approx(line[line > 0], abs=1e-6))


def test_charts_choose_a_head(tab: Any, pages: Any) -> None:
    url, truth = pages("translation")
    tab.show(url, view="layers", layer=0, head=0)
    tab.locator("[data-chart=first] .plot-mark").first.wait_for()
    charts = ["entropy", "confidence", "distance", "importance", "first"]
    tab.shows(lambda: tab.each("#view-layers [data-chart]", "e.dataset.chart"), charts)
    facts = truth.doc["heads"]
    importance = {f"{i}.{h}": facts[i][h]["importance"] for i in range(len(facts)) for h in range(len(facts[i]))}
    marks = "[data-chart=importance] .plot-mark"
    tab.shows(lambda: tab.locator(marks).count(), len(importance))
    places = dict(tab.each(marks, "[e.dataset.head, +e.getAttribute('transform').match(/[\\d.]+/)[0]]"))
    # each layer has a scale of its own, which ends at its most important head
    largest = [max(head["importance"] for head in heads) for heads in facts]
    shares = [x / largest[int(name.split(".")[0])] for name, x in importance.items()]
    assert np.corrcoef([places[name] for name in importance], shares)[0, 1] > 0.999999
    most = max(importance, key=importance.__getitem__)
    tab.locator(f'{marks}[data-head="{most}"]').click(force=True)
    tab.shows(lambda: tab.each(".plot-chosen", "e.dataset.head"), [most] * 5)
    said = tab.text("[data-chart=importance] .plot-readout")
    assert near(number(said.split(": ")[1]), importance[most])
    sinks = tab.locator("[data-kind=first] .layers-head")
    assert sinks.count() == 9
    sinks.nth(0).click()
    tab.shows(lambda: sinks.nth(0).get_attribute("aria-pressed"), "true")
    tab.locator(".layers-chosen button").last.click()
    tab.locator("#view-steps").wait_for()


def test_importance_is_said_to_be_within_a_layer(tab: Any, pages: Any) -> None:
    url, truth = pages("translation")
    tab.show(url, view="overview", layer=0, head=0)
    assert "its importance (blue), of which each layer has its own scale" in tab.text("#view-overview .note")
    assert "importance within its layer" in tab.text(".facts")
    assert tab.locator(".overview-importance").count() == 36
    widths = tab.each(".overview-importance", "parseFloat(e.style.width)")
    for layer, heads in enumerate(truth.doc["heads"]):
        shares = np.array([head["importance"] for head in heads])
        assert widths[4 * layer : 4 * layer + 4] == pytest.approx(100 * shares / shares.max(), abs=0.01)
    tab.show(url, view="layers")
    tab.says("[data-chart=importance]", "each row has its own scale")
    tab.show(url, view="layers", language="zh")
    tab.says("[data-chart=importance]", "层内重要性")


def test_a_head_alone_in_its_layer_has_no_importance(tab: Any, pages: Any) -> None:
    url, _ = pages("alone")
    tab.show(url, view="overview", layer=0, head=0)
    assert tab.locator(".overview-sink").count() == 1
    assert tab.locator(".overview-importance").count() == 0
    assert "importance" not in tab.text(".facts")
    tab.show(url, view="layers")
    tab.locator("[data-chart=first]").wait_for()  # the last of them
    assert tab.locator("[data-chart=importance]").count() == 0


def test_card_says_what_was_measured(tab: Any, pages: Any) -> None:
    url, truth = pages("translation")
    card = truth.doc["card"]
    tab.show(url, view="card")
    tab.locator("[data-chart=insertion] polyline").first.wait_for()
    assert tab.text(".card-verdict") == card["verdict"]["en"]
    assert re.search(r"64.*5.*1 %, 5 %, 10 %, 20 %, 50 %", tab.text(".card-facts"), re.DOTALL)
    for check in ("comprehensiveness", "sufficiency"):
        titles = dict(tab.each(f"[data-chart={check}] [data-method]", "[e.dataset.method, e.firstChild.textContent]"))
        for method in card["methods"]:
            mean, low, high = method[check]
            assert titles[method["name"]].endswith(f": {mean:.3g} (95 %: {low:.3g} to {high:.3g})")
    said = tab.text("[data-chart=sufficiency] .card-beaten")
    assert "Relevance beats Random and Recency" in said
    assert "Rollout beats neither random nor recency" in said
    for curve in ("deletion", "insertion"):
        assert tab.locator(f"[data-chart={curve}] polyline").count() == len(card["methods"])
        line = tab.locator(f"[data-chart={curve}] [data-method=relevance] polyline").get_attribute("points").split()
        means = [point[0] for point in card["methods"][0][curve]]
        assert np.corrcoef([-float(y) for y in line[1::2]], means)[0, 1] > 0.9999
        # recency comes without bands
        assert tab.locator(f"[data-chart={curve}] .card-area").count() == len(card["methods"]) - 1


def told(tab: Any, url: str) -> dict[str, list[tuple[str, str]]]:
    """For each check the marks and sentences under its chart."""
    tab.show(url, view="card")
    tab.locator("[data-chart=insertion] polyline").first.wait_for()
    checks = ("comprehensiveness", "sufficiency")
    found = {id: tab.each(f"[data-chart={id}] .card-beaten li", "e.innerText") for id in checks}
    return {id: [tuple(line.split(maxsplit=1)) for line in lines] for id, lines in found.items()}


def test_card_leaves_it_to_the_document_who_beats_whom(tab: Any, pages: Any) -> None:
    def said(change: Any) -> dict[str, list[tuple[str, str]]]:
        build = pages.build("translation")
        change(build.doc["card"])
        return told(tab, pages.write(change.__name__, build))

    def against_its_intervals(card: Any) -> None:
        for method in card["methods"]:
            method["beats"] = {"comprehensiveness": [], "sufficiency": []}
        card["methods"][1]["beats"]["sufficiency"] = ["attention", "random", "recency"]

    neither = [("○", f"{name} beats neither random nor recency") for name in ("Relevance", "Rollout", "Attention")]
    assert said(against_its_intervals) == {
        "comprehensiveness": neither,
        "sufficiency": [neither[0], ("✓", "Rollout beats Random and Recency"), neither[2]],
    }

    def of_one_text(card: Any) -> None:
        card["examples"] = 1

    assert said(of_one_text) == {"comprehensiveness": [], "sufficiency": []}
    assert "One text has no intervals" in tab.text("#view-card")

    def of_a_few_texts(card: Any) -> None:
        card["examples"] = 4

    assert said(of_a_few_texts) == {"comprehensiveness": [], "sufficiency": []}
    assert "4 texts are too few for intervals" in tab.text("#view-card")

    def from_before(card: Any) -> None:
        for method in card["methods"]:
            del method["beats"]

    assert said(from_before) == {"comprehensiveness": [], "sufficiency": []}


def test_ablation_sorts_and_marks_what_changed(tab: Any, pages: Any) -> None:
    url, truth = pages("translation")
    tab.show(url, view="ablation")

    def shown() -> list[str]:
        return list(tab.each(".ablation-table tbody tr", "e.dataset.head"))

    tab.locator("#view-ablation .plot-mark").first.wait_for()
    changes = {f"{row['layer']}.{row['head']}": row["change"] for row in truth.doc["ablation"]["heads"]}
    by_change = sorted(changes, key=lambda name: -changes[name])
    assert shown() == by_change
    assert number(tab.text(".ablation-number")) == pytest.approx(max(changes.values()), abs=6e-5)
    tab.locator("#ablation-by-change").click()
    tab.shows(shown, by_change[::-1])
    tab.locator("#ablation-by-head").focus()
    tab.keyboard.press("Enter")
    tab.shows(shown, list(changes))
    assert tab.text("th[aria-sort=ascending]").startswith("Head")
    tab.locator("#ablation-by-answer").click()
    changed = {f"{row['layer']}.{row['head']}" for row in truth.doc["ablation"]["heads"] if row["changed"]}
    tab.shows(lambda: set(shown()[: len(changed)]), changed)
    assert tab.text(".ablation-text mark") == "play"
    tab.locator(".ablation-table tbody tr").nth(1).click()
    tab.shows(lambda: tab.each(".ablation-chosen", "e.dataset.head"), [shown()[1]])
    tab.shows(lambda: tab.each("#view-ablation .plot-chosen", "e.dataset.head"), [shown()[1]])


def test_ablation_compares_the_models_own_answers(tab: Any, pages: Any) -> None:
    """Also where another target was looked at: the loss is about that, the answers are not."""
    build = pages.build("translation")
    build.doc["answer"] = "Zwei play"
    build.doc["ablation"].update(answer="Two men play .", given=True)
    for row in build.doc["ablation"]["heads"]:
        row.update(answer="Two men sleep .", changed=True)
    tab.show(pages.write("given", build), view="ablation")
    said = tab.each("#view-ablation .ablation-answer, #view-ablation .ablation-answer + .note", "e.innerText")
    assert said == [
        "The target that was given Zwei play",
        "The loss and its changes are about this target. The answers are the model's own, compared with its own answer "
        "with all heads.",
        "With all heads Two men play .",
    ]
    assert tab.text("#ablation-by-change").startswith("Change of the target's loss")
    assert tab.text("#view-ablation [data-chart=change] h3") == "Change of the target's loss"
    assert tab.each("tbody tr:first-child .ablation-text mark", "e.innerText") == ["sleep"]
    tab.show(pages("translation")[0], view="ablation")
    assert tab.each("#view-ablation .ablation-answer", "e.innerText") == [
        f"With all heads {pages('translation')[1].doc['answer']}"
    ]
    assert tab.text("#ablation-by-change").startswith("Change of the loss")


def test_drift_follows_each_head(tab: Any, pages: Any) -> None:
    url, truth = pages("translation")
    tab.show(url, view="drift", layer=4, head=2)
    tab.locator(".drift-chosen").wait_for()
    tab.shows(lambda: tab.locator(".drift-line").count(), 36)
    entropy, confidence = truth.tensors["drift.entropy"], truth.tensors["drift.confidence"]
    said = f"decoder 1, cross, head 3, step {truth.doc['drift']['steps'][-1]}"
    tab.shows(lambda: tab.text("#view-drift .plot-readout"), f"{said}: {entropy[-1, 4, 2]:.3g}")
    tab.locator('input[value="confidence"]').check(force=True)
    tab.shows(lambda: tab.text("#view-drift .plot-readout"), f"{said}: {confidence[-1, 4, 2]:.3g}")
    tab.shows(lambda: tab.locator('[data-layer="1"] svg').count(), 1)
    box = tab.locator('[data-layer="1"] svg').bounding_box()
    tab.mouse.click(box["x"] + box["width"] - 9, box["y"] + 8)
    tab.shows(lambda: tab.each(".drift-chosen", "e.dataset.head"), [f"1.{int(confidence[-1, 1].argmax())}"])
