"""Checks of models before they are loaded: weight files, tokenizers, chat templates, end tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemo_uecr.config.schema import UrlTeacherConfig
from nemo_uecr.errors import DataError
from nemo_uecr.files import read_object
from nemo_uecr.generation import adapter, models
from nemo_uecr.generation.conversation import THOUGHTS_STAY, Bridge, Role
from nemo_uecr.generation.engines import (
    ModelTokens,
    check_model,
    check_model_place,
    check_trainable,
    check_weights,
    difference_of_ends,
    end_ids,
    missing_end_token,
)
from nemo_uecr.generation.prompts import QUESTION, ChatSettings, ClockError, check_template, check_tools, rendered
from nemo_uecr.nemo.model_folders import hidden_marks
from nemo_uecr.paths import SCHEME
from nemo_uecr.start.seen import Caution, Refusal, advised

log = logging.getLogger(__name__)

CODE = ("config.json", "tokenizer_config.json")  # files that can name code of a model folder's own
RELEASE = "take tokenizer_config.json or chat_template.jinja of the model's own release"


def whole_model(role: str, name: str) -> str | Caution:
    """A folder has a model's weights, as its configuration says, and no code to be fetched; or the cache has the name.

    The weights are compared by name and shape, as the load that follows would.
    """
    folder = Path(name).expanduser()
    if name.startswith(SCHEME):
        return f"{name} is made once, then cached"
    check_model(str(folder))
    if not folder.is_dir():
        here = models.cached(name) is not None
        message = f"{name} is {'' if here else 'not '}in the hub's cache of this machine"
        remedy = f"hf download {name} (compute nodes often have no network), or name a folder with its files"
        return advised(here, message, remedy)
    if (base := adapter.base_of(folder)) is not None:
        return whole_model(role, base)
    check_weights(str(folder))
    return f"{folder}, every weight is there and has its place"


def trainable(name: str) -> str:
    """A student is no adapter, and its weights are not quantised."""
    check_trainable(str(Path(name).expanduser()))
    return "no adapter, no quantised weights"


def model_without_code(role: str, name: str) -> str | Caution:
    """The same of a model inside NeMo-RL, which would run code of the folder's own."""
    seen, folder = whole_model(role, name), Path(name).expanduser()
    own = [file for file in CODE if (folder / file).is_file() and "auto_map" in read_object(folder / file)]
    if own:
        raise DataError(
            f"{folder / own[0]} names code of its own (auto_map), which NeMo-RL would run; choose a model without"
        )
    return seen


def tokenizer_of(name: str) -> Any:
    """A tokenizer from a folder or the hub's cache, without network access."""
    place = str(Path(name).expanduser())
    check_model_place(place)
    return models.load_tokenizer(place, local_files_only=True)


def same_tokenizer(student: Any, student_name: str, name: str, *, columns_of: str) -> str:
    """A teacher means the same text by every token id; ``columns_of`` names the model with its output columns."""
    teacher = tokenizer_of(name)
    places = (adapter.config_place(str(Path(model).expanduser())) for model in (student_name, columns_of))
    ours, theirs = (models.output_columns(place, local_files_only=True) for place in places)
    models.check_same_tokenizer(student, teacher, (ours, theirs))
    padded = "" if ours == theirs else f"; {abs(theirs - ours)} columns of padding apart"
    return f"the same {len(student)} ids as the student's{padded}"


def same_end_tokens(student: Any, student_name: str, name: str, *, settled: bool, remedy: str) -> str | Caution:
    """Student and teacher end a response with the same tokens, or the run states how to score that token."""
    places = (str(Path(place).expanduser()) for place in (student_name, name))
    unequal = difference_of_ends(student, *(end_ids(place, tokenizer_of(place), local=True) for place in places))
    return advised(not unequal or settled, unequal or "the student's", remedy)


def chat_template(tokenizer: Any, chat: ChatSettings) -> str | Caution:
    """The chat template keeps the user's text, reads what it is given, and has the requested thinking mode."""
    check_template(tokenizer, chat)
    if tokenizer.chat_template is None:  # the local back end takes plain prompts
        return Caution("the student's tokenizer has none", RELEASE)
    modes = [rendered(tokenizer, QUESTION, replace(chat, thinking=mode)) for mode in (False, True)]
    mode = "thinking" if chat.thinking else "non-thinking"
    if modes[0] == modes[1]:
        message = f"it has no {mode} mode: enable_thinking changes nothing"
        return Caution(message, f"fine for a model that never thinks; else {RELEASE}")
    return f"{mode} mode, a response begins after {modes[chat.thinking][-24:]!r}"


def chat_template_in_nemo_rl(tokenizer: Any, chat: ChatSettings, *, verified: bool) -> str | Caution:
    """The same where NeMo-RL applies it, which needs one and hides special tokens from a verifier."""
    if tokenizer.chat_template is None:
        raise Refusal("the student's tokenizer has none", RELEASE)
    try:
        seen = chat_template(tokenizer, chat)
    except ClockError:
        return Caution(
            "it writes today's date into the prompt, so that a run that goes on tomorrow has other prompts",
            "fix it in policy.tokenizer.chat_template_kwargs, as date_string for Llama, or in a template of your own",
        )
    return visible_marks(tokenizer, verified=verified) or seen


def visible_marks(tokenizer: Any, *, verified: bool) -> Caution | None:
    """NeMo-RL hides no mark of thoughts from the built-in verifier, where that is among the rewards."""
    message = hidden_marks(tokenizer) if verified else ""
    return Caution(message, "") if message else None


def ended_turn(tokenizer: Any, ends: frozenset[int], stop: Sequence[str]) -> str | Caution | None:
    """A response ends with the token that ends a turn in the chat template, where there is one."""
    if tokenizer.chat_template is None:
        return None
    fault = missing_end_token(tokenizer, ends, stop)
    return advised(not fault, fault or "a response ends as a turn of the chat template does", "")


def tools(tokenizer: Any, chat: ChatSettings) -> str | None:
    """The prompt tells the student of the environment's tools, where it has any."""
    return f"the template shows {check_tools(tokenizer, chat)}" if chat.tools else None


def turns(tokenizer: Any, ends: frozenset[int], chat: ChatSettings, role: Role) -> str | Caution:
    """The chat template can hold a conversation of several turns."""
    bridge = Bridge(ModelTokens(tokenizer, ends), chat, role)
    return Caution(THOUGHTS_STAY, "") if bridge.thoughts_stay else "the chat template holds several turns"


def ends_of(name: str, tokenizer: Any) -> frozenset[int]:
    """Ids of the tokens that end a response of a model on this machine."""
    return end_ids(str(Path(name).expanduser()), tokenizer, local=True)


def server(asked: UrlTeacherConfig, *, columns: int, ids: int, tolerance: float, longest: int) -> str:
    """A teacher's server passes the checks that a run makes at its start."""
    from nemo_uecr.hosted_teacher.client import TeacherServer

    client = TeacherServer(asked, columns, ids, tolerance, {})
    client.check(longest=longest)
    return f"{asked.url} serves {client.first['root']}, entropy: {asked.entropy}"
