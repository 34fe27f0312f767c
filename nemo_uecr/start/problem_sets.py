"""Checks of what a run reads besides its models: problems, prompts, the teacher of each, and reward functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nemo_uecr.config.schema import (
    AnyReward,
    DataConfig,
    EnvironmentReward,
    ProblemsConfig,
    RecipeDataConfig,
    RoutingConfig,
)
from nemo_uecr.data.manifest import training_problems
from nemo_uecr.data.problems import Problem, check_routing, filled, problems_of, repeats, teacher_name
from nemo_uecr.data.references import check_references
from nemo_uecr.data.screening import question_key
from nemo_uecr.errors import DataError
from nemo_uecr.generation.environments import Environment
from nemo_uecr.generation.models import check_ids
from nemo_uecr.generation.prompts import fitting_prompts
from nemo_uecr.paths import SCHEME
from nemo_uecr.start.seen import Caution
from nemo_uecr.verifier.pool import SHARED
from nemo_uecr.verifier.rewards import Rewards, refuse_the_step

if TYPE_CHECKING:
    from nemo_uecr.core.methods import Method

#: The training problems among those of a run; the others are benchmarks by name.
TRAIN = "data.train"
Problems = Mapping[str, Sequence[Problem]]


def local_problems(data: DataConfig, benchmarks: Mapping[str, str]) -> Problems:
    """Every problem of a local run; the demo's, made on first use, are left out."""
    read: Problems = {} if data.train.startswith(SCHEME) else {TRAIN: training_problems(data)}
    named = {name: given for name, given in benchmarks.items() if not given.startswith(SCHEME)}
    return {**read, **benchmark_problems(data, named)}


def benchmark_problems(data: DataConfig | RecipeDataConfig, benchmarks: Mapping[str, str]) -> Problems:
    """The problems of each benchmark."""
    return {name: problems_of(data, given, f"evaluation.benchmarks.{name}") for name, given in benchmarks.items()}


def readable(problems: Problems, benchmarks: Iterable[str], data: ProblemsConfig) -> str:
    """The problems can be read: how many there are, and by which fields."""
    counts = {name: len(read) for name, read in problems.items()}
    counted = ", ".join(f"{name} {counts.get(name, 'of the demo')}" for name in (TRAIN, *benchmarks))
    fields = [repr(key) for key in (data.question_key, data.answer_key) if key is not None]
    return f"{counted}; fields {' and '.join(fields)}"


def judged(problems: Problems, template: str, *, verified: bool, played: bool) -> str | None:
    """The verifier can judge the answers; of training only where it is among the rewards (``verified``).

    Of benchmarks where an environment does not judge instead (``played``).
    """
    names = [name for name in problems if (verified if name == TRAIN else not played)]
    for name in names:
        check_references(name, problems[name], template=template)
    return f"the verifier can judge those of {', '.join(names)}" if names else None


def enough(count: int, needed: int, where: str) -> str:
    """So many problems fill a step."""
    if count < needed:
        raise DataError(
            f"{where}: {count} problems are left to train on; expected at least the {needed} prompts of a step, "
            "because no step would ever be filled"
        )
    return f"{count} problems, {needed} in a step"


def repeated(problems: Problems, name: str, environment: Environment | None) -> Caution | None:
    """No question, or game of the environment's, stands in several rows."""
    found = repeats(problems.get(name, ()), environment.game if environment else None)
    return Caution(f"{name}: {found}", "") if found else None


def held_out(problems: Problems, benchmark: str, environment: Environment | None) -> Caution | None:
    """No question of a benchmark is trained on, whatever its blanks, capitals and system turn; no game of it either."""
    same = environment.game if environment else lambda problem: question_key(problem.question)
    answered = (problem for problem in problems.get(TRAIN, ()) if problem.answer)  # the others are games of their own
    trained = set(map(same, answered))
    asked = list(map(same, problems.get(benchmark, ())))
    if not (count := sum(each in trained for each in asked)):
        return None
    what = "games" if environment else "questions"
    remedy = "" if environment else "nemo-uecr data prepare takes them out of the training problems"
    return Caution(f"{benchmark}: {count} of {len(asked)} {what} are also in data.train; it is not held out", remedy)


def prompts_that_fit(
    tokenizer: Any, problems: Problems, data: DataConfig | RecipeDataConfig, tools: Sequence[Mapping[str, Any]]
) -> dict[int, list[int]]:
    """Token ids of the training prompts by place; too long ones are refused unless they are to be dropped."""
    for name, read in problems.items():
        if name != TRAIN:
            fitting_prompts(tokenizer, read, data, name, tools)
    return fitting_prompts(tokenizer, problems[TRAIN], data, "", tools)


def dropped(prompts: Mapping[int, Sequence[int]], problems: Sequence[Problem]) -> str:
    """How many training prompts are left out."""
    count = len(problems) - len(prompts)
    return f"dropped as too long: {count}" if count else "every prompt fits"


def known_ids(prompts: Mapping[int, Sequence[int]], columns: int, tokenizer: Any) -> str:
    """The student has an output column for every id of the prompts."""
    check_ids(prompts.values(), columns, tokenizer, "the student")
    return f"below the student's {columns} output columns"


def routed(
    kept: Sequence[Problem], routing: RoutingConfig | None, teachers: Sequence[str], templates: Mapping[str, str]
) -> str:
    """Every problem has a teacher, and the columns that its teacher's own prompt ``templates`` read."""
    check_routing(kept, routing, teachers)
    names = [teacher_name(problem, routing, teachers) for problem in kept]
    for problem, name in zip(kept, names, strict=True):
        if name in templates:
            filled(templates[name], problem)
    return shares(names)


def routes(
    kept: Sequence[Problem], prompts: Iterable[Sequence[int]], routing: RoutingConfig | None, teachers: Sequence[str]
) -> list[str]:
    """The teacher of each problem inside NeMo-RL, which knows a response's problem by its prompt alone."""
    check_routing(kept, routing, teachers)
    names = [teacher_name(problem, routing, teachers) for problem in kept]
    by_prompt: dict[tuple[int, ...], str] = {}
    for problem, name, ids in zip(kept, names, prompts, strict=True):
        if by_prompt.setdefault(tuple(ids), name) != name:
            raise DataError(
                f"problem {problem.id!r} is routed to the teacher {name}, an equal prompt before it to "
                f"{by_prompt[tuple(ids)]}; expected one teacher per prompt"
            )
    return names


def shares(names: Sequence[str]) -> str:
    """How many problems each teacher scores."""
    return ", ".join(f"{name} {count}" for name, count in sorted(Counter(names).items()))


def rewards_load(
    settings: Sequence[AnyReward],
    problems: Sequence[Problem] | None,
    *,
    correct_at: float,
    draws_ahead: str | None,
) -> str:
    """The reward functions can be loaded, and their parameters are columns of the problems, where those are known.

    One that reads the step is refused where responses are drawn before it: ``draws_ahead`` is the value without that.
    """
    rewards = Rewards(settings, correct_at=correct_at, pool=SHARED)
    try:
        if problems is not None:
            rewards.check_columns(sorted({name for problem in problems for name in problem.columns}))
        if draws_ahead is not None:
            refuse_the_step(rewards.readers_of_the_step, draws_ahead)
    finally:
        rewards.close()
    return ", ".join(each.label for each in settings) or "NeMo-RL's environment"


def environment_loads(
    environment: Environment, problems: Sequence[Problem] | None, reward: Sequence[AnyReward]
) -> str | Caution:
    """What its `reset` asks for are columns, where those are known, and its rewards are read and there."""
    if problems is not None:
        environment.check_columns(sorted({name for problem in problems for name in problem.columns}))
    if fault := rewards_read(environment, reward):
        return fault
    label, names = environment.settings.label, [str(tool["function"]["name"]) for tool in environment.tools]
    return f"{label}, with the tools {', '.join(names)}" if names else label


def rewards_read(environment: Environment, reward: Sequence[AnyReward]) -> Caution | None:
    """An entry of the rewards reads what the environment gives, and it gives what that entry reads."""
    name, read = environment.settings.label, any(isinstance(each, EnvironmentReward) for each in reward)
    if environment.rewards and reward and not read:
        return Caution(f"{name} returns rewards that no entry of reward reads; add one: reward=[..., environment]", "")
    if read and not environment.rewards:
        missing = f"{name} gives no reward (get_reward, reward, step): the reward environment is always 0"
        return Caution(missing, f"let {name} give one, or leave environment out of reward")
    return None


def identities(method: Method, tolerances: Mapping[str, float]) -> str:
    """The method's identities hold on a made batch."""
    from nemo_uecr.core.invariants import smoke_test

    smoke_test(method, dict(tolerances))
    return f"{method.name}: its identities hold on a made batch"
