"""The page as a whole in real Chromium: every view in every dress, its switches and keys, texts of strangers."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import numpy as np
import pytest
import torch

from regard.look.document import Document
from regard.look.live import Live
from regard.look.page import join
from regard.ops.heads import MEASURES

VIEWS = ["overview", "head", "ribbons", "text", "steps", "layers", "card", "ablation", "drift"]
STEPS = ["query", "keys", "dot", "scale", "mask", "softmax", "sum", "heads"]


def test_views_in_every_dress(tab: Any, pages: Any) -> None:
    url, _ = pages("shifted")
    for language, theme, view in itertools.product(["en", "zh"], ["light", "dark"], VIEWS):
        tab.show(url, view=view, language=language, theme=theme)
        tab.until(f"document.querySelector('#view-{view}').innerText.length > 40")
        words = tab.text(f"#view-{view}")
        # a key that nobody translated would show itself
        assert not re.search(rf"\b(?:{'|'.join(VIEWS)}|kind|check|keys)\.[a-z]", words)
        assert bool(re.search("[\u4e00-\u9fff]", words)) == (language == "zh")
        paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", paper)[:3])) > 380) == (theme == "light")


@pytest.mark.parametrize("name", ["translation", "long"])
def test_phone_scrolls_one_way(tab: Any, pages: Any, name: str) -> None:
    url, _ = pages(name)
    tab.set_viewport_size({"width": 360, "height": 740})
    too_wide = set()
    for language, view in itertools.product(["en", "zh"], VIEWS if name == "translation" else VIEWS[:6]):
        tab.show(url, view=view, language=language)
        for step in STEPS if view == "steps" and name == "translation" else [""]:
            if step:
                tab.locator(f"#steps-to-{step}").click()
            tab.drawn()
            if tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
                too_wide.add((language, view, step))
    assert too_wide == set()


def test_words_say_the_same_in_both_languages(tab: Any) -> None:
    tab.goto("about:blank")
    panels = ", ".join(f"{name}_WORDS" for name in ["STEPS", "LAYERS", "CARD", "ABLATION", "DRIFT"])
    words = tab.evaluate(f"(() => {{ {join('words-panels.js')}{join('words.js')}; return [WORDS, {panels}] }})()")
    for both in words:
        assert both["en"].keys() == both["zh"].keys()
        for key, english in both["en"].items():
            assert set(re.findall(r"\{\w+\}", english)) == set(re.findall(r"\{\w+\}", both["zh"][key])), key
    # of the measures that a training writes each has its words, and no other
    named = {key.split(".")[1] for key in words[-1]["en"] if key.endswith(".about")} - {"about"}
    assert named == set(MEASURES)


def test_chinese_sentences_have_chinese_punctuation(tab: Any) -> None:
    tab.goto("about:blank")
    panels = ", ".join(f"{name}_WORDS" for name in ["STEPS", "LAYERS", "CARD", "ABLATION", "DRIFT"])
    words = tab.evaluate(f"(() => {{ {join('words-panels.js')}{join('words.js')}; return [WORDS, {panels}] }})()")
    beside = re.compile(r"[\u4e00-\u9fff][,.;:!?()]|[,.;:!?()][\u4e00-\u9fff]")
    found = {key: chinese for both in words for key, chinese in both["zh"].items() if beside.search(chinese)}
    # a function of mathematics keeps its brackets
    assert found.keys() <= {"steps.column.exp"}


def test_text_of_strangers_stays_text(tab: Any, pages: Any) -> None:
    url, truth = pages("hostile")
    words = truth.doc["text"][:4]
    for view in VIEWS:
        tab.show(url, view=view, layer=0, head=0)
        tab.says(f"#view-{view}" if view != "head" else ".top", words)
    tab.show(url, view="steps")
    for step in STEPS:
        tab.locator(f"#steps-to-{step}").click()
        tab.locator(f"#steps-to-{step}[aria-current=step]").wait_for()
        tab.says("#view-steps", words)
    tab.drawn()
    assert tab.evaluate("window.broken === undefined && document.querySelectorAll('img').length === 0")


def test_a_text_is_cut_by_code_points(tab: Any, pages: Any) -> None:
    build = pages.build("translation")
    about = build.doc["axes"]["source"]
    about["text"] = "😀 ab" + about["text"]
    about["tokens"][1] = "😀 abZwei"
    # as Python counts: one for 😀
    about["offsets"] = [[0, 0], [0, 8]] + [[start + 4, stop + 4] for start, stop in about["offsets"][2:]]
    tab.show(pages.write("emoji", build), view="text", layer=0, head=0, measure="attention")
    tab.until("document.querySelector('.passage-token') !== null")
    words = tab.each(".passage-token:not(.passage-mark)", "e.textContent")
    assert words == about["tokens"][1:-1]
    assert about["text"] in tab.text(".passage")


def test_a_text_that_was_cut_is_named_so(tab: Any, pages: Any) -> None:
    build = pages.build("translation")
    build.doc["cut"] = 1024
    url = pages.write("cut", build)
    tab.show(url)
    assert tab.text("#cut").startswith("The text was too long and was cut to 1,024 tokens (data.max_length)")
    tab.show(url, language="zh")
    tab.says("#cut", "只取了 1,024 个词元")
    tab.show(pages("translation")[0])
    assert tab.locator("#cut").count() == 0


def test_language_and_theme_switch(tab: Any, pages: Any) -> None:
    url, _ = pages("translation")
    tab.show(url, view="card")
    tab.says("#view-card", "Comprehensiveness")
    tab.locator("#switch-language").click()
    tab.says("#view-card", "完备性")
    tab.until("document.documentElement.lang === 'zh-Hans'")
    tab.locator("#switch-theme").click()
    tab.until("document.documentElement.dataset.theme === 'dark'")
    tab.chose("language=zh")
    tab.chose("theme=dark")
    tab.keyboard.press("l")
    tab.keyboard.press("d")
    tab.says("#view-card", "Comprehensiveness")
    tab.until("document.documentElement.dataset.theme === 'light'")


def test_keys_lead_through_views_and_heads(tab: Any, pages: Any) -> None:
    url, _ = pages("translation")
    tab.show(url, view="head", layer=0, head=0)
    for i, view in enumerate(VIEWS):
        tab.keyboard.press(str(i + 1))
        tab.locator(f"#view-{view}").wait_for()
        tab.locator(f"#tab-{view}[aria-selected=true]").wait_for()
    tab.keyboard.press("2")
    tab.locator("#view-head").wait_for()
    for key, place in zip("nnnnNp", [(0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (1, 3)], strict=True):
        tab.keyboard.press(key)
        boxes = [tab.locator(f"#choose-{name}") for name in ("layer", "head")]
        tab.shows(lambda boxes=boxes: tuple(int(box.input_value()) for box in boxes), place)
    tab.keyboard.press("v")
    tab.shows(lambda: tab.locator('input[name="values"][value="raw"]').is_checked(), True)
    tab.keyboard.press("?")
    tab.locator("#help").wait_for()
    tab.keyboard.press("Escape")
    tab.locator("#help").wait_for(state="hidden")
    tab.locator("#tab-head").focus()
    tab.keyboard.press("ArrowRight")
    tab.locator("#view-ribbons").wait_for()


def test_a_file_that_is_still_read_is_waited_for(tab: Any, pages: Any) -> None:
    """The page begins to draw before its file is there to the end: half a tensor must not be taken for one."""
    url, truth = pages("translation")
    text = Path(url2pathname(urlparse(url).path)).read_bytes()
    # half of it is numbers of two heads, whole ones: nothing but the rest of the file tells that more will come
    half = text.index(b'id="tensor:8.q">') + len(b'id="tensor:8.q">') + truth.tensors["8.q"].nbytes // 2 * 4 // 3
    go_on = threading.Event()

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(text[:half])
            self.wfile.flush()
            go_on.wait(20)
            self.wfile.write(text[half:])

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab.goto(
            f"http://127.0.0.1:{server.server_port}/#view=head&layer=8&head=3&row=4&key=4&values=raw",
            wait_until="commit",
        )
        tab.until("document.querySelector('#head-badge')?.textContent !== ''")
        tab.until("document.getElementById('tensor:8.q')?.textContent.length > 0")
        # an exact row has been asked for, and what it is made of is still to come
        tab.until("window.regardPage?.doc.coming.has('8.q')")
        assert tab.evaluate("document.readyState") == "loading"
        go_on.set()
        tab.until("document.readyState === 'complete' && regardPage.doc.decoded.has('8.q')")
        tab.until("document.querySelector('#view-head .readout-body').getAttribute('aria-busy') === 'false'")
        shown = tab.text("#cell-weight")
        server.shutdown()
    assert float(shown) == pytest.approx(truth.weights(8, 3)[4, 4], rel=1e-3)


@contextlib.contextmanager
def served(truth: Any) -> Iterator[tuple[str, list[Any]]]:
    """The address of a document whose rows a server computes, and the weights of each of its layers."""
    doc, layers = truth.doc, truth.doc["layers"]
    weights = [np.stack([truth.weights(i, h) for h in range(layer["heads"])]) for i, layer in enumerate(layers)]

    def rows_of(array: Any) -> Any:
        return lambda rows, heads: torch.from_numpy(array[heads][:, rows.start : rows.stop])[None]

    trace: Any = [SimpleNamespace(shape=(1, *array.shape), rows=rows_of(array)) for array in weights]
    tensors = {name: array for name, array in truth.tensors.items() if not re.fullmatch(r"\d+\.[qkv]", name)}
    given = {**doc, "layers": [{**layer, "exact": "live"} for layer in layers]}
    with Live(trace, lambda base: Document({**given, "live": base}, tensors)) as live:
        thread = threading.Thread(target=live.serve, daemon=True)
        thread.start()
        yield live.url, weights
        live.server.shutdown()
        thread.join()


def test_served_live_the_modules_find_each_other(tab: Any, pages: Any) -> None:
    """As plain modules, where a forgotten import is an error, with rows that the server computes."""
    with served(pages("translation")[1]) as (url, weights):
        for view in VIEWS:
            tab.show(url, view=view, layer=8, head=1, row=4, key=3, values="raw")
        tab.show(url, view="steps", layer=8, head=1, row=4)
        tab.locator("td[data-column=weight]").first.wait_for()
        tab.says(".steps-say", "live")
        order = np.sort(np.argsort(-weights[8][1, 4])[:12])
        wanted = pytest.approx(weights[8][1, 4][order], abs=1e-6)
        tab.shows(lambda: tab.each("td[data-column=weight] [data-value]", "+e.dataset.value"), wanted)


def test_an_exact_row_waits_for_the_norms_that_weight_it(tab: Any, pages: Any) -> None:
    """Served live a row may come before the norms: the page opens at a cell, and fetches all else one by one."""
    _, truth = pages("exact")
    held: list[Any] = []
    with served(truth) as (url, _):
        tab.page.route("**/tensor/*.norms", lambda route: held.append(route))
        with tab.page.expect_response("**/rows?*"):
            tab.show(url, view="head", layer=2, head=1, row=700, key=300, values="weighted")
        tab.drawn()
        busy = "document.querySelector('#view-head .readout-body').getAttribute('aria-busy')"
        assert tab.evaluate(busy) == "true"
        for route in held:
            route.continue_()
        tab.page.unroute("**/tensor/*.norms")
        tab.until(f"{busy} === 'false'")
        assert tab.text(".readout-number span") == "value-weighted"
        assert float(tab.text("#cell-weight")) == pytest.approx(truth.weighted(2, 1)[700, 300], rel=1e-3)


def test_without_its_server_the_page_says_so_and_goes_on(tab: Any, pages: Any) -> None:
    _, truth = pages("exact")
    with served(truth) as (url, _):
        tab.show(url, view="head", layer=2, head=1, row=700, key=300, values="raw")
        # all but the exact rows is here by itself
        tab.until("Object.keys(regardPage.doc.tensors).every((name) => regardPage.doc.decoded.has(name))")
        tab.until("document.querySelector('#view-head .readout-body').getAttribute('aria-busy') === 'false'")
        assert tab.text("#head-badge").endswith("zoom in for exact cells")
        assert not tab.locator("#gone").is_visible()
        shown = tab.text("#cell-weight")
        tab.page.route("**/*", lambda route: route.abort("connectionrefused"))
        said = {"head": ".readout-note", "ribbons": "#ribbons-note", "text": ".text-why", "steps": ".steps-say"}
        for view, place in said.items():
            tab.show(url, view=view, layer=2, head=1, row=500, key=300, values="raw", measure="attention")
            tab.says(f"#view-{view} {place}", "The server of this page has ended")
        assert tab.locator("#gone").is_visible()
        # what came before it ended is still exact
        tab.show(url, view="head", layer=2, head=1, row=700, key=300, values="raw")
        tab.shows(lambda: tab.text("#cell-weight"), shown)
        tab.locator("#head-map").focus()
        for _ in range(14):
            tab.keyboard.press("+")
        tab.says("#head-badge", "server has ended")
        for view in VIEWS:
            tab.show(url, view=view, layer=1, head=0, language="zh")
            tab.says("#gone", "本页的服务器已经停止")
            tab.until(f"document.querySelector('#view-{view}').innerText.length > 40")
    refused = [text for text in tab.wrong if "ERR_CONNECTION_REFUSED" in text]
    assert len(refused) == 1, "once it is gone it is not asked again"
    tab.wrong.remove(refused[0])


def test_lines_of_the_page_can_be_read() -> None:
    web = resources.files("regard").joinpath("web")
    files = [file for file in web.iterdir() if file.name.endswith((".js", ".css"))]
    lines = [(file.name, len(line)) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert [found for found in lines if found[1] > 160] == []
