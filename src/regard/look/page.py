"""The document and the modules of `web/` as one HTML file, which needs no network and no server."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable
from importlib import resources

from regard.look.document import Document

STYLESHEET = re.compile(r'<link rel="stylesheet" href="(?:\./)?([\w.-]+)"\s*/?>')
MODULE = re.compile(r'<script type="module" src="(?:\./)?([\w.-]+)"></script>')
IMPORT = re.compile(r'^import (?:\{[^}]*\} from )?"\./([\w.-]+)";\n', re.MULTILINE)
TITLE = re.compile(r"<title>.*?</title>", re.DOTALL)
PLACE = '<script type="application/json" id="doc"></script>'


def page(document: Document) -> str:
    """One file with the modules, the styles and the document in it."""
    text = with_data(web("index.html"), document)
    script = f"\n{join('main.js')}"
    text = STYLESHEET.sub(lambda found: f"<style>\n{web(found[1])}</style>", text)
    text = MODULE.sub(lambda _: f'<script type="module" async>{script}</script>', text)
    # whatever a text of a stranger may hold, the browser runs this one script and asks nobody for anything
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:"
    return text.replace("<head>", f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">', 1)


def with_data(text: str, document: Document) -> str:
    """The page with its title, the document and its tensors, as scripts that no browser runs.

    What the first sight needs stands before the modules, which begin as soon as they are read; the rest comes after.
    """
    early = [name for name in document.tensors if _is_early(name, document)]
    late = [name for name in document.tensors if name not in early]
    first = [f'<script type="application/json" id="doc">{plain_json(document.json())}</script>']
    first += [_script(name, document) for name in early]
    title = f"<title>{html.escape(document.doc['title'])}</title>"
    text = TITLE.sub(lambda _: title, text, count=1).replace(PLACE, "\n".join(first), 1)
    return text.replace("</body>", "\n".join([*(_script(name, document) for name in late), "</body>"]), 1)


def _is_early(name: str, document: Document) -> bool:
    """Whether the first sight needs a tensor: it shows value-weighted maps, or what they are made of."""
    layer, _, kind = name.partition(".")
    return kind == "weighted" or (kind in ("map", "norms") and f"{layer}.weighted" not in document.tensors)


def _script(name: str, document: Document) -> str:
    words = base64.b64encode(document.tensors[name].tobytes()).decode()
    return f'<script type="application/octet-stream" id="tensor:{name}">{words}</script>'


def plain_json(value: object) -> str:
    r"""JSON that may stand inside HTML: nothing in it can end the script that it stands in.

    >>> plain_json("</script>")
    '"\\u003c/script>"'
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def join(entry: str, read: Callable[[str], str] | None = None) -> str:
    """A module and all that it imports as one script, imported ones first; `web/README.md` has the rules.

    >>> files = {"a.js": 'import { b } from "./b.js";\\nb();\\n', "b.js": "export function b() {}\\n"}
    >>> print(join("a.js", files.__getitem__), end="")
    // b.js
    function b() {}
    // a.js
    b();
    """
    read = read or web
    seen: set[str] = set()
    parts: list[str] = []

    def add(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        source = read(name)
        for imported in IMPORT.findall(source):
            add(imported)
        plain = re.sub(r"^export (?=(async )?(function|class|const|let)\b)", "", IMPORT.sub("", source), flags=re.M)
        parts.append(f"// {name}\n{plain}".replace("</script", "<\\/script"))

    add(entry)
    return "".join(parts)


def web(name: str) -> str:
    """A file of the page."""
    return resources.files("regard").joinpath("web", name).read_text(encoding="utf-8")
