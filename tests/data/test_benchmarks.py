"""The hub path against a small local server that answers as the hub does; the real hub needs the network."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nemo_uecr.data.benchmarks import BENCHMARKS, load_benchmark
from nemo_uecr.data.filters import NAMES
from nemo_uecr.data.prepare import PrepareSettings, prepare
from nemo_uecr.data.sources import locate
from nemo_uecr.errors import DataError
from tests.data.made import clean_rows

pyarrow = pytest.importorskip("pyarrow")
hub = pytest.importorskip("huggingface_hub")
pytest.importorskip("huggingface_hub.constants")  # the package loads it only where it is asked for

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def parquet(rows: list[dict[str, object]]) -> bytes:
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def shards(rows: list[dict[str, object]]) -> dict[str, bytes]:
    return {"data/train-00000-of-00001.parquet": parquet(rows), "README.md": b"not wanted"}


REPOSITORIES = {
    "zwhe99/DeepMath-103K": shards(clean_rows(7)),
    "MathArena/aime_2025": shards([{"problem_idx": n, "problem": f"New {n}?", "answer": n} for n in range(1, 31)]),
    "HuggingFaceH4/aime_2024": shards(
        [{"id": n, "problem": f"Old {n}?", "answer": f"{n:03d}", "year": "2024"} for n in range(60, 90)]
    ),
    "MathArena/hmmt_feb_2025": shards(
        [{"problem_idx": n, "problem": f"Winter {n}?", "answer": rf"\frac{{{n}}}{{7}}"} for n in range(1, 31)]
    ),
    "MathArena/hmmt_nov_2025": shards(
        [{"problem_idx": n, "problem": f"Autumn {n}?", "answer": rf"{n}\sqrt{{3}}"} for n in range(1, 31)]
    ),
    "math-ai/amc23": shards([{"id": n, "question": f"Morning {n}?", "answer": f"{n}.0"} for n in range(40)]),
}


class Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        for name, files in REPOSITORIES.items():
            if path.startswith(f"/api/datasets/{name}"):
                info = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]}
                if "/tree/" in path:
                    entries = [{"type": "file", "path": f, "size": len(c), "oid": COMMIT} for f, c in files.items()]
                    return self._send(200, json.dumps(entries).encode(), body)
                return self._send(200, json.dumps(info).encode(), body)
            for file, content in files.items():
                if path == f"/datasets/{name}/resolve/{COMMIT}/{file}":
                    return self._send(200, content, body)
        return self._send(404, b'{"error": "not found"}', body)

    def _send(self, status: int, content: bytes, body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{hash(content) & 0xFFFFFFFF:x}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def _hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    from functools import partial

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    download = partial(hub.snapshot_download, endpoint=endpoint, cache_dir=tmp_path / "cache")
    monkeypatch.setattr(hub, "snapshot_download", download)
    yield
    server.shutdown()


@pytest.mark.usefixtures("_hub")
def test_every_benchmark_is_read() -> None:
    found = {name: load_benchmark(name) for name in BENCHMARKS}
    firsts = {"aime24": "060", "aime25": "1", "amc23": "0.0", "hmmt_feb25": r"\frac{1}{7}", "hmmt_nov25": r"1\sqrt{3}"}
    assert {name: loaded.problems[0].answer for name, loaded in found.items()} == firsts
    assert {loaded.revision for loaded in found.values()} == {COMMIT}


@pytest.mark.usefixtures("_hub")
def test_deepmath_is_prepared_and_screened_by_their_names(tmp_path: Path) -> None:
    settings = PrepareSettings("zwhe99/DeepMath-103K", None, tuple(BENCHMARKS), (5.0, 7.0), frozenset(NAMES), None, 42)
    manifest = prepare(settings, tmp_path / "out")
    assert manifest["source"]["revision"] == COMMIT
    assert {name: record["revision"] for name, record in manifest["screens"].items()} == dict.fromkeys(
        BENCHMARKS, COMMIT
    )
    assert manifest["counts"]["kept"] == 7


@pytest.mark.usefixtures("_hub")
def test_an_unknown_name_is_one_clear_line() -> None:
    with pytest.raises(DataError, match="nobody/nothing: no such file here, and the hub did not provide it"):
        locate("nobody/nothing", revision=None)


def test_local_names_never_reach_the_hub(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    for local in (tmp_path / "a.jsonl", Path("missing/file.jsonl")):
        assert locate(str(local), revision=None) == (local, None)
