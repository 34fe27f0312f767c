"""Reading a run folder: whether it is complete, and a step that was written twice."""

from __future__ import annotations

from nemo_uecr.telemetry.run_folder import read_run
from tests.report.stories import RunMaker


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
