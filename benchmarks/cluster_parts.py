"""What the parts of `cluster_quarter` do: NeMo-RL's own Megatron worker with our methods, on one GPU.

    python -m benchmarks.cluster_parts PART WORK --device cuda

The worker, the class that Ray would run, is constructed in the part's own process as the only rank. What constructs and
calls it is what tests it on a CPU (tests/nemo/inside/workers), whose stand-ins serve a rehearsal. A part renews its
figures and assertions in WORK/parts/PART.json as it goes on; it goes on after an assertion that fails, and ends with
exit code 1 then. What a part takes of a run's configuration is `Run`, made in `configured` alone.

Shape legend: B = responses, S = tokens of prompt and response (padded), N = tokens, V = vocabulary.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import importlib
import itertools
import json
import os
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu_parts import GIB, filled_tokenizer, keep_in_memory, random_model, wait, write_problems, write_rows
from benchmarks.quarter import MEBI, ROOT

if "tests" not in sys.modules:  # this project's; wheels install packages of that name
    sys.modules["tests"] = types.ModuleType("tests")
    sys.modules["tests"].__path__ = [str(ROOT / "tests")]
from tests.nemo.inside.workers import parts, stand_ins, world

CONFIG = ROOT / "examples" / "configs" / "uecr_qwen3_1p7b.yaml"
#: By device: both models' sizes (`gpu_parts.SIZES`); columns; lengths of the scored rows; tokens of a micro-batch of
#: these rows, of a chunk, of the kernel alone, and of the longest row of a step.
SCALE: dict[str, dict[str, Any]] = {
    "cuda": {
        "student": (2048, 6144, 28, 16, 8, 128), "teacher": (2560, 9728, 36, 32, 8, 128), "vocabulary": 151_936,
        "lengths": (2048, 1024, 1500, 37, 777, 2048, 2, 513), "micro": 4096, "chunk": 256, "kernel": 4096,
        "longest": 18_432,
    },
    "cpu": {
        "student": (64, 128, 2, 4, 2, 16), "teacher": (64, 128, 2, 4, 2, 16), "vocabulary": 1280,
        "lengths": (24, 12, 17, 5, 2, 24), "micro": 32, "chunk": 16, "kernel": 64, "longest": 64,
    },
}  # fmt: skip
#: Largest difference between our scores and NeMo-RL's own of the same logits, nats.
SAME_NATS = 1e-3
#: Our mean error against float64 may be so many times that of transformers' own forward in bfloat16.
TIMES_CONTROL = 2.0

#: Guesses, made without a GPU: the first run on one corrects them.
KERNEL_SHARE = 0.7  # least share of copy bandwidth that the scoring kernel reads at
STUDENT_LEFT_MEBI = 256.0  # most that the student leaves on the GPU after its offload
PLANNED = 0.5, 1.05  # a peak as a share of `plan`'s
FP8_NATS = 0.5  # most that FP8 changes a teacher's log-probabilities in the mean


class Report:
    """A part's rows of figures, with a row for each assertion; the file is renewed with each."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows, self.failed = path, dict[str, dict[str, Any]](), list[str]()

    def row(self, name: str, **figures: Any) -> None:
        """Add figures to a row; their names are read with blanks."""
        self.rows.setdefault(name, {}).update({key.replace("_", " "): value for key, value in figures.items()})
        write_rows(self.path, self.rows)

    def check(self, name: str, holds: bool, seen: str, *, guessed: bool = False) -> None:
        """An assertion; ``guessed`` says that nobody knows its bound yet."""
        verdict = ("yes" if holds else "NO") + ", guessed bound" * guessed
        self.row(f"assert: {name}", holds=verdict, seen=seen)
        sys.stdout.write(f"{'pass' if holds else 'FAIL'}  {name}: {seen}\n")
        sys.stdout.flush()
        if not holds:
            self.failed.append(name)

    @contextlib.contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """An error within is an assertion that failed, so that the rest of the part is still seen."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a foreign stack raises is a finding
            traceback.print_exc()
            self.check(name, False, f"{type(error).__name__}: {str(error)[:300]}")


def timed(run: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Wall seconds of a call, the device idle before and after, and what it returned."""
    wait(device)
    started = time.perf_counter()
    found = run()
    wait(device)
    return time.perf_counter() - started, found


def memory() -> dict[str, float]:
    """MiB that torch holds now, and the most since this was last asked."""
    import torch

    if not torch.cuda.is_available():
        return {"held_MiB": 0.0, "peak_MiB": 0.0}
    now, peak = torch.cuda.memory_allocated() / MEBI, torch.cuda.max_memory_allocated() / MEBI
    torch.cuda.reset_peak_memory_stats()
    return {"held_MiB": now, "peak_MiB": peak}


def copy_seconds(source: Any, device: str) -> float:
    """Median of ten copies on the device."""
    target = source.clone()
    return median(timed(lambda: target.copy_(source), device)[0] for _ in range(10))


def relative(found: Any, exact: Any) -> float:
    """Norm of the difference over the norm of the float64 result."""
    return float((found.double() - exact).norm() / exact.norm())


# -- Transformer Engine alone -----------------------------------------------------------------------------------------


def stack(work: Path, device: str, report: Report) -> None:
    """Versions, the copy bandwidth, and Transformer Engine's product, packed attention and FP8 beside float64."""
    import torch

    from nemo_uecr.reproducible import installed

    names = ("torch", "triton", "transformers", "megatron-core", "megatron-bridge", "transformer-engine", "ray", "vllm")
    report.row("stack", **{name: installed(name) or "none" for name in names})
    transformer_engine = importlib.import_module("transformer_engine.pytorch")
    report.check("Transformer Engine loads", True, str(transformer_engine.__file__))
    if device != "cuda":
        return
    report.row("stack", device=torch.cuda.get_device_name(), GiB=torch.cuda.mem_get_info()[1] / GIB)
    report.row("stack", copy_GB_per_s=2 * GIB / 1e9 / copy_seconds(torch.randn(GIB // 4, device=device), device))
    layer = transformer_engine.Linear(1024, 2048, bias=False, params_dtype=torch.bfloat16).cuda()
    x = torch.randn(512, 1024, device=device, dtype=torch.bfloat16)
    exact = x.double() @ layer.weight.double().T
    with report.attempt("a linear layer of Transformer Engine is its product"):
        off = relative(layer(x), exact)
        report.check("a linear layer of Transformer Engine is its product", off < 1e-2, f"relative error {off:.2g}")
    with report.attempt("packed attention of Transformer Engine"):
        packed_attention(transformer_engine, report)
    with report.attempt("a blockwise FP8 product"):
        recipe = importlib.import_module("transformer_engine.common.recipe").Float8BlockScaling()
        with transformer_engine.fp8_autocast(enabled=True, fp8_recipe=recipe):
            off = relative(layer(x), exact)
        report.check("a blockwise FP8 product", 1e-4 < off < 0.1, f"relative error {off:.2g}")


def packed_attention(transformer_engine: Any, report: Report) -> None:
    """Rows of unequal lengths in one sequence, with padding between: forward and gradient, row by row."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    lengths, padded, heads, groups, dim = (300, 64, 513, 2), (320, 64, 576, 64), 16, 8, 128
    own, places = (
        torch.tensor([0, *itertools.accumulate(each)], dtype=torch.int32, device="cuda") for each in (lengths, padded)
    )
    q, k, v = (
        torch.randn(sum(padded), count, dim, device="cuda", dtype=torch.bfloat16).requires_grad_(True)
        for count in (heads, groups, groups)
    )
    attend = transformer_engine.DotProductAttention(
        heads, dim, num_gqa_groups=groups, qkv_format="thd", attn_mask_type="padding_causal", attention_dropout=0.0
    )
    found = attend(
        q, k, v, cu_seqlens_q=own, cu_seqlens_kv=own, cu_seqlens_q_padded=places, cu_seqlens_kv_padded=places,
        max_seqlen_q=max(padded), max_seqlen_kv=max(padded), pad_between_seqs=True,
    ).view(-1, heads, dim)  # fmt: skip
    rows = [slice(start, start + size) for start, size in zip(places.tolist(), lengths, strict=False)]
    weight = torch.zeros_like(found)
    for row in rows:
        weight[row].normal_()
    found.backward(weight)
    forward = gradient = 0.0
    for row in rows:
        exact = [each.detach()[row].double().requires_grad_(True) for each in (q, k, v)]
        wide = [exact[0], *(each.repeat_interleave(heads // groups, 1) for each in exact[1:])]
        out = sdpa(*(each.transpose(0, 1) for each in wide), is_causal=True).transpose(0, 1)
        out.backward(weight[row].double())
        forward = max(forward, relative(found[row], out))
        pairs = zip((q, k, v), exact, strict=True)
        gradient = max(gradient, *(relative(ours.grad[row], one.grad) for ours, one in pairs))
    seen = f"relative error {forward:.2g}, of the gradient {gradient:.2g}"
    report.check("packed attention of Transformer Engine", max(forward, gradient) < 2e-2, seen)


# -- models -----------------------------------------------------------------------------------------------------------


def models(work: Path, device: str, report: Report) -> None:
    """Folders of a random student and teacher, and problems."""
    import torch

    folder, scale = work / "models", SCALE[device]
    keep_in_memory(folder, device, gib=48)
    tokenizer = filled_tokenizer(scale["vocabulary"], longest=2 * scale["longest"])
    for seed, name in enumerate(("student", "teacher")):
        started = time.perf_counter()
        model = random_model(scale[name], tokenizer, seed, device)
        with torch.no_grad():  # random logits are flat: some tokens become sharp, and the teacher unlike the student
            rows = model.model.embed_tokens.weight
            rows.mul_((0.8 * torch.randn(len(rows), 1, device=device)).exp())
            model.model.norm.weight.mul_(2.0 + seed)
        model.bfloat16().save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        report.row(name, parameters=model.num_parameters(), seconds=time.perf_counter() - started)
        del model
    write_problems(folder / "problems.jsonl", [(f"{a} + {a} = ?", str(2 * a)) for a in range(64)])


# -- what a part takes of a run's configuration -----------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Of the shipped 1.7B recipe with these models."""

    student: dict[str, Any]  # NeMo-RL's section `policy` for its worker
    teacher: dict[str, Any]
    student_request: Any  # the columns that a step asks of it
    teacher_request: Any
    loss: Callable[[], Any]
    offload_limit_mebi: int
    generation_share: float  # of a GPU's memory
    first_ratio: float  # most that the mean of |ratio - 1| may be
    overrides: list[str]


def configured(work: Path, device: str, *, fp8: bool = False, micro: int | None = None) -> Run:
    """The run as NeMo-RL's set-up gets it from the plug-in; ``micro`` tokens in a micro-batch, or the recipe's."""
    from nemo_uecr.config.recipes import load_recipe
    from nemo_uecr.nemo import recipe, rules, upstream
    from nemo_uecr.nemo.loss import UecrLoss
    from nemo_uecr.nemo.step import StepContext

    scale, made = SCALE[device], (work / "models").resolve()
    longest, vocabulary = scale["longest"], scale["vocabulary"]
    words = [
        f"uecr.folder={work / 'run'}", f"policy.model_name={made / 'student'}",
        f"uecr.teacher.model_name={made / 'teacher'}", f"uecr.data.train={made / 'problems.jsonl'}",
        "uecr.data.answer_key=answer", *(f"uecr.data.difficulty_{one}=null" for one in ("key", "low", "high")),
        f"uecr.data.max_prompt_tokens={longest // 4}", f"policy.max_total_sequence_length={longest}",
        f"policy.generation.max_new_tokens={longest - longest // 4}", f"uecr.chunk_tokens={scale['chunk']}",
        "grpo.num_prompts_per_step=4", "grpo.num_generations_per_prompt=2", "policy.train_global_batch_size=8",
        f"policy.generation.temperature={world.TEMPERATURE}", "cluster.gpus_per_node=1", "checkpointing.enabled=false",
    ]  # fmt: skip
    if fp8:
        words.append("++uecr.teacher.megatron_cfg.fp8_cfg.enabled=true")
    values = load_recipe(CONFIG, words).values
    section = recipe.section_of(values)
    rules.apply(values, rules.adjusted(values, section))
    settings = recipe.view(values, section, vocabulary)
    context, frozen = StepContext(settings, None), section.active_teachers["teacher"]
    student = values["policy"] | {"uecr": recipe.worker_section(settings)}
    student["megatron_cfg"]["train_iters"] = settings.steps  # as its set-up does
    if micro is not None:
        student["sequence_packing"] |= {"train_mb_tokens": micro, "logprob_mb_tokens": micro}
    sections = student, recipe.teacher_policy(frozen, student, vocabulary)
    if device == "cpu":
        for each in sections:
            stand_ins.without_fusions(each)
    return Run(
        *sections, context.student_request, context.teacher_request(vocabulary),
        lambda: UecrLoss(settings, upstream.native("MasterConfig")(**values).loss_fn), frozen.offload_limit_mebi,
        values["policy"]["generation"]["vllm_cfg"]["gpu_memory_utilization"], section.tolerances.first_ratio, words,
    )  # fmt: skip


# -- what student and teacher are asked alike -------------------------------------------------------------------------


def beside_float64(answer: Any, data: Any, folder: str, request: Any, device: str, report: Report) -> None:
    """Mean errors of the columns, with those of transformers' own forward in bfloat16 as the yardstick."""
    with report.attempt("scores beside float64"):
        errors = world.mean_errors(answer, data, Path(folder), request.columns, world.scored_tokens(data), device)
        for name, (ours, control) in errors.items():
            report.row(f"mean error of {name}, nats", ours=ours, transformers=control)
            bound = TIMES_CONTROL * control + 1e-5
            report.check(f"{name} beside float64", ours <= bound, f"mean error {ours:.3g} nats, bound {bound:.3g}")


def same_bits(one: Any, other: Any, columns: tuple[str, ...]) -> bool:
    """Whether two answers agree bit for bit."""
    import torch

    return all(torch.equal(one[name], other[name]) for name in columns)


# -- the student ------------------------------------------------------------------------------------------------------


def student(work: Path, device: str, report: Report) -> None:
    """Start, what a refit sends, scores, two updates, and each move of a step."""
    run, scale = configured(work, device, micro=SCALE[device]["micro"]), SCALE[device]
    folder, section, request = run.student["model_name"], run.student, run.student_request
    seconds, worker = timed(lambda: parts.make_worker(section, teacher=False, reference=False), device)
    report.row("student", start_s=seconds, **memory())
    with report.attempt("a refit sends the folder's weights"):
        refit(worker, Path(folder), device, report)
    data = world.drawn(scale["vocabulary"], scale["lengths"])

    def move(name: str) -> None:
        seconds, _ = timed(getattr(worker, name), device)
        report.row(f"student {name}", seconds=seconds, **memory())

    move("offload_after_refit")
    move("prepare_for_lp_inference")
    answer = student_scores(worker, data, section, request, device, report)
    kernel(report, device)
    move("prepare_for_training")
    train_twice(worker, run, data, answer, device, report)
    move("offload_before_refit")
    move("offload_after_refit")
    left = memory()["held_MiB"]
    seen = f"{left:.0f} MiB left, bound {STUDENT_LEFT_MEBI:g}"
    report.check("the student's offload frees the GPU", left <= STUDENT_LEFT_MEBI, seen, guessed=True)
    with report.attempt("the same bits after an offload"):
        answers = []
        for _ in range(2):
            worker.prepare_for_lp_inference()
            answers.append(parts.scores(worker, data, section, request))
            worker.offload_before_refit()
            worker.offload_after_refit()
        report.check("the same bits after an offload", same_bits(*answers, request.columns), "all columns")


def refit(worker: Any, folder: Path, device: str, report: Report) -> None:
    """Before any update, NeMo-RL's export for vLLM is the model's folder, tensor for tensor and bit for bit."""
    import torch
    from safetensors.torch import load_file

    expected = {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}
    worker.prepare_refit_info()
    seconds, sent = timed(lambda: {k: v.cpu() for k, v in worker._iter_params_with_optional_kv_scales()}, device)
    if "lm_head.weight" not in expected:
        sent.pop("lm_head.weight", None)  # tied
    wrong = [k for k, value in expected.items() if k not in sent or not torch.equal(sent[k], value)]
    more = sorted(sent.keys() - expected.keys())
    seen = f"{len(expected)} tensors, {len(wrong)} differ {wrong[:2]}, {len(more)} more {more[:2]}"
    report.check("a refit sends the folder's weights", not wrong and not more, seen)
    report.row("student", export_s=seconds)


def student_scores(
    worker: Any, data: Any, section: dict[str, Any], request: Any, device: str, report: Report
) -> Any:  # fmt: skip
    """Ours beside NeMo-RL's own at T_r, and beside float64 with transformers in bfloat16 as the control."""
    parts.scores(worker, data, section, request)  # compiles
    memory()
    seconds, answer = timed(lambda: parts.scores(worker, data, section, request), device)
    tokens = int(data["input_lengths"].sum())
    report.row("scoring", tokens=tokens, seconds=seconds, tokens_per_s=tokens / seconds, **memory())
    mask_BS = world.scored_tokens(data)
    with report.attempt("score_tokens at T_r is NeMo-RL's get_logprobs"):
        seconds, native_BS = timed(lambda: parts.natively(worker.get_logprobs, "logprobs", data, section), device)
        report.row("scoring", NeMo_RL_s=seconds)
        worst = float((native_BS - answer["rollout_logp"])[mask_BS].abs().max())
        seen = f"largest difference {worst:.3g} nats, bound {SAME_NATS:g}"
        report.check("score_tokens at T_r is NeMo-RL's get_logprobs", worst <= SAME_NATS, seen)
    beside_float64(answer, data, section["model_name"], request, device, report)
    return answer


def kernel(report: Report, device: str) -> None:
    """The scoring kernel in the worker's process: its share of copy bandwidth."""
    import torch

    from nemo_uecr.scoring.dense import token_scores

    tokens, columns = SCALE[device]["kernel"], SCALE[device]["vocabulary"]
    logits_NV = 3 * torch.randn(tokens, columns, device=device, dtype=torch.bfloat16)
    ids_N = torch.randint(0, columns, (tokens,), device=device)

    def once() -> Any:
        return token_scores(logits_NV, tokens=ids_N, valid_vocab=columns, entropy=True).at(1.0)

    with torch.no_grad():
        once()
        scoring = median(timed(once, device)[0] for _ in range(10))
    copy = copy_seconds(logits_NV, device)
    share = copy / scoring / 2  # a copy also writes
    report.row("kernel in the worker", ms=1e3 * scoring, copy_ms=1e3 * copy, share_of_copy_bandwidth=share)
    if device == "cuda":
        seen = f"{share:.2f} of copy bandwidth, bound {KERNEL_SHARE}"
        report.check("speed of the kernel", share >= KERNEL_SHARE, seen, guessed=True)


def update(worker: Any, batch: Any, section: dict[str, Any], loss: Any) -> dict[str, float]:
    """One of NeMo-RL's updates with our loss over the batch: mean and most |ratio - 1|, tokens, gradient's norm."""
    from nemo_uecr.nemo.loss import PREFIX, first_ratio_error

    shard, _ = parts.packed(batch, section, tokens="train_mb_tokens")
    result = worker.train(shard, loss, gbs=batch.size, mbs=1)
    metrics = result["all_mb_metrics"]
    mean, tokens = (sum(map(float, metrics[f"{PREFIX}{name}"])) for name in ("first_ratio_mean", "trained_tokens"))
    return {
        "off_1_mean": mean, "off_1_most": first_ratio_error(metrics), "trained": tokens,
        "gradient": float(result["grad_norm"].reshape(-1)[0]),
    }  # fmt: skip


def train_twice(worker: Any, run: Run, data: Any, answer: Any, device: str, report: Report) -> None:
    """First ratio, tokens, gradient and peak; the second update meets a policy that the first one changed."""
    batch, loss = world.training_batch(data, answer["rollout_logp"], world.drawn_advantages(data)), run.loss()
    expected = world.trained_tokens(data)
    for step in (1, 2):
        with report.attempt(f"update {step}"):
            memory()
            seconds, found = timed(lambda: update(worker, batch, run.student, loss), device)
            rate = int(data["input_lengths"].sum()) / seconds
            report.row(f"update {step}", seconds=seconds, tokens_per_s=rate, **memory(), **found)
            mean, norm, tokens = found["off_1_mean"], found["gradient"], found["trained"]
            report.check(f"update {step}: every token trained", tokens == expected, f"{tokens:g} of {expected}")
            report.check(f"update {step}: gradient", 0 < norm < float("inf"), f"norm {norm:.4g}")
            if step == 1:
                seen = f"mean |r - 1| {mean:.3g}, most {found['off_1_most']:.3g}, bound {run.first_ratio:g}"
                report.check("the first ratio is 1", mean <= run.first_ratio, seen)
            else:
                report.check("an update changes the policy", mean > 0, f"mean |r - 1| {mean:.3g}")


# -- the teacher ------------------------------------------------------------------------------------------------------


def teacher(work: Path, device: str, report: Report, *, fp8: bool = False) -> None:
    """A frozen worker, three times on the GPU, with many lengths, and off; the scores that FP8's are compared with."""
    import torch

    run, scale, name = configured(work, device, fp8=fp8, micro=SCALE[device]["micro"]), SCALE[device], "teacher"
    section, request, limit = run.teacher, run.teacher_request, run.offload_limit_mebi
    seconds, worker = timed(lambda: parts.make_worker(section, teacher=True, reference=False), device)
    weights = sum(weight.nbytes for weight in worker.model.parameters())
    report.row(name, start_s=seconds, weights_MiB=weights / MEBI, **memory())
    data, answers = world.drawn(scale["vocabulary"], scale["lengths"]), []

    def off(cycle: int) -> None:
        with report.attempt(f"offload {cycle}"):
            seconds, _ = timed(worker.offload_after_refit, device)
            left = memory()["held_MiB"] - worker._baseline / MEBI
            report.row(f"{name}, cycle {cycle}", off_s=seconds, left_MiB=left)
            worker.assert_offloaded(limit_mebi=limit)
            report.check(f"offload {cycle}", left <= limit, f"{left:.1f} MiB left, limit {limit}")

    off(0)
    for cycle in (1, 2, 3):
        with report.attempt(f"cycle {cycle}"):
            seconds, _ = timed(worker.prepare_for_lp_inference, device)
            report.row(f"{name}, cycle {cycle}", on_s=seconds, GB_per_s=weights / 1e9 / seconds, **memory())
            for length in range(16, min(512, scale["micro"]), 16) if cycle < 3 else ():
                parts.scores(worker, world.drawn(scale["vocabulary"], (length, length)), section, request)
            memory()
            seconds, answer = timed(functools.partial(parts.scores, worker, data, section, request), device)
            answers.append(answer)
            report.row(f"{name}, cycle {cycle}", scoring_s=seconds, peak_MiB=memory()["peak_MiB"])
        off(cycle)
    same = len(answers) == 3 and all(same_bits(answers[0], answer, request.columns) for answer in answers[1:])
    report.check("the same bits in each cycle", same, f"{len(answers)} of 3 cycles")
    mask_BS, kept = world.scored_tokens(data), work / "teacher_scores.pt"
    if not fp8:
        torch.save({column: answers[-1][column] for column in request.columns}, kept)
        beside_float64(answers[-1], data, section["model_name"], request, device, report)
        return
    plain = torch.load(kept)
    for column in request.columns:
        change = (answers[-1][column].double() - plain[column].double())[mask_BS]
        figures = {"mean": float(change.mean()), "mean_size": float(change.abs().mean())}
        report.row(f"FP8 less bfloat16, {column}", **figures, p99=float(change.abs().quantile(0.99)))
    size = float((answers[-1]["logp"] - plain["logp"])[mask_BS].abs().mean())
    if device == "cuda":
        seen = f"mean size {size:.3g} nats, bound {FP8_NATS}"
        report.check("FP8 changes scores, and little", 0 < size < FP8_NATS, seen, guessed=True)


# -- a step with two worker processes ---------------------------------------------------------------------------------


def serve(pipe: Any, work: Path, device: str, role: str) -> None:
    """A worker's process: a call comes by name, its answer goes back with this process's memory."""
    if device == "cpu":
        stand_ins.megatron()
    from nemo_uecr.nemo import upstream

    run, batch = configured(work, device), upstream.native("BatchedDataDict")
    sections = {"student": (run.student, run.student_request), "teacher": (run.teacher, run.teacher_request)}
    section, request = sections[role]
    worker = parts.make_worker(section, teacher=role == "teacher", reference=False)
    loss = run.loss()
    calls: dict[str, Callable[..., Any]] = {
        "score": lambda data: parts.scores(worker, batch(data), section, request),
        "update": lambda data: update(worker, batch(data), section, loss),
        "export": lambda: sum(tensor.nbytes for _, tensor in worker._iter_params_with_optional_kv_scales()),
    }
    name, given = "offload_after_refit", dict[str, Any]()
    with contextlib.suppress(EOFError):  # the driver has ended
        while True:
            memory()
            try:
                found = calls[name](**given) if name in calls else getattr(worker, name)(**given)
                answer = found if name in calls else None
            except Exception as error:  # noqa: BLE001 - the driver's finding
                traceback.print_exc()
                answer = error
            wait(device)
            pipe.send((answer, memory()))
            name, given = pipe.recv()


def step(work: Path, device: str, report: Report) -> None:
    """NeMo-RL's order of a step at the shipped micro-batch, student and teacher in processes of their own."""
    import multiprocessing

    import torch

    context, pipes = multiprocessing.get_context("spawn"), dict[str, Any]()
    run, data = configured(work, device), longest_rows(device)

    def answer_of(role: str, name: str, started: float) -> Any:
        answer, seen = pipes[role].recv()
        report.row(f"{role} {name}", seconds=time.perf_counter() - started, **seen, used_MiB=used(device))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call(role: str, name: str, **given: Any) -> Any:
        started = time.perf_counter()
        pipes[role].send((name, given))
        return answer_of(role, name, started)

    try:
        for role in ("teacher", "student"):
            started = time.perf_counter()
            pipes[role], theirs = context.Pipe()
            context.Process(target=serve, args=(theirs, work, device, role)).start()
            theirs.close()
            answer_of(role, "start and offload", started)
        for role in ("teacher", "student"):
            with report.attempt(f"room for vLLM beside the sleeping {role}"):
                call(role, "assert_room", share=run.generation_share, waking=True)
                seen = f"{run.generation_share:g} of the GPU"
                report.check(f"room for vLLM beside the sleeping {role}", True, seen)
        call("teacher", "prepare_for_lp_inference")
        wanted = call("teacher", "score", data=dict(data))
        call("teacher", "offload_after_refit")
        call("teacher", "assert_offloaded", limit_mebi=run.offload_limit_mebi)
        call("student", "prepare_for_lp_inference")
        had = call("student", "score", data=dict(data))
        gap_BS = torch.where(world.scored_tokens(data), wanted["logp"] - had["logp"], 0.0).clamp(-5, 5)
        call("student", "prepare_for_training")
        found = call("student", "update", data=dict(world.training_batch(data, had["rollout_logp"], gap_BS)))
        mean = found["off_1_mean"]
        seen = f"mean |r - 1| {mean:.3g}, bound {run.first_ratio:g}"
        report.check("the first ratio is 1 at the shipped micro-batch", mean <= run.first_ratio, seen)
        call("student", "offload_before_refit")
        call("student", "export")
        call("student", "offload_after_refit")
        beside_plan(work, run, report, device)
    finally:
        for pipe in pipes.values():  # ends the workers
            pipe.close()


def longest_rows(device: str) -> Any:
    """One row that fills the shipped micro-batch, and three shorter ones."""
    longest = SCALE[device]["longest"]
    return world.drawn(SCALE[device]["vocabulary"], (longest, longest // 2, longest // 2, longest // 3))


def used(device: str) -> float:
    """MiB of the GPU that all processes hold."""
    import torch

    if device != "cuda":
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / MEBI


def beside_plan(work: Path, run: Run, report: Report, device: str) -> None:
    """What torch held at most in a phase, beside `plan`, without what no torch of that process holds."""
    from nemo_uecr.cli.main import entry_point

    file = work / "parts" / "plan.json"
    if code := entry_point(["plan", str(CONFIG), *run.overrides, "--device", "h100", "--json", str(file)]):
        report.check("plan", False, f"exit code {code}")
        return
    rows = {"score teacher": "teacher score", "score student": "student score", "train": "student update"}
    phases = {phase["name"]: phase["device"] for phase in json.loads(file.read_text())["phases"]}
    for phase, row in rows.items():
        planned = sum(i["size"] for i in phases[phase] if i["name"] not in ("processes", "teacher asleep")) / GIB
        peak = report.rows[row]["peak MiB"] * MEBI / GIB
        report.row(f"plan, {phase}", planned_GiB=planned, peak_GiB=peak, share=peak / planned)
        if device == "cuda":
            least, most = PLANNED
            seen = f"{peak:.1f} of {planned:.1f} GiB, bounds {least} and {most}"
            report.check(f"plan of {phase}", least <= peak / planned <= most, seen, guessed=True)


# -- Ray and vLLM, as far as no GPU is needed -------------------------------------------------------------------------


def engine(work: Path, device: str, report: Report) -> None:
    """The carried Ray runs an actor that loads our worker's class; vLLM and its libraries load beside all others."""
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=True)
    try:
        with report.attempt("Ray runs an actor that loads our worker"):

            def load() -> str:
                from nemo_uecr.nemo import ray_worker

                return str(ray_worker.UecrMegatronPolicyWorker.__ray_metadata__.modified_class.__mro__[1:3])

            seconds, seen = timed(lambda: ray.get(ray.remote(load).remote()), device)
            report.check("Ray runs an actor that loads our worker", "WorkerMethods" in seen, seen)
            report.row("engine", worker_loaded_s=seconds)
    finally:
        ray.shutdown()
    if device != "cuda":
        ctypes.CDLL(os.environ["CUDA_DRIVER"], ctypes.RTLD_GLOBAL)  # a stand-in: see tools/quarter_rehearsal.sh
    for name in ("vllm.v1.engine.core", "vllm.v1.worker.gpu_worker", "vllm._C", "vllm._C_stable_libtorch"):
        with report.attempt(f"{name} loads"):
            seconds, _ = timed(functools.partial(importlib.import_module, name), device)
            report.check(f"{name} loads", True, f"{seconds:.1f} s")


PARTS: dict[str, Callable[[Path, str, Report], None]] = {
    "stack": stack, "models": models, "student": student, "teacher": teacher,
    "teacher-fp8": functools.partial(teacher, fp8=True), "step": step, "engine": engine,
}  # fmt: skip
#: Those that construct a worker in their own process.
WITH_WORKER = ("student", "teacher", "teacher-fp8")


def main() -> int:
    """Run one part in this process; exit code 1 where an assertion failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("work", type=Path)
    parser.add_argument("--device", choices=tuple(SCALE), required=True)
    args = parser.parse_args()
    work = args.work.resolve()
    report = Report(work / "parts" / f"{args.part}.json")
    if args.device == "cpu" and args.part in WITH_WORKER:
        stand_ins.megatron()
    PARTS[args.part](work, args.device, report)
    if report.failed:
        sys.stdout.write(f"{len(report.failed)} assertions failed: {', '.join(report.failed)}\n")
    return int(bool(report.failed))


if __name__ == "__main__":
    sys.exit(main())
