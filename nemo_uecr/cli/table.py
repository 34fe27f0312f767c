"""The commands by name. A command's module is imported only when the command is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from nemo_uecr.errors import UecrError

__all__ = ["COMMANDS", "Command", "find_command", "overview"]


@dataclass(frozen=True)
class Command:
    """One command."""

    words: tuple[str, ...]
    """What the user types after `nemo-uecr`."""

    module: str
    """Module with `add_arguments(parser)` and `run(args) -> int`; its docstring is the help text."""

    summary: str
    """One line for the overview."""

    @property
    def name(self) -> str:
        """The words as typed."""
        return " ".join(self.words)


#: In the order of use, a group together. The first whose words fit is taken: `evaluate sweep` stands before `evaluate`.
COMMANDS: tuple[Command, ...] = (
    Command(("demo",), "nemo_uecr.cli.demo", "prepare the demo's models, train on them, open the report"),
    Command(("config",), "nemo_uecr.cli.config_command", "show or check a configuration"),
    Command(("doctor",), "nemo_uecr.cli.doctor", "check machine, models and folders, with remedies"),
    Command(("plan",), "nemo_uecr.cli.plan", "layout, memory and time of a run before it starts"),
    Command(("smoke",), "nemo_uecr.cli.smoke", "short runs with every check on, before a long one"),
    Command(("train",), "nemo_uecr.cli.train", "train a student from a configuration file"),
    Command(("report",), "nemo_uecr.cli.report", "one HTML page about one or several runs"),
    Command(("replay",), "nemo_uecr.cli.replay", "recompute the advantages of a saved batch, or check a run's"),
    Command(("pack",), "nemo_uecr.cli.pack", "a run folder as one archive"),
    Command(("unpack",), "nemo_uecr.cli.unpack", "an archive as a run folder"),
    Command(("evaluate", "compare"), "nemo_uecr.cli.evaluate_compare", "paired comparison of two evaluations"),
    Command(("evaluate", "sweep"), "nemo_uecr.cli.evaluate_sweep", "evaluate checkpoints and select one"),
    Command(("evaluate",), "nemo_uecr.cli.evaluate", "avg@k of a model on benchmarks"),
    Command(("table",), "nemo_uecr.cli.table_command", "the paper's tables from evaluations"),
    Command(("study",), "nemo_uecr.cli.study", "a grid of methods on several students, with tables and figures"),
    Command(("score",), "nemo_uecr.cli.score", "score responses with teacher and anchors, for the audits"),
    Command(("audit", "signal"), "nemo_uecr.cli.audit_signal", "what the teacher adds to the verifier, by checkpoint"),
    Command(("audit", "token-credit"), "nemo_uecr.cli.audit_token_credit", "token signals, entropy strata, budgets"),
    Command(("audit", "group-signal"), "nemo_uecr.cli.audit_group_signal", "PUU's signal in pseudo-groups"),
    Command(("audit", "alpha-sweep"), "nemo_uecr.cli.audit_alpha_sweep", "where alpha overturns the verifier's order"),
    Command(
        ("audit", "localization"), "nemo_uecr.cli.audit_localization", "where ECR puts the blame, by a judge's steps"
    ),
    Command(("audit", "batch"), "nemo_uecr.cli.audit_batch", "batch facts of a run, and every fault in them"),
    Command(
        ("audit", "efficiency"), "nemo_uecr.cli.audit_efficiency", "time, tokens a second, memory, scorer overhead"
    ),
    Command(("audit", "teacher"), "nemo_uecr.cli.audit_teacher", "one teacher under several engines"),
    Command(("audit", "synthetic"), "nemo_uecr.cli.audit_synthetic", "made scores of the paper's sizes"),
    Command(("data", "prepare"), "nemo_uecr.cli.data_prepare", "filter, screen and sample training problems"),
    Command(("data", "screen"), "nemo_uecr.cli.data_screen", "screen prepared problems by sentence embeddings"),
    Command(("data", "apply"), "nemo_uecr.cli.data_apply", "apply the verdicts of a filled review file"),
    Command(("data", "verify"), "nemo_uecr.cli.data_verify", "check a prepared folder against its manifest"),
    Command(("data", "selftest"), "nemo_uecr.cli.data_selftest", "verify the verifier on a benchmark's own answers"),
    Command(("convert",), "nemo_uecr.cli.convert", "Megatron to Hugging Face or back, verified"),
    Command(("teacher", "score"), "nemo_uecr.cli.teacher_score", "score a saved batch with a Megatron teacher"),
    Command(("teacher", "compare"), "nemo_uecr.cli.teacher_compare", "what FP8 changes in a teacher's scores"),
    Command(("bench", "advantage"), "nemo_uecr.cli.bench_advantage", "time and memory of the advantages"),
    Command(("bench", "scoring"), "nemo_uecr.cli.bench_scoring", "time and memory of token scoring"),
    Command(("bench", "step"), "nemo_uecr.cli.bench_step", "seconds of a training step by method, taking turns"),
    Command(("cluster", "smoke"), "nemo_uecr.cli.cluster_smoke", "the same short run on every node of a Ray cluster"),
    Command(("cluster", "command"), "nemo_uecr.cli.cluster_command", "the command that a Slurm job runs"),
    Command(("cluster", "node"), "nemo_uecr.cli.cluster_node", "what each node of a Slurm job runs"),
)


def overview(group: tuple[str, ...]) -> str:
    """The list of commands, or of those that begin with the words of a group."""
    chosen = [command for command in COMMANDS if command.words[: len(group)] == group]
    width = max(len(command.name) for command in chosen)
    lines = [f"  {command.name:<{width}}  {command.summary}" for command in chosen]
    return "\n".join(
        [
            f"usage: nemo-uecr {''.join(f'{word} ' for word in group)}COMMAND ...",
            "",
            "UECR-GRPO: on-policy distillation unified with GRPO.",
            "",
            "commands:",
            *lines,
            "",
            "nemo-uecr COMMAND --help says more about one command; nemo-uecr --version prints the version.",
            "",
        ]
    )


def find_command(arguments: Sequence[str]) -> tuple[Command, list[str]]:
    """The command that the arguments begin with, and the arguments that follow its words.

    Raises:
        UecrError: no command has that name.
    """
    for command in COMMANDS:
        if tuple(arguments[: len(command.words)]) == command.words:
            return command, list(arguments[len(command.words) :])
    typed = " ".join(arguments[: 2 if is_group(tuple(arguments[:1])) else 1])
    names = [command.name for command in COMMANDS]
    near = get_close_matches(typed, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known commands: {', '.join(names)}"
    raise UecrError(f"unknown command {typed!r}; {hint}")


def is_group(words: tuple[str, ...]) -> bool:
    """Whether commands begin with these words without any command being them."""
    starts = [command.words for command in COMMANDS if command.words[: len(words)] == words]
    return bool(starts) and words not in starts
