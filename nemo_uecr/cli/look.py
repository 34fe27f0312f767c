"""Commands before a run: `plan`, `doctor` and `config`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from nemo_uecr.cli.common import AboveZero, AtLeastOne, ConfigFile, Json, Override, say, within, write_json
from nemo_uecr.errors import ConfigError
from nemo_uecr.ranges import Range

if TYPE_CHECKING:
    from nemo_uecr.config.schema import Config
    from nemo_uecr.nemo.layout import Job
    from nemo_uecr.plan.contents import Device, Lengths
    from nemo_uecr.plan.shapes import ModelShape
    from nemo_uecr.start.facts import Run

#: Standard deviation of ln(response length), and a port that an ordinary user may open.
Spread = Annotated[float, within(Range(0, 3))]
Port = Annotated[int, within(Range(1024, 65534))]


def plan(
    config: ConfigFile,
    /,
    *overrides: Override,
    device: Literal["h200", "h100", "a100", "l40s", "rtx4090", "cpu"] | None = None,
    memory: AboveZero | None = None,
    response_tokens: AtLeastOne | None = None,
    prompt_tokens: AtLeastOne | None = None,
    length_sigma: Spread = 0.9,
    fit: AboveZero | None = None,
    json: Json = None,
) -> None:
    """Predict layout, memory and time of a run from its configuration, without a GPU.

    A model's sizes come from its config.json, in a folder or the hub's cache, or from a table of Qwen3 models. For a
    teacher that does not exist yet, name its base model. If the run does not fit, the exit code is 2 and changes that
    would fit are printed.

        nemo-uecr plan examples/configs/uecr_qwen3_4b.yaml uecr.teacher.model_name=Qwen/Qwen3-8B uecr.data.subset=null
        nemo-uecr plan CONFIG cluster.num_nodes=2 --response-tokens 5000 --json plan.json

    Args:
        device: Device of the run (default: h200; for a local run on a CPU: cpu).
        memory: Memory of each device in GiB (default: from a table).
        response_tokens: Mean response length, for the times (default: the longest allowed).
        prompt_tokens: Mean prompt length (default: the longest allowed).
        length_sigma: Standard deviation of ln(response length) before truncation; 0: all equal the mean.
        fit: For a local run: find keys with which it fits one GPU of this many GB, first those that change no number.
            For a recipe with asynchronous rollouts: try every split of such GPUs between rollout and training.
    """
    from nemo_uecr.config.schema import Config
    from nemo_uecr.plan.advice import synchronous_text, what_fits
    from nemo_uecr.plan.contents import ASSUMED, CPU, GIB, GPUS, Lengths, as_json, plan_text
    from nemo_uecr.plan.local import local_plan
    from nemo_uecr.plan.nemo import nemo_plan

    run = read_run(config, overrides)
    if isinstance(run, Config):
        longest = {"prompt": run.data.max_prompt_tokens, "response": run.rollout.max_response_tokens}
    else:
        longest = {"prompt": run.longest_prompt, "response": run.longest_response}
    for name, mean in (("prompt", prompt_tokens), ("response", response_tokens)):
        if mean is not None and mean > longest[name]:
            raise ConfigError(f"--{name}-tokens: got a mean of {mean}, but no {name} may exceed {longest[name]} tokens")
    lengths = Lengths(prompt_tokens or longest["prompt"], response_tokens or longest["response"], length_sigma)
    if fit is not None:
        return _fit(config, overrides, run, fit, device, memory, lengths, json)
    alone = isinstance(run, Config)
    if not alone and device == "cpu":
        raise ConfigError("--device: got cpu, but NeMo-RL's workers need GPUs; expected h200, h100 or a100")
    assumed = CPU if isinstance(run, Config) and run.device != "cuda" else ASSUMED
    limits = {**GPUS, "cpu": CPU}[device] if device else assumed
    if memory is not None:
        limits = replace(limits, memory=int(memory * GIB))
    advice, beside = list[str](), ""
    if isinstance(run, Config):
        made = local_plan(run, limits, lengths, sizes=sizes)
    else:
        made = nemo_plan(run, limits, lengths)
        advice = what_fits(run, limits, lengths) if made.misfits else []
        beside = "" if made.overlap is None else synchronous_text(run, made.overlap, limits, lengths)
    say(plan_text(made, beside).rstrip("\n"))
    write_json(json, {"format": "nemo_uecr.plan/1", **as_json(made), "what_fits": advice})
    if made.faults:
        hint = f"; what fits: {', or '.join(advice)}" if advice else ""
        if not alone and made.misfits and not advice:
            hint = "; no single change that was tried is enough: use more GPUs or smaller models"
        raise ConfigError("; ".join(made.faults) + hint)


def read_run(config: str, overrides: Sequence[str]) -> Config | Job:
    """A configuration of the local back end, or the job of a recipe that is accepted."""
    from nemo_uecr.config.load import load_config
    from nemo_uecr.config.recipes import is_recipe, load_recipe
    from nemo_uecr.start.recipe_form import accepted

    if is_recipe(config):
        return accepted(load_recipe(config, overrides))
    return load_config(config, overrides).config


def _fit_split(config: str, run: Job, size: float, gpu: Device, lengths: Lengths, json: Path | None) -> None:
    """Print every split of a recipe's GPUs between rollout and training, and the fastest that fits."""
    from nemo_uecr.nemo.recipe import lag_of
    from nemo_uecr.plan.advice import fastest, splits, splits_text
    from nemo_uecr.plan.contents import as_json, typed

    if not lag_of(run.values):
        raise ConfigError(
            f"--fit: {config} is a recipe of NeMo-RL's in which rollout and training take turns; "
            f"plan --memory {size:g} lists what fits"
        )
    tried = splits(run, gpu, lengths)
    say(splits_text(tried, gpu))
    best = fastest(tried)
    if best is None or best.plan is None:
        raise ConfigError("no split of the GPUs fits; use more of them, or smaller models")
    write_json(json, {"format": "nemo_uecr.fit/1", "keys": typed(best.keys), "plan": as_json(best.plan)})


def _fit(
    config: str,
    overrides: Sequence[str],
    run: Config | Job,
    size: float,
    device: str | None,
    memory: float | None,
    lengths: Lengths,
    json: Path | None,
) -> None:
    """Print keys with which a local run fits a GPU of ``size`` GB; its rates are those of ``device`` or the nearest."""
    from nemo_uecr.config.load import load_config
    from nemo_uecr.config.schema import Config
    from nemo_uecr.plan.contents import GIB, GPUS, as_json, typed
    from nemo_uecr.plan.faults import refuse
    from nemo_uecr.plan.fit import attempts_to_fit, fit_text, gpu_of_size

    if device == "cpu" or memory is not None or (isinstance(run, Config) and run.device == "cpu"):
        raise ConfigError(f"--fit {size:g} plans for a GPU: leave out --memory and --device cpu, set device=cuda")
    gpu = gpu_of_size(size, GPUS[device] if device else None)
    if not isinstance(run, Config):
        return _fit_split(config, run, size, gpu, lengths, json)
    tried = attempts_to_fit(lambda more: load_config(config, [*overrides, *more]).config, gpu, lengths, sizes=sizes)
    refuse(tried[0].plan.mismatches)  # which no change cures
    say(fit_text(tried, ["nemo-uecr", "train", config, *overrides]))
    best = min(tried, key=lambda attempt: (attempt.plan.misfits, attempt.plan.fullest.size)).plan
    write_json(json, {"format": "nemo_uecr.fit/1", "keys": typed(tried[-1].keys), "plan": as_json(best)})
    if best.misfits:
        largest = max(best.fullest.device, key=lambda item: item.size)
        raise ConfigError(
            f"nothing that was tried fits {size:g} GB: {best.fullest.name} needs at least "
            f"{best.fullest.size / GIB:.1f} of {gpu.offered / GIB:.1f} GiB, {largest.size / GIB:.1f} of them for "
            f"{largest.name}; take smaller models, or lower rollout.max_response_tokens"
        )


def sizes(name: str, role: str) -> ModelShape:
    """Sizes of a model; the demo's come from its recipe, without training it."""
    from nemo_uecr.demo.cache import RECIPE
    from nemo_uecr.demo.task import MODEL_MAX_LENGTH, build_tokenizer
    from nemo_uecr.plan.shapes import KNOWN, shape_of

    demo = {"demo:student": RECIPE.student, "demo:teacher": RECIPE.teacher}.get(name)
    if demo is None:
        return shape_of(name, role=role)
    return replace(
        KNOWN["Qwen/Qwen3-0.6B"],  # of the same kind
        vocabulary=len(build_tokenizer()), hidden=demo.hidden_size, layers=demo.layers, heads=demo.heads,
        kv_heads=demo.key_value_heads, head_dim=demo.head_dim, feed_forward=demo.intermediate_size,
        positions=MODEL_MAX_LENGTH,
    )  # fmt: skip


def doctor(
    config: ConfigFile | None = None,
    /,
    *overrides: Override,
    ray_port: Port = 9900,
    json: Json = None,
) -> int:
    r"""Check this machine and, with CONFIG, everything that the configuration needs: one line per check.

    Run it where the training will run: on a compute node, inside the container. It downloads nothing. The exit code is
    1 if a check fails, 2 if the configuration is invalid.

        nemo-uecr doctor
        nemo-uecr doctor examples/configs/uecr_qwen3_4b.yaml uecr.teacher.model_name=/models/teacher \
            uecr.data.subset=null

    Args:
        ray_port: Port of the Ray head, as in slurm/*.sbatch.
    """
    from nemo_uecr.start.checks import DOCTOR, asked, examine
    from nemo_uecr.start.facts import NoRun

    machine = NoRun(ray_port=ray_port, nodes=1, gpus=0)
    subject = machine if config is None else run_facts(read_run(config, overrides), ray_port)
    findings = []
    for finding in examine(subject, asked(subject, DOCTOR)):
        findings.append(finding)
        say(f"{finding.status:<4}  {finding.check:<26}  {' '.join(finding.message.split())}")
        if finding.remedy:
            say(f"{'':<32}  -> {finding.remedy}")
    counts = {status: sum(one.status == status for one in findings) for status in ("ok", "warn", "fail")}
    say(", ".join(f"{count} {status}" for status, count in counts.items()))
    write_json(json, {"format": "nemo_uecr.doctor/1", "counts": counts, "findings": [asdict(one) for one in findings]})
    return 1 if counts["fail"] else 0


def config(action: Literal["show", "check"], config: ConfigFile, /, *overrides: Override) -> None:
    """Show or check a configuration of the local back end, or a recipe of NeMo-RL's.

    Args:
        action: `show` prints the complete configuration as YAML with the origin of every value; `check` validates it,
            reads the problems, and prints the objective as one equation. Of a recipe it prints what is adjusted and
            why, what is to be known, and how the models lie on the GPUs; a recipe that cannot be trained is refused
            with each key, its value and the reason.
    """
    from nemo_uecr.config.recipes import is_recipe

    if is_recipe(config):
        return _recipe(action, config, overrides)
    from nemo_uecr.config.load import annotated_yaml, load_config
    from nemo_uecr.config.methods import objective, unused_line
    from nemo_uecr.start.checks import CONFIG, require

    loaded = load_config(config, overrides)
    notes = [f"objective: {objective(loaded.config)}", *filter(None, [unused_line(loaded.config, loaded.origins)])]
    if action == "show":
        say(annotated_yaml(loaded.config.model_dump(mode="json"), loaded.origins).rstrip("\n"))
        say(*(f"# {note}" for note in notes))
    else:
        seen = require(run_facts(loaded.config, 0), CONFIG)
        notes += [f"{check}: {line}" for check, line in seen.items() if isinstance(line, str)]
        say(*notes, f"ok: {config}: keys, values and problems")


def _recipe(action: Literal["show", "check"], config: str, overrides: Sequence[str]) -> None:
    from nemo_uecr.config.load import annotated_yaml
    from nemo_uecr.config.recipes import load_recipe
    from nemo_uecr.nemo.recipe import section_of
    from nemo_uecr.nemo.rules import faults_of
    from nemo_uecr.start.checks import CONFIG, require
    from nemo_uecr.start.recipe_form import accepted, described, native_schema, of_recipe

    recipe = load_recipe(config, overrides)
    faults = faults_of(recipe.values, section_of(recipe.values, recipe.origins, recipe.path))
    if action == "show":
        say(annotated_yaml(recipe.values, recipe.origins).rstrip("\n"))
        notes = [f"refused: {fault}" for fault in faults] if faults else described(accepted(recipe))
        return say(*(f"# {note}" for note in notes))
    if faults:
        say(*(f"refused: {fault}" for fault in faults))
        keys = list(dict.fromkeys(fault.partition(":")[0] for fault in faults))
        raise ConfigError(f"{config} cannot be trained as it is: {', '.join(keys)}")
    job = accepted(recipe)
    seen = require(of_recipe(job, ray_port=0, resources=None), CONFIG)
    say(*described(job), *(f"doubtful: {doubt}" for doubt in recipe.doubts))
    say(*(f"{check}: {line}" for check, line in seen.items() if isinstance(line, str)))
    say("not checked here: that the models share a tokenizer (nemo-uecr doctor does), and the recipe's own data")
    if find_spec("nemo_rl") is None or find_spec("ray") is None:
        say("NeMo-RL and Ray cannot be imported here: its own schema was not checked")
    else:
        from nemo_uecr.nemo import upstream

        say(native_schema(recipe, upstream.check()))
    say(f"ok: {config}: accepted")


def run_facts(run: Config | Job, ray_port: int) -> Run:
    """What the checks read of a run of either back end."""
    from nemo_uecr.config.schema import Config
    from nemo_uecr.start.facts import of_local
    from nemo_uecr.start.recipe_form import of_recipe

    if isinstance(run, Config):
        return of_local(run, sizes, ray_port=ray_port, resources=None)
    return of_recipe(run, ray_port=ray_port, resources=None)
