"""One HTML file: all of the page in it, nothing from outside, and no text that becomes HTML."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.look.document import Document
from regard.look.page import join, page, web

WEB = Path(regard.__file__).parent / "web"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)><!-- &lt; \"'"


class Reader(HTMLParser):
    """What a browser would see: the tags, and the text inside scripts and the title."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, str] = {}
        self.open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style", "title"):
            self.open = dict(attrs).get("id") or dict(attrs).get("type") or tag

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        if self.open:
            self.inside[self.open] = self.inside.get(self.open, "") + data


def hostile() -> Document:
    axis = {"tokens": [HOSTILE], "offsets": [[0, len(HOSTILE)]], "text": HOSTILE}
    doc: dict[str, Any] = {"title": HOSTILE, "text": HOSTILE, "axes": {"source": axis}, "layers": []}
    return Document(
        doc, {"0.q": np.arange(6, dtype="<f4").reshape(2, 3), "0.top.keys": np.array([[1, -1]], dtype="<i4")}
    )


@pytest.fixture(scope="module")
def made() -> Reader:
    return Reader(page(hostile()))


def test_texts_stay_texts(made: Reader) -> None:
    assert made.inside["title"] == HOSTILE
    doc = json.loads(made.inside["doc"])
    assert doc["title"] == doc["text"] == doc["axes"]["source"]["tokens"][0] == HOSTILE
    scripts = [attributes.get("type") for tag, attributes in made.tags if tag == "script"]
    assert sorted(map(str, scripts)) == ["application/json", *["application/octet-stream"] * 2, "module"]
    assert not [tag for tag, _ in made.tags if tag == "img"]


def test_tensors_come_back_as_they_were(made: Reader) -> None:
    named = json.loads(made.inside["doc"])["tensors"]
    assert named == {"0.q": {"dtype": "f4", "shape": [2, 3]}, "0.top.keys": {"dtype": "i4", "shape": [1, 2]}}
    for name, array in hostile().tensors.items():
        raw = base64.b64decode(made.inside[f"tensor:{name}"])
        read = np.frombuffer(raw, f"<{named[name]['dtype']}").reshape(named[name]["shape"])
        np.testing.assert_array_equal(read, array)


def test_nothing_comes_from_outside(made: Reader) -> None:
    text = page(Document({"title": "a", "layers": [], "axes": {}}))
    # the names of SVG's and HTML's own languages are no addresses that anything is fetched from
    urls = [url for url in re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`)]*", text) if "www.w3.org" not in url]
    assert urls == []
    for tag, attributes in made.tags:
        for name in ("src", "href"):
            value = attributes.get(name) or ""
            assert value == "" or value.startswith(("#", "data:")), (tag, value)
    assert not re.search(r"@import|url\((?!['\"]?(?:data:|#))", text)


def test_the_browser_is_told_to_run_this_script_and_no_other(made: Reader) -> None:
    policy = next(str(a["content"]) for tag, a in made.tags if a.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(made.inside["module"].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")


def test_modules_keep_the_rules_of_the_joiner() -> None:
    text = join("main.js")
    assert not re.search(r"^\s*(?:import|export)\b(?! ?\()", text, re.MULTILINE)
    assert "</script" not in text
    parts = re.findall(r"^// ([\w.-]+\.js)$", text, re.MULTILINE)
    assert sorted(parts) == sorted(path.name for path in WEB.glob("*.js"))  # nothing lies there unused
    assert parts[-1] == "main.js"
    names = re.findall(r"^(?:async )?(?:function\*?|class|const|let) (\w+)", text, re.MULTILINE)
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_every_style_is_in_the_page(made: Reader) -> None:
    styles = made.inside["style"]
    for path in WEB.glob("*.css"):
        assert path.read_text(encoding="utf-8").strip() in styles
    assert "data-theme" in styles


def test_imported_modules_come_first_and_once() -> None:
    files = {
        "main.js": 'import { a } from "./a.js";\nimport { b, c } from "./b.js";\nimport "./c.js";\na(b, c);\n',
        "a.js": 'import { b } from "./b.js";\nexport function a() { return "</script>"; }\n',
        "b.js": "export const b = 1;\nexport class c {}\n",
        "c.js": "export async function d() {}\nconst exported = 1;\n",
    }
    assert join("main.js", files.__getitem__) == (
        "// b.js\nconst b = 1;\nclass c {}\n"
        '// a.js\nfunction a() { return "<\\/script>"; }\n'
        "// c.js\nasync function d() {}\nconst exported = 1;\n"
        "// main.js\na(b, c);\n"
    )


def test_the_same_document_gives_the_same_file() -> None:
    assert page(hostile()) == page(hostile())
    assert '<script type="application/json" id="doc"></script>' in web("index.html")
