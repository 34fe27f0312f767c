"""R^task of every response: the built-in verifier, the user's functions, or a weighted sum of several."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, cast

from nemo_uecr.errors import ConfigError, RewardError
from nemo_uecr.verifier.extract import Verdict
from nemo_uecr.verifier.pool import ComparisonPool, check_responses
from nemo_uecr.verifier.process import Pool
from nemo_uecr.verifier.user_code import Failure, Failures, UserProcess, singles

if TYPE_CHECKING:
    from nemo_uecr.config.schema import AnyReward, CallReward

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sample:
    """What a reward may read of a response."""

    id: str  # names the response in messages
    prompt: str  # the user's turn
    text: str  # the response without its end token; special tokens inside it are there where the run asks for them
    whole: str  # the same with the special tokens, which may be the marks of thoughts: what the verifier judges
    token_ids: tuple[int, ...] | None  # None where the back end does not hand them on
    answer: str  # the reference answer
    columns: Mapping[str, object]  # the problem's whole row
    dataset: str  # name of the training data
    thinking: bool = False  # whether the prompt opened a thought, so that the response begins within one
    before: tuple[Mapping[str, str], ...] = ()  # the turns before the user's
    skipped: tuple[str, ...] = ()  # special tokens that the response has and its text has not
    turns: tuple[Mapping[str, str], ...] = ()  # of several turns all of them, as messages; the text is the last one's
    episode: float | Failure | None = None  # the sum of its environment's rewards


@dataclass(frozen=True)
class Outcome:
    """R^task of a response, what it is made of, and whether the response counts as correct."""

    reward: float  # sum of weight times component
    parts: Mapping[str, float | None]  # by component; None where a function leaves the response to the others
    verdict: Verdict  # the verifier's where it is among the rewards
    failed: tuple[str, ...]  # names of the functions that failed on the response and count 0

    @property
    def correct(self) -> bool:
        """Whether the response counts as correct in telemetry."""
        return self.verdict is Verdict.CORRECT


class FunctionReward(UserProcess):
    """A user's function in a worker process."""

    def __init__(self, settings: CallReward) -> None:
        """Start the worker."""
        given = {"call": settings.call, "args": settings.args, "messages": settings.messages}
        super().__init__("nemo_uecr.verifier.reward_worker", given, key="reward", timeout_s=settings.timeout_s)
        self._label, self._singles = settings.label, singles()
        self._batched: bool = self.hello["batched"]
        self.reads_step: bool = self.hello["reads_step"]
        self.columns: list[str] = self.hello["columns"]
        self.misses_messages: bool = self.hello["reads_content"] and not settings.messages

    def judge(self, samples: Sequence[Sample], *, step: int) -> list[float | Failure | None]:
        """The function's rewards, in order.

        A batch on which it fails is judged again, response by response, to find those that it fails on.

        Raises:
            RewardError: It failed on too many of the responses, or returned something that is not a reward.
        """
        if self._batched:
            whole = self._values(samples, step)
            if not isinstance(whole, Failure):
                return list(whole)
            together = "reward %s failed on %d responses together, and judges them one by one: %s"
            log.warning(together, self._label, len(samples), whole.reason.splitlines()[-1])
        rewards: list[float | Failure | None] = []
        failures = Failures(f"reward {self._label}", len(samples), self._singles)
        for sample in samples:
            found = self._values([sample], step)
            rewards += [found] if isinstance(found, Failure) else found
            failures.note(sample.id, found)
        failures.end()
        return rewards

    def _values(self, samples: Sequence[Sample], step: int) -> Sequence[float | None] | Failure:
        given = [asdict(replace(sample, whole="", episode=None)) for sample in samples]
        answer = self.answer({"step": step, "samples": given})
        if isinstance(answer, Failure):
            return answer
        if "refused" in answer:
            raise RewardError(f"reward {self._label} {answer['refused']} ({samples[answer['row']].id})")
        values: list[float | None] = answer["values"]
        return values


class Rewards:
    """The rewards of a run."""

    def __init__(
        self,
        settings: Sequence[AnyReward],
        *,
        correct_at: float,
        pool: ComparisonPool,
        copies: int = 1,
    ) -> None:
        """Start the functions; the verifier compares in ``pool``, which stays the caller's.

        ``copies`` is the most processes of a function, which calls from several threads are shared among.
        """
        self._settings, self._correct_at, self._pool = settings, correct_at, pool
        calls = (cast("CallReward", each) for each in settings if hasattr(each, "call"))
        self._functions = {each.label: Pool(functools.partial(FunctionReward, each), copies) for each in calls}
        self._hinted = set[str]()

    def check_columns(self, there: Collection[str]) -> None:
        """Refuse a function with a parameter that is no column of the problems."""
        for label, function in self._functions.items():
            if lost := sorted(set(function.first.columns) - set(there)):
                raise ConfigError(f"reward {label} asks for {lost[0]}; the problems have {', '.join(there)}")

    @property
    def readers_of_the_step(self) -> list[str]:
        """Functions that ask for the step's number."""
        return sorted(label for label, function in self._functions.items() if function.first.reads_step)

    def judge(self, samples: Sequence[Sample], *, step: int) -> list[Outcome]:
        """R^task of every response, in order.

        Raises:
            RewardError: A function failed on too many responses, or returned something that is not a reward.
        """
        found: dict[str, Sequence[float | Failure | None]] = {}
        verdicts: Sequence[Verdict | None] = [None] * len(samples)
        for each in self._settings:
            if hasattr(each, "environment"):
                found[each.label] = [sample.episode for sample in samples]
            elif each.label in self._functions:
                with self._functions[each.label].borrowed() as function:
                    found[each.label] = function.judge(samples, step=step)
            else:
                texts, answers = [sample.whole for sample in samples], [sample.answer for sample in samples]
                within = [sample.thinking for sample in samples]
                checked = check_responses(texts, answers, self._pool, thinking=within)
                found[each.label], verdicts = [c.reward for c in checked], [c.verdict for c in checked]
        self._hint(samples, found)
        return [
            self._outcome(sample, verdict, dict(zip(found, values, strict=True)))
            for sample, verdict, *values in zip(samples, verdicts, *found.values(), strict=True)
        ]

    def _hint(self, samples: Sequence[Sample], found: Mapping[str, Sequence[float | Failure | None]]) -> None:
        """Name, once per reward, what in the texts may be the cause of 0 for a whole step."""
        if len(samples) == 1:  # the asynchronous loop's; no step is seen whole
            return
        skipped = ", ".join(sorted({repr(token) for sample in samples for token in sample.skipped}))
        for label in sorted(self._functions.keys() - self._hinted):
            if any(value != 0 for value in found[label]):
                continue
            cause = skipped and f"the texts lack the special tokens {skipped}; set rollout.skip_special_tokens=false"
            if self._functions[label].first.misses_messages:
                cause = "it reads the ['content'] of messages and gets texts; set messages: true"
            elif all(sample.thinking for sample in samples):
                cause = "the prompts open <think>, so no response has it; look for </think> alone"
            if cause:
                self._hinted.add(label)
                log.warning("reward %s is 0 for the whole step; perhaps %s", label, cause)

    def _outcome(self, sample: Sample, verdict: Verdict | None, found: Mapping[str, float | Failure | None]) -> Outcome:
        failures = {name: value.verdict for name, value in found.items() if isinstance(value, Failure)}
        parts = {name: 0.0 if isinstance(value, Failure) else value for name, value in found.items()}
        if all(part is None for part in parts.values()):
            raise RewardError(f"no reward judges a response: every function returned None ({sample.id})")
        reward = sum(each.weight * (parts[each.label] or 0.0) for each in self._settings)
        if verdict is None:
            judged = Verdict.CORRECT if reward >= self._correct_at else Verdict.WRONG
            verdict = next(iter(failures.values()), judged)
        return Outcome(reward, parts, verdict, tuple(failures))

    def close(self) -> None:
        """End the functions' workers."""
        for function in self._functions.values():
            function.close()


def refuse_the_step(readers: Sequence[str], switch: str) -> None:
    """Refuse functions that ask for the step's number where responses are drawn before it, or judged alone.

    ``switch`` is the key=value that ends this.
    """
    if readers:
        raise ConfigError(
            f"reward {readers[0]} asks for the step (trainer_state), which a response that is drawn before its step or "
            f"judged alone does not have; take {switch}, or a reward without it"
        )


def component_metrics(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Mean of each component, before its weight, and the responses that its function failed on.

    The verifier alone has no components: its reward is R^task.
    """
    metrics = {}
    names = outcomes[0].parts if outcomes else {}
    for name in names if names.keys() != {"verifier"} else ():
        values = [part for outcome in outcomes if (part := outcome.parts[name]) is not None]
        if values:
            metrics[f"reward/{name}/mean"] = math.fsum(values) / len(values)
        metrics[f"reward/{name}/failed"] = float(sum(name in outcome.failed for outcome in outcomes))
    return metrics
