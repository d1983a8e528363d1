"""Serving the page to this machine alone: 127.0.0.1, a token in the address, one request at a time."""

from __future__ import annotations

import errno
import hmac
import json
import secrets
import socket
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from headprune.errors import HeadpruneError
from headprune.files import loads
from headprune.lab.playground.page import filled
from headprune.lab.playground.session import Session

HOST = "127.0.0.1"
MOST_BYTES = 1_000_000  # of a request
SECONDS = 10  # that a client may take to send one
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
STRANGER = "This address has no token, or a wrong one. Open the address that `headprune play` shows in the terminal."


class PlayServer(HTTPServer):
    """Answers one request after another: the model is one."""

    allow_reuse_address = False
    address_family = socket.AF_INET

    def __init__(self, session: Session, port: int) -> None:
        self.session = session
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                why = "in use" if error.errno == errno.EADDRINUSE else "not allowed to you"
                raise HeadpruneError(
                    f"Port {port} is {why}. Choose another with --port, or 0 for any free one."
                ) from error
            raise

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        return (f"{HOST}:{self.server_port}", f"localhost:{self.server_port}")


class _Handler(BaseHTTPRequestHandler):
    server: PlayServer
    timeout = SECONDS

    def do_GET(self) -> None:
        """The page itself."""
        if self._is_ours() and self._path() == "":
            content = self.server.session.content()
            self._send(200, filled(content["title"], content["about"], content, live=True), "text/html")
        elif not self.wfile.closed and self._is_known:
            self._send(404, "There is only one page here.", "text/plain")

    def do_POST(self) -> None:
        """What the page asks for: `ask` or `save`."""
        if not self._is_ours():
            return None
        work = {"ask": self.server.session.ask, "save": self.server.session.save}.get(self._path())
        try:
            if work is None:
                return self._tell(404, "Expected ask or save.")
            return self._send(200, json.dumps(work(self._body())), "application/json")
        except HeadpruneError as error:
            return self._tell(400, str(error))
        except (ValueError, TypeError, KeyError, RuntimeError, IndexError) as error:
            return self._tell(500, f"The model did not answer: {error}")

    def _is_ours(self) -> bool:
        """Whether it comes from the page: the token, a host name of this machine, no foreign page behind it."""
        self._is_known = False
        token = self.path.partition("?")[0].lstrip("/").partition("/")[0]
        if self.headers.get("Host", "") not in self.server.hosts:
            self._send(403, f"The Host header is not {HOST}.", "text/plain")
        elif not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._send(403, STRANGER, "text/plain")
        elif self.headers.get("Origin") not in (None, *(f"http://{host}" for host in self.server.hosts)):
            self._send(403, "Another page may not ask.", "text/plain")
        else:
            self._is_known = True
        return self._is_known

    def _path(self) -> str:
        return self.path.partition("?")[0].lstrip("/").partition("/")[2]

    def _body(self) -> Mapping[str, Any]:
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal() or int(size) > MOST_BYTES:
            raise HeadpruneError(f"Expected a request of at most {MOST_BYTES:,} bytes, with its length.")
        if self.headers.get_content_type() != "application/json":
            raise HeadpruneError("Expected JSON.")
        found = loads(self.rfile.read(int(size)).decode("utf-8"))
        if not isinstance(found, dict):
            raise HeadpruneError("Expected a JSON object.")
        return found

    def _tell(self, status: int, error: str) -> None:
        self._send(status, json.dumps({"error": error}), "application/json")

    def _send(self, status: int, text: str, kind: str) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in {
            **HEADERS,
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        """A page that asks on every click would fill the terminal."""
