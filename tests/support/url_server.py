"""A web server of one folder, which lists it, supports ranges, and fails on request."""

import contextlib
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class ServerSettings:
    """Settings and log of the server.

    Attributes:
        folder: The folder to serve.
        ranges: Whether it supports ranges; else it always sends the whole file.
        sizes: Whether it reports the size of a file.
        failures: Statuses of the next answers, instead of the right ones.
        url: URL of the folder.
    """

    folder: Path
    ranges: bool = True
    sizes: bool = True
    failures: list[int] = field(default_factory=list)
    url: str = ""


@contextlib.contextmanager
def serving(folder, **settings):
    """Serve a folder; yield a `ServerSettings`."""
    answers = ServerSettings(Path(folder), **settings)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"settings": answers}))
    server.daemon_threads = True
    answers.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield answers
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer takes 40 ms
    settings: ServerSettings

    def log_message(self, *_):
        """Log nothing."""

    def do_HEAD(self):
        """Answer without the content."""
        self._answer(with_content=False)

    def do_GET(self):
        """Answer."""
        self._answer(with_content=True)

    def _answer(self, *, with_content):
        if self.settings.failures:
            return self._send(self.settings.failures.pop(0), b"", with_content=with_content)
        place = self.settings.folder / self.path.partition("?")[0].strip("/")
        if place.is_dir():
            links = "".join(f'<a href="{each.name}">{each.name}</a>\n' for each in sorted(place.iterdir()))
            return self._send(200, links.encode(), with_content=with_content)
        if not place.is_file():
            return self._send(404, b"", with_content=with_content)
        data = place.read_bytes()
        version = {"ETag": f'"{place.stat().st_mtime_ns}"'}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None or not self.settings.ranges:
            return self._send(200, data, version, with_content=with_content)
        start, stop = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
        version["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        return self._send(206, data[start:stop], version, with_content=with_content)

    def _send(self, status, data, headers=None, *, with_content):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.settings.sizes:
            self.send_header("Content-Length", str(len(data)))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if with_content:
            self.wfile.write(data)
