"""The configuration of a run of the local back end: all keys with types, limits, meanings and rules.

Each key is one line. The comment after it, or above it, becomes its meaning in docs/configuration.md (`make pages`).
Defaults are either here or in a YAML file, never at a call site. Types are strict and unknown keys are errors. A rule
that spans several keys is a validator that raises ValueError with a sentence naming them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from nemo_uecr import door
from nemo_uecr.core.methods import METHODS, Method, method_class
from nemo_uecr.core.methods.uecr import Puu
from nemo_uecr.errors import ConfigError
from nemo_uecr.ranges import BelowOne, Count, NonNegative, NonNegativeInt, Positive, Range, Seed, Share, UpToOne

Text = Annotated[str, Field(min_length=1)]
OwnCode = Annotated[str, Field(pattern=door.PATTERN)]
Texts = Annotated[tuple[Text, ...], Field(strict=False)]
Dtype = Literal["float32", "bfloat16"]
Quantize = Literal["none", "int8", "nf4"]

#: YAML 1.1 reads a bare on/off as a boolean; keys of this kind mean the word.
Word = BeforeValidator(lambda value: {True: "on", False: "off"}[value] if isinstance(value, bool) else value)
Tracking = Annotated[Literal["off", "offline", "online"], Word]


def nearest_name(wrong: str, known: Iterable[str]) -> str:
    """The most similar known name, preferably one with the same last part or that begins with the wrong one."""
    known, last = list(known), wrong.rpartition(".")[2]
    alike = [name for name in known if name.rpartition(".")[2] == last] or [n for n in known if n.startswith(wrong)]
    return get_close_matches(wrong.lower(), alike or known, n=1, cutoff=0.0)[0]


class Section(BaseModel):
    """Base of every section: frozen, strict types, no unknown keys, no NaN or infinity."""

    # `model_name` is a key of ours; older pydantic reserves the prefix.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


# -- sections of both back ends --------------------------------------------------------------------------------------


class RunConfig(Section):
    """Where the run lives and what seeds it."""

    folder: Text  # Output folder of the run; created if missing. One run per folder.
    seed: Seed  # Seeds the sampling of prompts and tokens, and every permutation.


class SamplingConfig(Section):
    """How the student's responses are sampled."""

    prompts_per_step: Count  # P: prompts per step.
    responses_per_prompt: Annotated[int, Range(2)]  # G: responses per prompt; a group of one has no advantage.
    temperature: Positive  # T_r: sampling temperature, also the temperature of the PPO ratio.
    top_p: UpToOne  # Nucleus mass of generation only; 1 is off.
    top_k: NonNegativeInt  # Number of candidate tokens of generation only; 0 is off.
    # Longest response in tokens, of several turns with what is observed; one cut off there counts as truncated.
    max_response_tokens: Count
    stop: Texts = ()  # A response ends after the token that completes one of these strings, finished.
    overlong_filter: bool  # Whether truncated responses are left out of the loss.


def _method(values: object) -> Method:
    """The method that the section names, with its settings; settings of other methods are ignored."""
    if not isinstance(values, dict) or "name" not in values:
        raise ValueError(f"method: got {values!r:.60}, expected a section with a name and settings")
    name, settings = values["name"], {key: value for key, value in values.items() if key != "name"}
    method = named_method(name)
    kinds = get_type_hints(method)
    faults = []
    if missing := [f"method.{key}" for key in method.required() if settings.get(key) is None]:
        faults.append(f"{', '.join(missing)}: missing, but method {name} needs it; write {missing[0]}=VALUE")
    for key, allowed in method.ranges().items():
        try:
            if key in settings:
                settings[key] = TypeAdapter(kinds[key]).validate_python(settings[key], strict=True)
        except ValidationError as error:
            expected = error.errors()[0]["msg"].replace("Input should be", "expected")
            faults.append(f"method.{key}: got {settings[key]!r:.60}, {expected}")
            continue
        if allowed is not None and settings.get(key) is not None and settings[key] not in allowed:
            faults.append(f"method.{key}: got {settings[key]!r}, expected {allowed}")
    if faults:
        raise ValueError("; ".join(faults))
    return method(**{key: value for key, value in settings.items() if key in method.ranges()})


def named_method(name: object) -> type[Method]:
    """The class that `method.name` names: a shipped method, or one from a user's file."""
    if name in METHODS:
        return METHODS[str(name)]
    if not isinstance(name, str) or not door.is_own(name):
        own = "; of a file it is FILE.py:NAME" if ".py" in str(name) else ""
        raise ValueError(
            f"method.name: got {name!r}, the nearest method is {nearest_name(str(name), METHODS)!r}; "
            f"known methods: {', '.join(METHODS)}{own}"
        )
    try:
        return method_class(name)
    except ConfigError as error:
        raise ConfigError(f"method.name: {error}") from error


#: The section `method`: one of the classes in `nemo_uecr/core/methods`, chosen by its name, or one from a user's file.
MethodSection = Annotated[
    Method, PlainValidator(_method), PlainSerializer(lambda method: {"name": method.name, **method.settings()})
]


class LossConfig(Section):
    """The clipped surrogate and the reference KL."""

    clip_low: Share  # The ratio is clipped below at 1 - clip_low.
    clip_high: Positive  # The ratio is clipped above at 1 + clip_high.
    # Coefficient of the k3 KL to the initial student. 0 loads no reference model unless the method reads it.
    reference_kl: NonNegative


class VerifierReward(Section):
    """The built-in verifier: 1 for a correct final answer, else 0. `reward: math` is an abbreviation."""

    verifier: Literal["math"] = "math"  # Compares the last box of the response with the reference answer.
    weight: float = 1.0  # Its weight in the sum.

    @property
    def label(self) -> str:
        return "verifier"


class CallReward(Section):
    """A function of your own, in TRL's style or in verl's. `reward: FILE.py:FUNCTION` is an abbreviation."""

    call: OwnCode  # `FILE.py:FUNCTION`.
    weight: float = 1.0  # Its weight in the sum.
    name: Annotated[str, Field(pattern=r"^\w+$")] | None = None  # Its name in telemetry; null: the function's.
    args: dict[str, Any] = {}  # Further keyword arguments.
    messages: bool = False  # Whether TRL's prompts, all turns, and completions are lists of messages instead of texts.
    timeout_s: Positive = 60.0  # Seconds that one call may take: a batch in TRL's style, a response in verl's.

    @property
    def path(self) -> str:
        return self.call.rpartition(":")[0]

    @property
    def label(self) -> str:
        return self.name or self.call.rpartition(":")[2]


class EnvironmentReward(Section):
    """The sum of the rewards of `environment` over an episode. `reward: environment` is an abbreviation."""

    environment: Literal["sum"] = "sum"  # What is made of an episode's rewards.
    weight: float = 1.0  # Its weight in the sum.

    @property
    def label(self) -> str:
        return "environment"


class EnvironmentConfig(Section):
    """A class of your own that answers the student's turns. `environment: FILE.py:CLASS` is an abbreviation."""

    call: OwnCode  # `FILE.py:CLASS`.
    args: dict[str, Any] = {}  # Keyword arguments of the class.
    max_turns: Count = 8  # Turns of the student after which an episode ends.
    turn_tokens: Count | None = None  # Longest turn in tokens; null: what the response has left.
    # How an observation is shown: as a turn of the `user` or of a `tool`, by the chat template, or as bare `text` that
    # continues the student's turn, which one of rollout.stop has ended.
    role: Literal["user", "tool", "text"] = "user"
    timeout_s: Positive = 60.0  # Seconds that one answer may take.
    processes: Count = 4  # Processes that share a step's episodes; each answers its own one by one.

    @property
    def path(self) -> str:
        return self.call.rpartition(":")[0]

    @property
    def label(self) -> str:
        return self.call.rpartition(":")[2]


#: For a field that names an environment, or none.
EnvironmentSection = Annotated[
    EnvironmentConfig | None, BeforeValidator(lambda given: {"call": given} if isinstance(given, str) else given)
]


def by_key(usual: str, *keys: str) -> Discriminator:
    """Choose a section's type by a key that only this type has, so that errors name only this type's keys."""

    def kind(section: object) -> str:
        own = section if isinstance(section, dict) else getattr(type(section), "model_fields", ())
        return next((f"[{key}]" for key in keys if key in own), f"[{usual}]")

    return Discriminator(kind)


def one_or_several(given: object) -> object:
    """A list of sections from `math`, `environment`, `FILE.py:FUNCTION`, one section or several."""
    listed = given if isinstance(given, list | tuple) else [given]
    return [_reward(each) if isinstance(each, str) else each for each in listed]


def _reward(text: str) -> dict[str, str]:
    if text == "environment":
        return {"environment": "sum"}
    return {"call" if ".py:" in text else "verifier": text}


def _distinct(rewards: Sequence[Any]) -> Sequence[Any]:
    names = [each.label for each in rewards]
    if len(names) > len(set(names)):
        raise ValueError(f"reward: got the names {', '.join(names)}; expected distinct names; set reward.name")
    return rewards


#: For a field of several rewards that may be given as one.
SEVERAL = (Field(strict=False), BeforeValidator(one_or_several), AfterValidator(_distinct))
AnyReward = Annotated[
    Annotated[VerifierReward, Tag("[verifier]")]
    | Annotated[CallReward, Tag("[call]")]
    | Annotated[EnvironmentReward, Tag("[environment]")],
    by_key("verifier", "call", "environment"),
]


class EvaluationConfig(Section):
    """avg@k on named benchmarks, with its own decoding settings."""

    every: NonNegativeInt  # Steps between evaluations; 0: only after the last step.
    at_start: bool  # Whether the untrained student is evaluated too.
    samples: Count  # k: responses per problem.
    temperature: NonNegative  # Decoding temperature; 0 is greedy and asks for samples = 1.
    top_p: UpToOne  # Nucleus mass; 1 is off.
    top_k: NonNegativeInt  # Number of candidate tokens; 0 is off.
    seed: Seed  # Seed of the decoding, the same at every evaluation.
    max_tokens: Count  # Longest response in tokens.
    stop: Texts = ()  # A response ends after the token that completes one of these strings, finished.
    # Name and problems of each benchmark, as in `data.train`; `aime24` and other known names too. May be empty.
    benchmarks: dict[Text, Text]

    @model_validator(mode="after")
    def _decoding_is_possible(self) -> Self:
        if self.temperature == 0 and self.samples != 1:
            raise ValueError(f"evaluation.samples: got {self.samples}, expected 1 because temperature = 0 is greedy")
        return self


class ProblemsConfig(Section):
    """Training problems and how a prompt is made from one."""

    train: Text  # Problems: a file, a folder or a name on the hub, perhaps with `:SPLIT`.
    question_key: Text  # Field of the question, a text or a list of messages; dots lead into nested fields.
    answer_key: Text | None  # Field of the reference answer; null: the problems have none, and no reward reads one.
    # Rows to read: those whose field has one of the values, as in {problem_is_valid: [true], ability: [math]}.
    where: dict[Text, Annotated[tuple[bool | int | float | str, ...], Field(strict=False, min_length=1)]] = {}
    # The user's turn, with {question}; {body}, {passage}, {context}, {options}, {choices} are those fields of the row.
    prompt_template: Annotated[str, Field(pattern=r"\{question\}")]
    enable_thinking: bool  # Handed to the chat template; false is the non-thinking mode.
    max_prompt_tokens: Count  # Longest prompt in tokens, chat template included.
    # What to do with longer training prompts: `refuse` stops the run at its start, `drop` leaves them out.
    long_prompts: Literal["refuse", "drop"]
    shuffle: bool  # Whether problems are drawn in random order instead of file order.


class RecipeDataConfig(ProblemsConfig):
    """Problems of this project in a recipe of NeMo-RL's, and how a prompt is made from one."""

    difficulty_key: Text | None = None  # Field of the difficulty; null: do not filter by it.
    difficulty_low: NonNegative | None = None  # Lowest difficulty to keep.
    difficulty_high: NonNegative | None = None  # Highest difficulty to keep.
    subset: Count | None = None  # Number of problems drawn from those kept, by `grpo.seed`; null: all.

    @model_validator(mode="after")
    def _difficulty_is_a_range(self) -> Self:
        given = {each is None for each in (self.difficulty_key, self.difficulty_low, self.difficulty_high)}
        if len(given) > 1:
            raise ValueError("data.difficulty_key, _low and _high: got some of them, expected all or none")
        return self


class OptimizerConfig(Section):
    """The optimizer and its steps."""

    steps: Count  # Rollout batches to train on.
    # Responses per optimizer step; must divide the batch of prompts_per_step * responses_per_prompt.
    minibatch_responses: Count
    learning_rate: Positive  # AdamW's learning rate after warm-up.
    betas: Annotated[tuple[BelowOne, BelowOne], Field(strict=False)]  # AdamW's two decay rates.
    weight_decay: NonNegative  # AdamW's decoupled weight decay.
    max_grad_norm: Positive  # Gradients are scaled down to this norm.


class TolerancesConfig(Section):
    """Largest residual of each identity; a larger one stops the run."""

    budget: Positive = 1e-6  # |mean of w - 1| over a response, or of A less A^U, relative; in float32.
    decomposition: Positive = 1e-6  # |A^U - (A^task|U + alpha A^T|U)|, relative to max(1, |A^task|U| + |alpha A^T|U|).
    residual_bound: Positive = 1e-6  # Excess of |q| over 1.
    log_weight: Positive = 1e-6  # |mean log weight| of distilled_rl where the advantage is positive.
    # Mean of |ratio - 1| over the tokens of a batch's first optimizer step. Where none is given and `student.dtype` is
    # bfloat16 on a `device` other than cpu, the local back end takes 0.05.
    first_ratio: Positive = 1e-5
    # |ratio - 1| that at most 1 % of these tokens may exceed; 0.9 in the same case.
    first_ratio_p99: Positive = 1e-5


class LocalTolerancesConfig(TolerancesConfig):
    """Largest residual of each identity; a larger one stops the run."""

    rollout_gap: Positive = 0.05  # Mean |log pi - log pi_vLLM| of a step's tokens, nats, with rollout.engine=vllm.
    # Mean |change| of a URL teacher's scores of fixed tokens since the run began, and between two requests, nats.
    teacher_probe: Positive = 0.05


#: Bounds of the first ratio for bfloat16 on a GPU; docs/nemo-rl.md has the reason.
BFLOAT16_ON_GPU = {"first_ratio": 0.05, "first_ratio_p99": 0.9}


def check_sections(config: Config) -> None:
    """Rules of both back ends: the mini-batch divides the batch, and teachers, method and routing agree."""
    responses = config.rollout.prompts_per_step * config.rollout.responses_per_prompt
    if responses % config.train.minibatch_responses:
        raise ValueError(
            f"train.minibatch_responses: got {config.train.minibatch_responses}, expected a divisor of "
            f"rollout.prompts_per_step * rollout.responses_per_prompt = {responses}"
        )
    check_teachers(config)
    check_environment(config)
    check_answers(config)
    check_stop(config.environment, config.rollout.stop, "rollout.stop")


def check_environment(config: Any) -> None:
    """Environment, rewards and method agree, in a configuration or in a recipe's section `uecr`."""
    if config.environment is None:
        if any(isinstance(each, EnvironmentReward) for each in config.reward or ()):
            raise ValueError("reward: got environment, but there is none; write environment=FILE.py:CLASS")
    elif getattr(config.method, "turn_separator", None) is not None:
        raise ValueError("method.turn_separator: got one; expected null, since the environment's turns are the turns")


def check_answers(config: Any) -> None:
    """The verifier judges nothing without answers, in a configuration or in a recipe's section `uecr`."""
    if config.data is None or config.data.answer_key is not None:
        return
    if not config.reward or any(isinstance(each, VerifierReward) for each in config.reward):
        judged = "the rewards have the verifier"
    elif config.evaluation is not None and config.evaluation.benchmarks and judged_by(config) is None:
        judged = "the verifier judges evaluation.benchmarks"
    else:
        return
    raise ValueError(
        f"data.answer_key: got null, but {judged}, which compares with an answer; name the answers' field, or let an "
        "environment judge: reward=environment"
    )


def judged_by(config: Any) -> float | None:
    """From which sum of an episode's rewards on a benchmark's response is correct; None where the verifier says it."""
    kinds = {type(each) for each in config.reward}
    return config.correct_at if EnvironmentReward in kinds and VerifierReward not in kinds else None


def check_stop(environment: EnvironmentConfig | None, stop: Sequence[str], key: str) -> None:
    """Bare text continues a turn that a stop string has ended; ``key`` has them."""
    if environment is not None and environment.role == "text" and not stop:
        raise ValueError(
            f"environment.role: got text, which continues a turn that a stop string ended; set {key}, or take role=user"
        )


def check_teachers(config: Any) -> None:
    """Teachers, method and routing agree, in a configuration or in a recipe's section `uecr`."""
    if config.method.needs_teacher() and not config.active_teachers:
        raise ValueError(
            f"teacher.model_name: got null, but method {config.method.name} reads a teacher; name a model, or choose "
            "method.name=grpo"
        )
    names, routing = ", ".join(config.teachers), config.routing
    if config.teachers and getattr(config.teacher, "model_name", config.teacher) is not None:
        raise ValueError(f"teacher and teachers.{names}: got both, expected one; remove the unnamed teacher")
    if unnamed := [name for name, teacher in config.teachers.items() if getattr(teacher, "model_name", "") is None]:
        raise ValueError(f"teachers.{unnamed[0]}.model_name: got null, expected a model; name one or leave it out")
    if routing is None and len(config.teachers) > 1:
        raise ValueError(f"routing: missing, but there are teachers {names}; write routing.key=COLUMN")
    if routing is not None and not config.teachers:
        raise ValueError(f"routing: got key {routing.key}, but no named teachers; set teachers.NAME.model_name=...")
    if routing is not None and routing.default not in (None, *config.teachers):
        raise ValueError(f"routing.default: got {routing.default}, expected one of teachers: {names}")


def teacher_models(config: Config) -> dict[str, str]:
    """Folder or hub name of each teacher that the run loads, by key: `teacher` or `teachers.NAME`."""
    elsewhere = SelfTeacherConfig | UrlTeacherConfig
    active = config.active_teachers.items()
    return {key: str(teacher.model_name) for key, teacher in active if not isinstance(teacher, elsewhere)}


def longest_generated(config: Config) -> int:
    """Tokens of the longest prompt with the longest response, in training or evaluation."""
    evaluated = config.evaluation.max_tokens if config.evaluation.benchmarks else 0
    return config.data.max_prompt_tokens + max(config.rollout.max_response_tokens, evaluated)


def url_teachers(config: Config) -> dict[str, UrlTeacherConfig]:
    """The teachers on a server, by key."""
    return {key: one for key, one in config.active_teachers.items() if isinstance(one, UrlTeacherConfig)}


def teacher_folders(config: Config) -> dict[str, str]:
    """Folder or hub name of each teacher's model, or of its tokenizer if a server has the model, by key."""
    return teacher_models(config) | {key: teacher.tokenizer for key, teacher in url_teachers(config).items()}


# -- the local back end ----------------------------------------------------------------------------------------------


class StudentConfig(Section):
    """The policy to train."""

    model_name: Text  # Hugging Face model: a local folder or a hub name.
    # Number format of the computation; trained weights are float32 except under `adamw8bit_sr`.
    dtype: Dtype
    # r: rank of an adapter B A on every linear layer, trained instead of the weights; 0: train the weights.
    lora_rank: Annotated[int, Range(0, 512)] = 0
    lora_alpha: Positive = 32.0  # The adapter is scaled by alpha / r.
    # Whether the experts of a mixture get adapters, too, r for each: of Qwen3-30B-A3B 1.3 billion parameters at r = 32.
    lora_experts: bool = False
    # Whether a mixture's routers stay as they are, without an adapter, as by NeMo-RL's key of that name.
    freeze_moe_router: bool = True


class TeacherConfig(Section):
    """A frozen model that scores the student's tokens."""

    model_name: Text | None  # Hugging Face model: a local folder or a hub name; null where the method reads no teacher.
    dtype: Dtype | None = None  # Number format of weights and activations; null: the student's.
    # Number format of its linear layers, quantized when loaded (int8: torchao, nf4: bitsandbytes); embedding and output
    # layer keep `dtype`, and so do a mixture's experts under nf4: a run tells what share is rounded. A method that
    # normalises R^T within a group would divide by the rounding noise: it needs a `method.std_floor` above the measured
    # `method.scoring_noise`. Other methods do not amplify the noise.
    quantize: Quantize = "none"
    # Score of the token that ends a response, if this teacher ends with other tokens than the student: that of the
    # `sampled` token, the sum over its `own` end tokens, or the student's, which leaves the token out of the gap
    # (`left_out`). Null: as sampled, and the run reports the cost.
    end_token: Literal["sampled", "own", "left_out"] | None = None


class UrlTeacherConfig(Section):
    """A server that scores the student's tokens: vLLM's completions route or SGLang's native one."""

    # The server; the SGLang route has not been tested against a real one.
    server: Literal["vllm", "sglang"] = "vllm"
    url: Annotated[str, Field(pattern=r"^https?://.*[^/]$")]  # Its address: http://HOST:PORT.
    model_name: Text  # The server's name for the model.
    tokenizer: Text  # The model's tokenizer, a local folder or a hub name, with the same ids as the student's.
    # Whether vLLM has the plugin that returns the entropy, which only some methods read.
    entropy: Literal["plugin", "none"]
    end_token: Literal["sampled", "left_out"] | None = None  # As for a model, but without `own`.


class SelfTeacherConfig(Section):
    """The student as its own teacher, which may read more than the student: a solution or a hint."""

    self: Literal["initial", "current"]  # The student's weights before training, or at the current step.
    # The user's turn for the teacher, with {question}, {answer} or {COLUMN} for any column of the problem.
    prompt_template: Annotated[str, Field(pattern=r"\{\w+\}")]


OneTeacher = TeacherConfig | SelfTeacherConfig | UrlTeacherConfig
AnyTeacher = Annotated[
    Annotated[TeacherConfig, Tag("[model]")]
    | Annotated[SelfTeacherConfig, Tag("[self]")]
    | Annotated[UrlTeacherConfig, Tag("[url]")],
    by_key("model", "self", "url"),
]
TeacherName = Annotated[str, Field(pattern=r"^[\w-]+$")]


class RoutingConfig(Section):
    """Which teacher scores the responses to a problem."""

    key: Text  # Column of the problems with the teacher's name.
    default: TeacherName | None = None  # Teacher of problems that name none; null: refuse them.


def day_of(text: str) -> str:
    """A day as 2026-11-29."""
    try:
        return str(date.fromisoformat(text))
    except ValueError as error:
        raise ValueError(f"prompt_date: got {text!r}, expected a day, as 2026-11-29") from error


def _no_own_key(given: dict[str, Any]) -> dict[str, Any]:
    if "enable_thinking" in given:
        raise ValueError("enable_thinking is a key of its own: data.enable_thinking")
    if taken := given.keys() & {"messages", "tools", "add_generation_prompt", "tokenize", "chat_template"}:
        raise ValueError(f"{min(taken)} is no argument of a template's own, and has its value from the run")
    return given


class DataConfig(ProblemsConfig):
    """Training problems and how a prompt is made from one."""

    id_key: Text | None  # Field of the problem's id; the row number if null or absent.
    system_prompt: Text | None  # The system turn; null: none.
    # Handed to the chat template beside `enable_thinking`, as {reasoning_effort: low}; it must read them.
    chat_template_kwargs: Annotated[dict[Text, bool | int | float | str], AfterValidator(_no_own_key)] = {}
    # What the chat template takes for today, as 2026-11-29; asked for where it prints the date.
    prompt_date: Annotated[str, AfterValidator(day_of)] | None = None


class RolloutConfig(SamplingConfig):
    """How the student's responses are sampled."""

    # What samples them: transformers, or vLLM in the same process.
    engine: Literal["transformers", "vllm"] = "transformers"
    gpu_memory: Share = 0.5  # Share of the GPU's memory for vLLM while it samples.
    microbatch_responses: Count  # Responses sampled at once by transformers; bounds memory.
    # Whether special tokens within a response are removed from the text for reward functions; the end token always is.
    skip_special_tokens: bool = True
    # Steps by which the policy that samples is older than the one that is trained, as in NeMo-RL's asynchronous loop.
    lag: NonNegativeInt = 0


class TrainConfig(OptimizerConfig):
    """The optimizer and its steps."""

    # AdamW with float32 moments, with 8-bit moments (bitsandbytes), or with 8-bit moments and stochastically rounded
    # bfloat16 weights (torchao).
    optimizer: Literal["adamw", "adamw8bit", "adamw8bit_sr"] = "adamw"
    # Whether the backward pass recomputes activations instead of keeping them; the numbers are the same.
    activation_checkpointing: bool = False
    # Whether to use torch's deterministic algorithms, so that a GPU repeats a run bit for bit. Costs time, mostly in
    # the backward pass of attention; an operation without such an algorithm ends the run.
    deterministic: bool = False
    # Responses per forward and backward pass; gradients accumulate, so the result does not change.
    microbatch_responses: Count
    warmup_steps: NonNegativeInt  # Optimizer steps of linear warm-up.


class CheckpointConfig(Section):
    """Checkpoints to resume from."""

    every: NonNegativeInt  # Steps between checkpoints; 0: only after the last step.
    keep_last: Count  # Newest checkpoints to keep.
    keep_best: bool  # Whether to keep the checkpoint with the highest average avg@k too; needs benchmarks.


class TelemetryConfig(Section):
    """Outputs besides the metrics file."""

    tensorboard: Annotated[Literal["auto", "on", "off"], Word]  # TensorBoard events; auto: when it is installed.
    wandb: Tracking = "off"  # Weights & Biases; offline: into the run folder, for `wandb sync`; online: to its service.
    # MLflow; offline: into the run folder's mlflow.db; online: to the server that MLFLOW_TRACKING_URI names.
    mlflow: Tracking = "off"
    # Trackio; offline: into the run folder's trackio/; online: to TRACKIO_SPACE_ID or TRACKIO_SERVER_URL.
    trackio: Tracking = "off"
    swanlab: Tracking = "off"  # SwanLab; offline: into the run folder, for `swanlab sync`; online: to its service.
    tracker: OwnCode | None = None  # `FILE.py:NAME`: a class that gets the metrics, of your own (docs/metrics.md).
    project: Text = "nemo-uecr"  # The trackers' project, MLflow's experiment.
    # Steps between saved batches (replay, credit map, audits), the first step included; 0: none.
    save_batch_every: NonNegativeInt
    # Progress on the terminal; auto: a bar for people, lines otherwise.
    progress: Annotated[Literal["auto", "bar", "lines", "off"], Word]


class Config(Section):
    """A whole run."""

    backend: Literal["local"]  # What executes the run: one process on a CPU or one GPU.
    device: Literal["auto", "cpu", "cuda"]  # Device of the models; auto: the GPU if there is one.
    threads: Count | None  # CPU threads for torch; null: torch's choice.
    # What is moved to host memory while a phase does not need it: nothing, teacher and reference, or also the student
    # and its optimizer; the numbers are the same.
    offload: Literal["none", "teacher", "all"] = "none"
    run: RunConfig
    student: StudentConfig
    teacher: AnyTeacher | None = None
    teachers: dict[TeacherName, AnyTeacher] = {}  # Several named ones instead of `teacher`; `routing` chooses.
    routing: RoutingConfig | None = None
    data: DataConfig
    reward: Annotated[tuple[AnyReward, ...], *SEVERAL] = (VerifierReward(),)
    # Smallest task reward that counts as correct in telemetry if the verifier is not among the rewards.
    correct_at: float = 0.5
    environment: EnvironmentSection = None  # What answers the student's turns; null: a response is one turn.
    rollout: RolloutConfig
    method: MethodSection
    loss: LossConfig
    train: TrainConfig
    evaluation: EvaluationConfig
    checkpoint: CheckpointConfig
    telemetry: TelemetryConfig
    tolerances: LocalTolerancesConfig = LocalTolerancesConfig()

    @property
    def trackers(self) -> list[str]:
        """The services that get the metrics; each has an extra of its name."""
        return [name for name in ("wandb", "mlflow", "trackio", "swanlab") if getattr(self.telemetry, name) != "off"]

    @property
    def active_teachers(self) -> dict[str, OneTeacher]:
        """The teachers by key, `teacher` or `teachers.NAME`; empty if the method reads none."""
        stated: dict[str, OneTeacher | None] = {f"teachers.{name}": teacher for name, teacher in self.teachers.items()}
        active: dict[str, OneTeacher] = {}
        for key, teacher in (stated or {"teacher": self.teacher}).items():
            if isinstance(teacher, TeacherConfig) and teacher.model_name is not None:
                active[key] = teacher.model_copy(update={"dtype": teacher.dtype or self.student.dtype})
            elif isinstance(teacher, SelfTeacherConfig | UrlTeacherConfig):
                active[key] = teacher
        return active if self.method.needs_teacher() else {}

    @model_validator(mode="before")
    @classmethod
    def _leave_room_for_rounding(cls, values: Any) -> Any:
        """Set the bounds of the first ratio that are not given if a GPU may compute in bfloat16."""
        match values:
            case {"device": "auto" | "cuda", "student": {"dtype": "bfloat16"}, **rest}:
                given = rest.get("tolerances", {})
                return {**values, "tolerances": BFLOAT16_ON_GPU | given} if isinstance(given, dict) else values
        return values

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        check_sections(self)
        self._check_quantized()
        for key, teacher in url_teachers(self).items():
            if teacher.entropy == "none" and "teacher_entropy" in self.method.reads:
                raise ValueError(
                    f"{key}.entropy: got none, but method {self.method.name} reads the teacher's entropy; serve the "
                    f"model with the plugin and set {key}.entropy=plugin, or choose method.name=ecr_no_entropy"
                )
        if self.environment is not None and self.rollout.lag:
            raise ValueError(
                f"rollout.lag: got {self.rollout.lag} with an environment; expected 0, because responses of several "
                "turns are drawn in their own step"
            )
        size, most = self.train.microbatch_responses, self.train.minibatch_responses
        if size > most:
            raise ValueError(
                f"train.microbatch_responses: got {size}, expected at most train.minibatch_responses = {most}"
            )
        if self.train.optimizer == "adamw8bit_sr" and (self.student.dtype != "bfloat16" or self.student.lora_rank):
            raise ValueError(
                "train.optimizer: adamw8bit_sr trains bfloat16 weights; set student.dtype=bfloat16, student.lora_rank=0"
            )
        if self.student.lora_experts and (not self.student.lora_rank or self.rollout.engine == "vllm"):
            raise ValueError(
                "student.lora_experts: got true; it needs student.lora_rank above 0 and rollout.engine=transformers, "
                "since adapters on experts have not been tried in vLLM"
            )
        if self.checkpoint.keep_best and not self.evaluation.benchmarks:
            raise ValueError(
                "checkpoint.keep_best: got true, but evaluation.benchmarks is empty; name one, or set it to false"
            )
        return self

    def _check_quantized(self) -> None:
        method = self.method
        if not isinstance(method, Puu) or method.alpha == 0 or method.std_floor > (method.scoring_noise or math.inf):
            return
        noise = "not stated" if method.scoring_noise is None else f"{method.scoring_noise:g}"
        for key, teacher in self.active_teachers.items():
            quantize = getattr(teacher, "quantize", "none")
            if quantize != "none":
                raise ValueError(
                    f"{key}.quantize: got {quantize} with method.scoring_noise {noise} and method.std_floor "
                    f"{method.std_floor:g}; {method.name} divides R^T by its spread in a group, which may be rounding "
                    "alone. Measure the noise with `nemo-uecr audit teacher`, state it, and set the floor above it"
                )
