"""What the page says where a text repeats itself, is long, or has little to show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def one_layer(pages: Any, tokens: list[str], scores: Any, *, scale: float = 1.0) -> Any:
    """One head that reads by these scores."""
    build = pages.maker.Builder("reading", "A model of one head.", tokens)
    n = len(tokens)
    ones = np.ones((1, n, 1))
    build.layer("layer 1", "self", "source", "source", np.asarray(scores)[None] / scale, np.eye(n)[None], ones, scale)
    return build


def test_tokens_that_stand_twice_are_told_apart(tab: Any, pages: Any) -> None:
    build = one_layer(pages, ["the", "cat", "the", "mat"], np.log([[0.4, 0.3, 0.2, 0.1]] * 4))
    tab.show(pages.write("twice", build), view="head", row=1, key=0)
    tab.shows(lambda: tab.each(".readout-most .readout-token", "e.innerText"), ["the (1)", "cat", "the (3)", "mat"])


@pytest.mark.parametrize(
    ("scale", "formula", "said"),
    [
        (0.5, "softmax(Q K^T / sqrt(d_k)) V", "the usual choice is 1 / √d, here 1 / 2"),
        (0.7, "softmax(0.7 Q K^T) V", "every q·k is multiplied by 0.7"),
        (1.0, "softmax(Q K^T) V", "This one does not"),
    ],
)
def test_the_formula_has_the_scale_of_the_layer(tab: Any, pages: Any, scale: float, formula: str, said: str) -> None:
    build = one_layer(pages, ["a", "b", "c", "d"], np.eye(4), scale=scale)
    tab.show(pages.write(f"scale-{scale}", build), view="steps", row=1)
    tab.locator("#steps-to-scale").click()
    tab.says(".steps-say", said)
    assert tab.each(".steps-formula math", "e.getAttribute('aria-label')") == [formula]


def test_a_place_where_the_model_speaks_is_shown_first(tab: Any, pages: Any) -> None:
    """As the gap of a masked model; elsewhere there is nothing to colour, and the page says so."""
    build = one_layer(pages, ["a", "b", "c", "d"], np.eye(4))
    build.doc["relevance"] = {"rows": "source", "keys": "source", "bin": [1, 1]}
    relevance = np.zeros((4, 4))
    relevance[1, 3] = 0.5
    build.put("relevance", relevance)
    url = pages.write("speaks", build)
    tab.show(url, view="text")
    tab.says(".text-side .readout-pair b", "b")
    assert "Nothing is coloured here" not in tab.text(".text-why")
    tab.show(url, view="text", row=2)
    tab.says(".text-why", "Nothing is coloured here")


def test_ribbons_go_where_a_row_reads(tab: Any, pages: Any) -> None:
    """Of a long text some keys are shown: those around the row, or where it reads far away, those."""
    scores = 20 * np.eye(90)
    scores[80] = 20 * np.eye(90)[3]
    url = pages.write("far", one_layer(pages, [f"t{i}" for i in range(90)], scores))
    for row, place, others in ((80, 3, "keys 1 to 36 of 90"), (70, 70, "keys 53 to 88 of 90")):
        tab.show(url, view="ribbons", row=row)
        tab.says(".ribbons-move", others)
        found = f"[...document.querySelectorAll('path.ribbons-lit')].map(e => e.dataset.key).join() === '{place}'"
        tab.until(found)
        assert "outside" not in tab.text(".ribbons-heads")


def test_ribbons_say_what_is_known_of_a_row(tab: Any, pages: Any) -> None:
    """Of a long text only the largest weights of a row may be kept: nobody knows where the rest lies."""
    weights = np.full((90, 90), 1 / 90)  # each too small for a ribbon
    weights[50] = np.r_[np.full(60, 0.2 / 86), [0.4, 0.3, 0.06, 0.04], np.full(26, 0.2 / 86)]
    weights[51] = np.eye(90)[70]
    build = one_layer(pages, [f"t{i}" for i in range(90)], np.log(np.maximum(weights, 1e-30)))
    build.tensors["0.top.keys"][0, 10] = range(3, 75, 9)  # of equal ones: here as on a page of a real text
    exact = pages.write("known-exact", build)
    build.doc["layers"][0].update(exact=None, bin=[2, 2])
    known = pages.write("known", build)

    def said(url: str, row: int, **more: str) -> str:
        tab.show(url, view="ribbons", row=row, values="raw", **more)
        tab.until(f"document.querySelector('[data-side=rows][aria-current]')?.innerText === 't{row}'")
        return str(tab.text("#ribbons-said"))

    few = "No ribbon is drawn: each weight of this row on these keys is under 0.02"
    assert said(exact, 10) == f"60 % outside of these keys. {few}"
    assert said(exact, 50) == "13 % outside of these keys"
    assert said(exact, 51) == ""
    assert said(known, 10) == (
        "Only the 8 largest weights of this row are kept. They sum to 8.9 %: 4.4 % on these keys, 4.4 % outside of "
        "them. Where the other 91 % lies is not known. No ribbon is drawn: each known weight of this row on these keys "
        "is under 0.02"
    )
    assert said(known, 50) == (
        "Only the 8 largest weights of this row are kept. They sum to 81 %: 80 % on these keys, 0.9 % outside of them. "
        "Where the other 19 % lies is not known"
    )
    assert said(known, 51) == ""
    assert said(known, 10, language="zh").startswith("只保存了这一行最大的 8 个权重，合计 8.9 %：4.4 % 在这些列上")


def test_ribbons_of_an_alignment_say_where_there_is_none(tab: Any, pages: Any) -> None:
    build = pages.build("translation")
    build.doc["alignment"]["pairs"] = build.doc["alignment"]["pairs"][:5]
    tab.show(pages.write("unlinked", build), view="ribbons", row=9)
    tab.locator('input[name="ribbons-mode"][value="alignment"]').check(force=True)
    tab.says("#ribbons-said", "No ribbon is drawn: the alignment links this row to nothing")
    tab.show(pages.write("unlinked", build), view="ribbons", row=3)
    tab.shows(lambda: tab.text("#ribbons-said"), "")


def test_ribbons_of_a_row_that_reads_nothing_say_so(tab: Any, pages: Any) -> None:
    build = one_layer(pages, [f"t{i}" for i in range(40)], np.zeros((40, 40)))
    build.put("0.weights", np.zeros((1, 40, 40)))
    build.doc["layers"][0].update(exact="weights")
    url = pages.write("nowhere", build)
    tab.show(url, view="ribbons", row=3)
    tab.says("#ribbons-said", "No ribbon is drawn: this row reads nothing")
