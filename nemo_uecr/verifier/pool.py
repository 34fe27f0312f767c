"""Judge responses. Mathematics is compared in processes that can be killed: one big-integer operation may hang."""

from __future__ import annotations

import atexit
import contextlib
import functools
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from multiprocessing.connection import Connection

from nemo_uecr.errors import DependencyError
from nemo_uecr.verifier import process
from nemo_uecr.verifier.compare import compare_answers, judge_plain
from nemo_uecr.verifier.extract import Checked, Verdict, final_answer, reference_answer
from nemo_uecr.verifier.process import ChildProcess, Pool

#: Seconds of the processor that one comparison may take; on a busy machine it may wait for its turns.
TIME_LIMIT = 5.0
#: Seconds by the clock after which no answer is expected.
LONGEST_WAIT = 120.0
#: Address space of the process: a power tower must end in an error of its own, not in the machine's swap.
MEMORY_BYTES = 4 << 30


def check_response(response: str, answer: str, *, thinking: bool = False) -> Checked:
    r"""Judge a response by the content of its last ``\boxed{...}`` after any thinking.

    Args:
        response: the sampled text, without the prompt.
        answer: the reference answer, bare or boxed.
        thinking: whether the prompt opened a thought.
    """
    extracted = final_answer(response, thinking=thinking)
    return Checked(judge(extracted, reference_answer(answer)) if extracted else Verdict.NO_ANSWER, extracted)


def check_responses(
    responses: Sequence[str], answers: Sequence[str], pool: ComparisonPool, *, thinking: Sequence[bool] = ()
) -> list[Checked]:
    """Judge many responses as `check_response` judges one, each distinct pair once.

    Args:
        responses: sampled texts, without the prompts.
        answers: reference answers, bare or boxed.
        pool: where mathematics is compared.
        thinking: whether each prompt opened a thought; by default none did.

    Returns:
        One verdict per response, in order.
    """
    within = thinking or [False] * len(responses)
    given = [final_answer(text, thinking=opened) for text, opened in zip(responses, within, strict=True)]
    pairs = [(text, reference_answer(answer)) for text, answer in zip(given, answers, strict=True)]
    distinct = [(text, reference) for text, reference in dict.fromkeys(pairs) if text]
    verdicts = dict(zip(distinct, pool.judge_all(distinct), strict=True))
    return [Checked(verdicts[text, reference] if text else Verdict.NO_ANSWER, text) for text, reference in pairs]


class ComparisonPool:
    """Several comparison processes, each started when the first pair needs it; usable from several threads."""

    def __init__(self, *, workers: int, time_limit: float = TIME_LIMIT) -> None:
        """Take the most processes, and the seconds of a processor that one comparison may take."""
        child = functools.partial(ChildProcess, "nemo_uecr.verifier.pool", (str(time_limit),))
        made = functools.partial(child, time_limit=LONGEST_WAIT, output=subprocess.DEVNULL)
        self._workers, self._processes = workers, Pool(made, workers)

    def judge(self, given: str, expected: str) -> Verdict:
        """Whether two answer texts are equivalent.

        The verdict is `timeout` where the time limit passed, `error` where the comparison ended its process.
        """
        plain = judge_plain(given, expected)
        if plain is not None:
            return plain
        if find_spec("math_verify") is None:
            raise DependencyError("comparing answers needs math-verify; pip install 'nemo-uecr[verify]'")
        with self._processes.borrowed() as child:
            try:
                return Verdict(child.ask([given, expected]))
            except TimeoutError:
                return Verdict.TIMEOUT
            except EOFError:
                return Verdict.ERROR

    def judge_all(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """The verdicts on (given, expected) pairs, in order."""
        with ThreadPoolExecutor(self._workers) as threads:
            return list(threads.map(lambda pair: self.judge(*pair), pairs))

    def close(self) -> None:
        """End the processes."""
        self._processes.close()


def comparison_pool(workers: int) -> contextlib.closing[ComparisonPool]:
    """A pool for the length of a block."""
    return contextlib.closing(ComparisonPool(workers=workers))


#: This program's one process.
SHARED = ComparisonPool(workers=1)
atexit.register(SHARED.close)
#: Whether two answer texts are equivalent, by that process; it remembers the pairs.
judge = functools.lru_cache(maxsize=65_536)(SHARED.judge)


def serve(pipe: Connection, time_limit: float) -> None:
    """Answer pairs with verdicts until the other end closes."""
    process.outlive_requests_to_stop()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    compare_answers(r"\frac{1}{2}", "0.5")

    def verdict(pair: list[str]) -> str:
        return compare_answers(*pair).value

    process.serve(pipe, "ready", verdict, seconds=time_limit, timer=signal.ITIMER_PROF)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), float(sys.argv[2]))
