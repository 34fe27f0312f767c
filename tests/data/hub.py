"""A hub on this machine: the answers that `datasets` and the hub's client ask for, over a folder of data sets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.data.made import COMMIT


@contextmanager
def serve(root: Path) -> Iterator[str]:
    """The address of a hub whose data sets `owner/name` are folders of `root`, all at one commit."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, root)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Hub(BaseHTTPRequestHandler):
    """/datasets/OWNER/NAME/resolve/REVISION/PATH, and of the API what lists files."""

    def __init__(self, root: Path, *others: Any) -> None:
        self.root = root
        super().__init__(*others)

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = urlsplit(self.path)
        kind, *names = parts.path.strip("/").removeprefix("api/").split("/")
        verb, repo = (*names[2:3], "info")[0], self.root.joinpath(*names[:2])
        place = repo.joinpath(*names[4:])
        if kind != "datasets" or not repo.is_dir():
            self.answer(b"{}", 404, X_Error_Code="RepoNotFound")
        elif verb == "resolve" and not place.is_file():
            self.answer(b"{}", 404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        elif verb == "resolve":
            mark = hashlib.sha256(place.read_bytes()).hexdigest()
            self.answer(place.read_bytes(), ETag=f'"{mark}"', X_Repo_Commit=COMMIT)
        elif verb == "tree":
            self.answer_files(repo, place.rglob("*") if "recursive=true" in parts.query.lower() else place.glob("*"))
        elif verb == "paths-info":
            self.answer_files(repo, (repo / path for path in parse_qs(body.decode())["paths"]))
        else:
            self.answer(json.dumps({"id": "/".join(names[:2]), "sha": COMMIT, "siblings": []}).encode())

    do_HEAD = do_POST = do_GET

    def answer(self, body: bytes, code: int = 200, **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_files(self, repo: Path, places: Iterable[Path]) -> None:
        listed = [
            {
                "type": "file" if place.is_file() else "directory",
                "oid": COMMIT,
                "size": place.stat().st_size,
                "path": str(place.relative_to(repo)),
            }
            for place in sorted(places)
            if place.exists()
        ]
        self.answer(json.dumps(listed).encode())
