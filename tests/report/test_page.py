"""The page as a whole: one file, well formed, inert, and true to the run."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nemo_uecr.report.page import render_page, write_report
from nemo_uecr.responses.table import read_responses
from nemo_uecr.telemetry.run_folder import read_run, read_runs
from tests.reliability.commands import refused
from tests.report.stories import RunMaker
from tests.responses.tables import changed

VOID = {"meta", "link", "img", "br", "input", "hr"}
FETCHED = ("src", "href", "action")
HOSTILE = "</script><img src=x onerror=alert(1)><!--"
CHROMIUM = os.environ.get("NEMO_UECR_CHROMIUM") or shutil.which("chromium")


class Outline(HTMLParser):
    """Checks that tags nest, and collects what a browser would run or fetch."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open = list[str]()
        self.elements = list[tuple[str, dict[str, str | None]]]()
        self.blocks = dict[str, str]()
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            name = self.elements[-1][1].get("id") or "page"
            self.blocks[name] = self.blocks.get(name, "") + data

    def values(self, *names: str) -> list[str | None]:
        """The values of attributes."""
        return [given[name] for _, given in self.elements for name in names if name in given]

    @property
    def handlers(self) -> list[str]:
        return [name for _, given in self.elements for name in given if name.startswith("on")]


def page_of(*folders: Path) -> str:
    return render_page(read_runs(list(folders)))


def test_page_nests_fetches_nothing_and_runs_its_own_script_alone(make_run: RunMaker) -> None:
    page = page_of(make_run("uecr"))
    seen = Outline(page)
    assert [target for target in seen.values(*FETCHED) if not target.startswith(("#", "data:"))] == []
    assert seen.handlers == []
    ids = seen.values("id")
    assert len(ids) == len(set(ids))
    assert {"curves", "accuracy", "groups", "identities", "credit", "configuration"} <= set(ids)
    assert "complete</span>" in page
    assert "@import" not in page
    assert "url(" not in page
    digest = base64.b64encode(hashlib.sha256(seen.blocks["page"].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page


def test_curves_hold_the_numbers_of_the_file(make_run: RunMaker) -> None:
    folder = make_run("uecr")
    charts = json.loads(Outline(page_of(folder)).blocks["chart-data"])
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for metric in ("reward/task_mean", "policy/grad_norm", "policy/entropy", "response/length_mean"):
        (series,) = charts[metric]["series"]
        assert series["x"] == [record["step"] for record in records]
        assert series["y"] == pytest.approx([record[metric] for record in records], rel=1e-5)
    wrong = charts["groups-0"]["series"][2]
    assert wrong["label"] == "all wrong"
    assert wrong["y"][4] == pytest.approx(records[4]["group/all_wrong_share"], rel=1e-5)


@pytest.fixture
def hostile(make_run: RunMaker) -> Path:
    """A run whose responses have markup in their texts."""
    folder = make_run("hostile", steps=2, batches=(1,))
    path = folder / "batches" / "step-000001.parquet"
    tokens = [[HOSTILE, *own[1:]] for own in read_responses(path).column("tokens")]
    changed(path, tokens=tokens, question=[HOSTILE] * len(tokens), answer=[HOSTILE] * len(tokens))
    return folder


def test_text_of_a_response_stays_text(hostile: Path) -> None:
    page = page_of(hostile)
    seen = Outline(page)
    assert "img" not in dict(seen.elements)
    assert "onerror=alert" not in re.sub(r'<script type="application/json".*?</script>', "", page)
    first = json.loads(seen.blocks["credit-data"])["runs"][0]["steps"][0]["responses"][0]
    assert first["question"] == first["text"][0] == HOSTILE


def test_a_finished_run_of_an_earlier_version_opens(make_run: RunMaker, capsys: pytest.CaptureFixture[str]) -> None:
    """Its curves and accuracy are there, what needs its responses is not, and other commands say so in one line."""
    folder = make_run("old", steps=40, batches=())
    (folder / "batches" / "step-000001.safetensors").write_bytes(b"{}")
    (folder / "batches" / "step-000001.json").write_bytes(b"{}")
    for path in (folder / "evaluations").iterdir():
        path.rename(path.with_suffix(".jsonl"))
    page = page_of(folder)
    assert "1 saved batches are in a format of version 0.3.0 or earlier: no credit map shows them." in page
    assert "credit-data" not in Outline(page).blocks
    for words in (
        ["replay", folder, "--check"], ["evaluate", "compare", folder, folder], ["audit", "signal", folder],
        ["audit", "teacher", folder],
    ):  # fmt: skip
        assert "has a format of version 0.3.0 or earlier" in refused(capsys, *words)


def test_several_runs_share_charts_and_keep_their_colours(make_run: RunMaker) -> None:
    page = page_of(make_run("uecr"), make_run("grpo", method="grpo", seed=1))
    charts = json.loads(Outline(page).blocks["chart-data"])
    assert [line["label"] for line in charts["reward/task_mean"]["series"]] == ["uecr", "grpo"]
    gap = charts["teacher/gap_mean"]["series"]  # grpo has no teacher: absent, not zero
    assert [(line["label"], line["colour"]) for line in gap] == [("uecr", 0)]
    assert "What differs" in page
    runs = json.loads(Outline(page).blocks["credit-data"])["runs"]
    assert [(run["label"], run["steps"][0]["method"]) for run in runs] == [("uecr", "uecr"), ("grpo", "grpo")]


def test_run_in_progress_says_so(make_run: RunMaker) -> None:
    folder = make_run("open", steps=23)
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 24,')
    page = page_of(folder)
    Outline(page)
    assert "step 23 of 40" in page
    assert "half-written" in page
    assert "complete</span>" not in page
    (folder / "failure").mkdir()
    (folder / "failure" / "failure.json").write_text(json.dumps({"step": 24, "error": "identity <is> off"}))
    assert "stopped at step 24" in page_of(folder)
    assert "identity &lt;is&gt; off" in page_of(folder)


def test_run_before_its_first_step_has_a_page(make_run: RunMaker) -> None:
    page = page_of(make_run("fresh", steps=0, evaluations=(), batches=()))
    Outline(page)
    assert page.count("has been written yet") == 3
    assert "✓" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "save_batch_every" in page


@pytest.mark.skipif(CHROMIUM is None, reason="no command chromium; NEMO_UECR_CHROMIUM may name the binary")
def test_browser_fills_the_credit_map(hostile: Path) -> None:
    page = write_report([hostile], hostile / "report.html")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom", page.as_uri()]
    filled = subprocess.run([str(CHROMIUM), *flags], capture_output=True, text=True, timeout=120, check=True).stdout
    assert filled.count('role="option"') == 24
    assert 'class="detail"' in filled
    assert "<img" not in filled
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in filled


def test_an_audits_section_is_shown_and_its_text_stays_text(make_run: RunMaker) -> None:
    run = make_run("audited", steps=2)
    assert 'id="audits"' not in page_of(run)
    for name in ("odd", ".being-written"):
        folder = run / "audits" / name
        folder.mkdir(parents=True)
        section = {"title": HOSTILE, "note": HOSTILE, "heads": [HOSTILE], "rows": [[HOSTILE]]}
        (folder / "section.json").write_text(json.dumps(section))
        (folder / "figure.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    page = page_of(run)
    seen = Outline(page)
    assert [target for target in seen.values(*FETCHED) if target.startswith("data:image")] == [
        "data:image/svg+xml;base64," + base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg'/>").decode()
    ]
    assert seen.handlers == []
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") == 5  # title, its picture's name, note, head, cell


def test_run_without_benchmarks_is_complete_after_its_last_step_only(make_run: RunMaker) -> None:
    for steps, complete in ((23, False), (40, True)):
        folder = make_run(f"steps-{steps}", steps=steps, evaluations=())
        head = (folder / "config.yaml").read_text().split("  benchmarks:")[0]
        (folder / "config.yaml").write_text(head + "  benchmarks: {}\n")
        assert read_run(folder).complete is complete


def test_a_step_written_twice_counts_as_written_last(make_run: RunMaker) -> None:
    folder = make_run("resumed", steps=2)
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 2, "reward/task_mean": 0.75}\n')
    run = read_run(folder)
    assert len(run.steps) == 2
    assert run.steps[1] == {"step": 2, "reward/task_mean": 0.75}
