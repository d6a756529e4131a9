"""The page, served to this machine alone: exact rows of any head are computed when the reader looks at them."""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import PurePosixPath
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from regard.errors import ConfigError, RegardError
from regard.look.document import Document
from regard.types import Trace

HOST = "127.0.0.1"
MEDIA = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json"}
MOST_BYTES = 64 * 2**20  # of rows in one answer
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data: blob:; connect-src 'self'"
)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Wrong(Exception):
    """A request that has no answer: its status, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Live:
    """A server on the loopback address, at a path that only who is told can guess.

    `make(base)` gives the document of a page whose server is at `base`; `with Live(...) as live: live.serve()`.
    """

    def __init__(self, trace: Trace, make: Callable[[str], Document], port: int = 0) -> None:
        self.trace = trace
        self.base = f"/{secrets.token_urlsafe(16)}"
        self.lock = threading.Lock()  # one computation at a time: a browser asks for many rows at once
        try:
            self.server = ThreadingHTTPServer((HOST, port), _handler(self))
        except (OSError, OverflowError) as error:
            wanted = "a free port; without --port one is found"
            raise ConfigError(
                f"port {port} cannot be used", got=getattr(error, "strerror", error), wanted=wanted
            ) from None
        self.document = make(self.base)

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}{self.base}/"

    def serve(self) -> None:
        """Answers until it is interrupted."""
        with contextlib.suppress(KeyboardInterrupt):
            self.server.serve_forever()

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.server_close()

    def answer(self, target: str, host: str) -> tuple[str, bytes]:
        """The media type and the bytes of a request."""
        # a page of somebody else's, whose name was made to point at this machine, sends its own name
        if host not in (f"{HOST}:{self.port}", f"localhost:{self.port}"):
            raise Wrong(403, "this server answers its own machine only")
        parts = urlsplit(target)
        token, slash, path = parts.path[1:].partition("/")
        if not slash or not hmac.compare_digest(token.encode(), self.base[1:].encode()):
            raise Wrong(404, "nothing here")
        if path == "doc.json":
            return MEDIA[".json"], json.dumps(self.document.json(), ensure_ascii=False, allow_nan=False).encode()
        if path == "rows":
            return "application/octet-stream", self._rows(parse_qs(parts.query))
        if path.startswith("tensor/"):
            return "application/octet-stream", self._tensor(unquote(path.removeprefix("tensor/")))
        return _file(path or "index.html")

    def _tensor(self, name: str) -> bytes:
        if name not in self.document.tensors:
            raise Wrong(404, "no such tensor")
        return self.document.tensors[name].tobytes()

    def _rows(self, query: dict[str, list[str]]) -> bytes:
        try:
            layer, head, first, last = (int(query[name][0]) for name in ("layer", "head", "from", "to"))
        except (KeyError, ValueError):
            raise Wrong(400, "wanted: layer, head, from and to, as whole numbers") from None
        if not 0 <= layer < len(self.trace):
            raise Wrong(404, "no such layer")
        _, heads, num_rows, num_keys = self.trace[layer].shape
        if not (0 <= head < heads and 0 <= first < last <= num_rows):
            raise Wrong(404, f"no such rows; there are {heads} heads of {num_rows} rows")
        if 4 * (last - first) * num_keys > MOST_BYTES:
            raise Wrong(413, f"too many rows at once; at most {MOST_BYTES // (4 * num_keys)}")
        with self.lock:
            try:
                rows = self.trace[layer].rows(range(first, last), [head])[0, 0]
            except RegardError as error:  # a saved trace, or a model that was changed since
                raise Wrong(409, str(error)) from None
        return np.ascontiguousarray(rows.detach().float().cpu().numpy(), dtype="<f4").tobytes()


def _file(name: str) -> tuple[str, bytes]:
    """A file of the page, by its plain name."""
    for file in resources.files("regard").joinpath("web").iterdir():
        media = MEDIA.get(PurePosixPath(file.name).suffix)
        if file.name == name and media is not None:
            return media, file.read_bytes()
    raise Wrong(404, "no such file")


def _handler(live: Live) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60  # an idle browser holds no thread for ever

        def do_GET(self) -> None:
            status = 200
            try:
                media, body = live.answer(self.path, self.headers.get("Host", ""))
            except Wrong as wrong:
                status, media, body = wrong.status, "text/plain", str(wrong).encode()
            self.send_response(status)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header(
                "Content-Type", f"{media}; charset=utf-8" if media != "application/octet-stream" else media
            )
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass  # the terminal belongs to the command

    return Handler
