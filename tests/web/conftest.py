"""Real Chromium for the tests of the page, documents for it, and what numpy says of them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from regard.look.document import Document
from regard.look.page import page

Floats = NDArray[np.float64]
HOSTILE = '<img src=x onerror="window.broken=1"></script><script>window.broken=1</script>'


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_doc = _load("make_doc")


class Truth:
    """A document as it was made, and what numpy says of its exact heads."""

    def __init__(self, build: Any) -> None:
        self.doc, self.tensors = build.doc, build.tensors

    def _kv(self, layer: int, head: int) -> int:
        about = self.doc["layers"][layer]
        return int(head * about["kv_heads"] // about["heads"])

    def scores(self, layer: int, head: int) -> Floats:
        q, k = (self.tensors[f"{layer}.{name}"].astype(np.float64) for name in "qk")
        return np.asarray(self.doc["layers"][layer]["scale"] * q[head] @ k[self._kv(layer, head)].T)

    def allowed(self, layer: int) -> NDArray[np.bool_]:
        rows, keys = self.scores(layer, 0).shape
        left, right = self.doc["layers"][layer]["band"]
        gap = np.arange(keys)[None] - np.arange(rows)[:, None]
        return np.asarray((gap <= (keys if right is None else right)) & (-gap <= (rows if left is None else left)))

    def weights(self, layer: int, head: int) -> Floats:
        return np.asarray(make_doc.softmax(np.where(self.allowed(layer), self.scores(layer, head), -np.inf)))

    def weighted(self, layer: int, head: int) -> Floats:
        values = self.weights(layer, head) * self.tensors[f"{layer}.norms"][head].astype(np.float64)
        return np.asarray(values / values.sum(-1, keepdims=True))

    def output(self, layer: int, head: int) -> Floats:
        v = self.tensors[f"{layer}.v"][self._kv(layer, head)].astype(np.float64)
        return np.asarray(self.weights(layer, head) @ v)


def hostile() -> Any:
    """A small text whose words are HTML, in every place that a stranger can write to."""
    build = make_doc.translation()
    for field in ("title", "model", "text", "answer", "run"):
        build.doc[field] = HOSTILE
    for about in build.doc["axes"].values():
        count = len(about["tokens"])
        about.update(tokens=[HOSTILE] * count, text=HOSTILE, offsets=[[0, len(HOSTILE)]] + [[0, 0]] * (count - 1))
    build.doc["ablation"].update(answer=HOSTILE, given=True)
    for row in build.doc["ablation"]["heads"]:
        row.update(answer=HOSTILE, changed=True)
    build.doc["card"]["verdict"] = {"en": HOSTILE, "zh": HOSTILE}
    build.doc["card"]["methods"][0]["name"] = build.doc["drift"]["measures"][0] = HOSTILE
    build.doc["layers"][0]["label"] = HOSTILE
    build.doc["heads"][0][0]["kinds"] = [HOSTILE]
    return build


def grouped() -> Any:
    """Four query heads on two key heads, a window of four, and a scale that is not the usual one."""
    build = make_doc.Builder("grouped", "A model of one layer.", make_doc.SOURCE)
    n, rng = len(make_doc.SOURCE), build.rng
    q, k, v = (rng.normal(size=(heads, n, width)) for heads, width in [(4, 8), (2, 8), (2, 6)])
    build.layer("layer 1", "self", "source", "source", q, k, v, 0.7, (3, 0))
    return build


def alone() -> Any:
    """One layer of one head."""
    build = make_doc.Builder("alone", "A model of one head.", make_doc.SOURCE)
    q, k, v = build.rng.normal(size=(3, 1, len(make_doc.SOURCE), 8))
    build.layer("layer 1", "self", "source", "source", q, k, v, 0.35)
    return build


def weighed() -> Any:
    """A layer that gave its weights only, as a recurrent model does."""
    build = grouped()
    truth = Truth(build)
    build.put("0.weights", np.stack([truth.weights(0, head) for head in range(4)]))
    build.doc["layers"][0].update(exact="weights", width=None, scale=None, band=[None, None])
    for name in ("0.q", "0.k", "0.v", "0.norms"):
        del build.tensors[name], build.doc["tensors"][name]
    return build


def shifted() -> Any:
    """A decoder as ours is: row i stands where the answer's token i is about to be written, and reads the prefix."""
    build = make_doc.translation()
    axes, tokens = build.doc["axes"], build.doc["axes"]["target"]["tokens"]
    axes["prefix"], axes["target"] = dict(axes["target"]), make_doc.axis([*tokens[1:], "</s>"])
    for layer in build.doc["layers"]:
        if layer["rows"] == "target" and layer["kind"] == "self":
            layer["keys"] = "prefix"
    return build


class Pages:
    """Documents as files, made when first asked for: `url, truth = pages("translation")`."""

    maker = make_doc

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[str, tuple[str, Truth]] = {}
        self.makers: dict[str, Callable[[], Any]] = {
            "hostile": hostile,
            "grouped": grouped,
            "alone": alone,
            "weighed": weighed,
            "shifted": shifted,
            "exact": lambda: make_doc.exact(layers=3, heads=3),
        }

    def build(self, name: str) -> Any:
        return self.makers.get(name, getattr(make_doc, name, None))()  # type: ignore[misc]

    def __call__(self, name: str) -> tuple[str, Truth]:
        if name not in self.made:
            build = self.build(name)
            self.made[name] = (self.write(name, build), Truth(build))
        return self.made[name]

    def write(self, name: str, build: Any) -> str:
        """A document as a file; its address."""
        file = self.folder / f"{name}.html"
        file.write_text(page(Document(build.doc, build.tensors)), encoding="utf-8")
        return file.as_uri()


class Tab:
    """A tab of the browser; what it has not itself, it has from playwright's page."""

    def __init__(self, page: Any, wrong: list[str]) -> None:
        self.page, self.wrong = page, wrong

    def __getattr__(self, name: str) -> Any:
        return getattr(self.page, name)

    def show(self, url: str, **chosen: object) -> None:
        """Opens a page at a choice, or goes to that choice where the page is open already; waits until it is taken."""
        choice = "&".join(f"{name}={value}" for name, value in chosen.items())
        if self.page.evaluate("location.href.split('#')[0]") == url:
            self.page.evaluate("hash => { location.hash = hash }", choice)
        else:
            self.page.goto(f"{url}#{choice}")
        # the answer's place may be that of the row
        wanted = {name: str(value) for name, value in chosen.items() if name != "answer"}
        taken = f"Object.entries({json.dumps(wanted)}).every(([name, value]) => String(now[name]) === value)"
        self.until(f"((now) => now && {taken})(window.regardPage?.state.get())")
        self.page.locator(f"#view-{chosen.get('view', 'overview')} .view-body > *").first.wait_for()

    def until(self, expression: str) -> None:
        """Waits for something to be true; by asking, because the page's own policy forbids to evaluate strings."""
        if not self._comes(lambda: self.page.evaluate(expression)):
            raise AssertionError(f"never true: {expression}")

    def shows(self, read: Callable[[], Any], wanted: Any) -> None:
        """Waits for what is read of the page to be what is wanted: it may come a moment after it was asked for."""
        self._comes(lambda: read() == wanted)
        assert read() == wanted

    def says(self, selector: str, words: str) -> None:
        """Waits for words to stand in the first element that is found so."""
        self.until(f"document.querySelector({json.dumps(selector)})?.innerText.includes({json.dumps(words)})")

    def drawn(self) -> None:
        """Waits for three frames: one that measures, one that draws, one that is seen."""
        self.page.evaluate(
            """() => new Promise((done) => {
              const next = (left) => (left ? requestAnimationFrame(() => next(left - 1)) : done());
              next(3);
            })"""
        )

    def _comes(self, test: Callable[[], Any]) -> bool:
        """Whether this becomes true within seconds that are many even on a machine that is busy."""
        end = time.monotonic() + 20
        while not (found := bool(test())) and time.monotonic() < end:
            self.page.wait_for_timeout(20)
        return found

    def chose(self, choice: str) -> None:
        """Waits for a choice to stand in the address, as "row=4"; playwright's own `url` lags behind."""
        self.until(f"location.hash.slice(1).split('&').includes('{choice}')")

    def each(self, selector: str, expression: str) -> list[Any]:
        """An expression of every element `e` that is there."""
        return list(self.page.evaluate(f"s => [...document.querySelectorAll(s)].map(e => {expression})", selector))

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).first.inner_text())


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    return Pages(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    wanted = "the page is tested with playwright, which is not here: pip install playwright"
    sync_api = pytest.importorskip("playwright.sync_api", reason=wanted)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("the page is tested in Chromium, which is not here (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium)
        yield started
        started.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    """A tab of 1280 x 800; at its end nothing may have gone wrong in it, and nobody else been asked for anything."""
    opened = browser.new_page(viewport={"width": 1280, "height": 800}, locale="en-US", color_scheme="light")
    wrong: list[str] = []

    def heard(message: Any) -> None:
        if message.type in ("error", "warning"):
            wrong.append(message.text)

    def asked(request: Any) -> None:
        if not re.match(r"file:|data:|blob:|about:|http://127\.0\.0\.1:", request.url):
            wrong.append(request.url)

    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", heard)
    opened.on("request", asked)
    yield Tab(opened, wrong)
    opened.close()
    assert wrong == []
