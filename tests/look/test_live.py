"""The server of the page: exact rows on demand, for this machine and for who knows the address alone."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.look import live as live_module
from regard.look.collect import LayerView
from regard.look.document import make_document
from regard.look.live import Live
from regard.look.page import web
from regard.look.trace import load, save
from regard.ops.attention import reference
from regard.ops.call import Call
from regard.ops.masks import causal
from regard.types import Trace


class Asked:
    """A running server, and the weights that it should give: H x N x M."""

    def __init__(self) -> None:
        q, k, v = torch.randn(3, 1, 2, 9, 4, dtype=torch.float64)
        call = Call(q, k, v, causal(), (), 0.5, 0.0, None)
        view = LayerView("layers.0", "self", ("source", "source"), None)
        view.add_call(call, None)
        trace = Trace((view,))
        self.weights: Tensor = reference(call)[1][0]
        self.live = Live(trace, lambda base: make_document(trace, live=base))
        self.thread = threading.Thread(target=self.live.serve, daemon=True)
        self.thread.start()

    def get(self, path: str, *, host: str | None = None, method: str = "GET") -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.live.port, timeout=20)
        connection.request(method, path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, body, dict(answer.getheaders())

    def ask(self, path: str) -> tuple[int, bytes]:
        return self.get(f"{self.live.base}/{path}")[:2]


@pytest.fixture(scope="module")
def asked() -> Iterator[Asked]:
    torch.manual_seed(0)
    made = Asked()
    yield made
    made.live.server.shutdown()
    made.live.__exit__()
    made.thread.join(10)
    assert not made.thread.is_alive()


def test_rows_are_exact(asked: Asked) -> None:
    status, body = asked.ask("rows?layer=0&head=1&from=3&to=6")
    assert status == 200
    rows = np.frombuffer(body, "<f4").reshape(3, 9)
    np.testing.assert_allclose(rows, asked.weights[1, 3:6].numpy(), atol=1e-6)


def test_the_page_is_served_as_it_is(asked: Asked) -> None:
    status, body, headers = asked.get(f"{asked.live.base}/")
    assert (status, body.decode()) == (200, web("index.html"))
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
    status, body, headers = asked.get(f"{asked.live.base}/main.js")
    assert (status, body.decode(), headers["Content-Type"]) == (200, web("main.js"), "text/javascript; charset=utf-8")


def test_document_and_tensors(asked: Asked) -> None:
    doc = json.loads(asked.ask("doc.json")[1])
    assert doc["live"] == asked.live.base
    assert doc["tensors"]["0.entropy"] == {"dtype": "f4", "shape": [2, 9]}
    for name, about in doc["tensors"].items():
        status, body = asked.ask(f"tensor/{name}")
        assert status == 200
        assert body == asked.live.document.tensors[name].tobytes()
        assert len(body) == np.dtype(about["dtype"]).itemsize * int(np.prod(about["shape"]))


def test_the_address_is_secret_and_on_loopback(asked: Asked) -> None:
    assert asked.live.url == f"http://127.0.0.1:{asked.live.port}{asked.live.base}/"
    assert len(asked.live.base) > 20
    with Live(asked.live.trace, lambda base: asked.live.document) as other:
        assert other.base != asked.live.base
    for path in ("/", "/doc.json", "/rows?layer=0&head=0&from=0&to=1", f"{asked.live.base}x/", asked.live.base):
        assert asked.get(path)[:2] == (404, b"nothing here")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", ""])
def test_another_name_is_refused(asked: Asked, host: str) -> None:
    status, body, _ = asked.get(f"{asked.live.base}/doc.json", host=host)
    assert (status, body) == (403, b"this server answers its own machine only")
    assert asked.get(f"{asked.live.base}/", host=f"localhost:{asked.live.port}")[0] == 200


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("rows", 400, "wanted: layer, head, from and to"),
        ("rows?layer=a&head=0&from=0&to=1", 400, "whole numbers"),
        ("rows?layer=1&head=0&from=0&to=1", 404, "no such layer"),
        ("rows?layer=-1&head=0&from=0&to=1", 404, "no such layer"),
        ("rows?layer=0&head=2&from=0&to=1", 404, "no such rows; there are 2 heads of 9 rows"),
        ("rows?layer=0&head=0&from=3&to=3", 404, "no such rows"),
        ("rows?layer=0&head=0&from=0&to=10", 404, "no such rows"),
        ("tensor/0.nothing", 404, "no such tensor"),
        ("nothing.js", 404, "no such file"),
        ("README.md", 404, "no such file"),
        ("../run.py", 404, "no such file"),
        ("..%2frun.py", 404, "no such file"),
        ("%2e%2e/run.py", 404, "no such file"),
    ],
)
def test_what_has_no_answer(asked: Asked, path: str, status: int, why: str) -> None:
    got, body = asked.ask(path)
    assert got == status
    assert why in body.decode()


def test_too_much_at_once(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "MOST_BYTES", 4 * 9 * 3)
    assert asked.ask("rows?layer=0&head=0&from=0&to=3")[0] == 200
    assert asked.ask("rows?layer=0&head=0&from=0&to=4") == (413, b"too many rows at once; at most 3")


def test_a_saved_trace_serves_what_it_has(tmp_path: Path, asked: Asked) -> None:
    save(asked.live.trace, tmp_path / "maps")
    save(asked.live.trace, tmp_path / "exact", exact=True)
    maps, exact = (load(tmp_path / name) for name in ("maps", "exact"))
    with Live(maps, lambda base: make_document(maps, live=base)) as live:
        assert live.document.doc["layers"][0]["exact"] is None  # the page asks for no rows
        with pytest.raises(live_module.Wrong, match="this was not saved of") as refused:
            live.answer(f"{live.base}/rows?layer=0&head=0&from=0&to=1", f"127.0.0.1:{live.port}")
        assert refused.value.status == 409
    assert make_document(exact, live="/x").doc["layers"][0]["exact"] == "weights"


def test_only_what_reads_is_answered(asked: Asked) -> None:
    assert asked.get(f"{asked.live.base}/", method="POST")[0] == 501


def test_many_ask_at_once(asked: Asked) -> None:
    found: dict[int, bytes] = {}

    def ask(row: int) -> None:
        found[row] = asked.ask(f"rows?layer=0&head=0&from={row}&to={row + 1}")[1]

    threads = [threading.Thread(target=ask, args=(row,)) for row in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    rows = np.stack([np.frombuffer(found[row], "<f4") for row in range(9)])
    np.testing.assert_allclose(rows, asked.weights[0].numpy(), atol=1e-6)


def test_a_port_that_is_taken(asked: Asked) -> None:
    with pytest.raises(ConfigError, match=rf"port {asked.live.port} cannot be used\n  got:    Address already in use"):
        Live(asked.live.trace, lambda base: asked.live.document, asked.live.port)
