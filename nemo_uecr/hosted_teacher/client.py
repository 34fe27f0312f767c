"""A teacher behind a URL: a server scores the student's tokens, and every answer is checked.

vLLM does so by its completions route; SGLang by its native one, without the entropy, and not yet run against a real
server.

What the server echoes proves tokens and shift. A probe of fixed tokens shows at every step, and after a resume, that
the model behind the URL is still the one that the run began with. For one token of each response a second request for
the K best tokens bounds the entropy, whatever gave it:

    H_K + m ln(1 / p_K) <= H <= H_K + m ln((V - K) / m),   H_K = -sum_k p_k ln p_k,   m = 1 - sum_k p_k

Shape legend: t = tokens of one response, N = tokens of one sequence after its first, V = columns that count.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from torch import Tensor

from nemo_uecr.config.schema import UrlTeacherConfig
from nemo_uecr.errors import ScoreError, first_line

log = logging.getLogger(__name__)

Ids = tuple[int, ...]
#: Seconds before each further attempt.
RETRY_S = (1.0, 4.0, 16.0)
TIMEOUT_S = 300.0
#: Requests under way at once; the server batches them.
AT_ONCE = 16
PROBE_TOKENS = 64
#: K; what vLLM's --max-logprobs allows by default.
BEST = 20
#: The bracketed token is one of a response's first, so that its request stays short.
BRACKET_WITHIN = 16
#: Largest share of a step's bracketed tokens that may be off by more than `APART` tolerances: one replica of several
#: with another model is off on some responses alone.
FEW, APART = 0.05, 4
#: Rounding of a sum of K probabilities.
SUM_SLACK = 1e-3
#: What vLLM writes for -infinity; the plugin's own is lower.
IMPOSSIBLE = -9999.0


class TeacherServerError(ScoreError):
    """A server cannot be reached, or its scores cannot be trusted."""


class RefusedError(TeacherServerError):
    """The server cannot score these tokens, however often it is asked."""


@dataclass
class TeacherServer:
    """A server that scores tokens over HTTP."""

    asked: UrlTeacherConfig  # its section of the configuration
    columns: int  # V, the student's output columns; the server must not count more
    tokens: int  # ids of the tokenizer
    tolerance: float  # largest mean change of the probe's scores and of a step's bracketed tokens, nats
    first: dict[str, Any]  # what `look` returned when the run began; empty until `check` of a new run

    def provenance(self) -> dict[str, str]:
        """URL and reported model; its weights are verified only by the probes."""
        return {
            "url": self.asked.url,
            "model": self.asked.model_name,
            "root": self.first["root"],
            "spot_check": "bracket",
        }

    def check(self, *, longest: int) -> None:
        """Refuse a server that is not there, counts other columns, is not the run's own, or reads too few tokens.

        ``longest`` is the length of the longest prompt and response.
        """
        needed = max(PROBE_TOKENS, longest) + 1
        if (context := self._model()["max_model_len"]) < needed:
            raise self._error(
                f"reads {context} tokens (--max-model-len), expected {needed} or more: the longest prompt and response "
                "and one generated token"
            )
        first = self.look()
        with suppress(RefusedError):  # the student's first missing id is out of vocabulary, or without probability
            self._scores([0, self.columns])
            raise self._error(
                f"counts more than the student's {self.columns} output columns; serve it by vLLM with the plugin and "
                f"UECR_TEACHER_TOKENS={self.columns}"
            )
        self.first = self.first or first

    def look(self) -> dict[str, Any]:
        """What the server reports of itself, and its scores of the probe; refused unless they are the first ones."""
        model = self._model()
        # From all over the vocabulary; the last id is the tokenizer's last.
        probe = [(7919 * place - 1) % self.tokens for place in reversed(range(PROBE_TOKENS))]
        scores_2N = self._scores(probe)
        if self.first:
            change = float((scores_2N - torch.tensor(self.first["probe"])).nan_to_num(0).abs().mean(1).max())
            if change > self.tolerance:
                raise self._error(
                    f"is not what the run began with: its scores of {PROBE_TOKENS} fixed tokens moved by {change:.3g} "
                    f"nats, tolerances.teacher_probe is {self.tolerance:g}. Serve {self.first['root']} again, then use "
                    "--resume"
                )
        self._check_brackets([self._bracket(probe, scores_2N[:, -1])])
        return {"root": model.get("root"), "probe": scores_2N.tolist()}

    def _model(self) -> dict[str, Any]:
        models: dict[str, dict[str, Any]] = {model["id"]: model for model in self._ask("v1/models", None)["data"]}
        if self.asked.model_name not in models:
            raise self._error(f"is not served there; expected model_name to be one of: {', '.join(models)}")
        return models[self.asked.model_name]

    def score(self, texts: Mapping[int, tuple[Ids, Ids]]) -> dict[int, Tensor]:
        """[2, t] log-probability at temperature 1 and entropy of each response token; NaN is an entropy without plugin.

        ``texts`` are prompt and response by row of the batch.
        """
        with ThreadPoolExecutor(AT_ONCE) as pool:
            scored = list(pool.map(lambda row: self._score(row, *texts[row]), texts))
        self.look()  # last: a server exchanged while it scored is caught before the update
        self._check_brackets([bracket for _, bracket in scored])
        return {row: scores_2t for row, (scores_2t, _) in zip(texts, scored, strict=True)}

    def _score(self, row: int, prompt: Ids, response: Ids) -> tuple[Tensor, tuple[float, float]]:
        scores_2t = self._scores(prompt + response)[:, -len(response) :]
        token = row % min(len(response), BRACKET_WITHIN)
        return scores_2t, self._bracket(prompt + response[: token + 1], scores_2t[:, token])

    def _scores(self, ids: Sequence[int]) -> Tensor:
        """[2, N] log-probability and entropy of each token after the first; the entropy NaN without the plugin."""
        entries = [entry[str(token)] for token, entry in zip(ids[1:], self._entries(ids, best=0), strict=True)]
        logp_N = torch.tensor([float(entry["logprob"]) for entry in entries])
        if not logp_N.min() > IMPOSSIBLE:  # also NaN
            text = f"gives token id {ids[1 + int(logp_N.argmin())]} no probability; expected the student's vocabulary"
            raise self._error(text, RefusedError)
        entropy_N = torch.full_like(logp_N, torch.nan)
        if self.asked.entropy == "plugin":
            entropy_N = torch.tensor([entry["rank"] for entry in entries], dtype=torch.int32).view(torch.float32)
            if not entropy_N.max() >= torch.finfo(torch.float32).tiny:  # NaN, or ranks read as float32
                raise self._error(
                    "gives no entropy; install nemo-uecr beside vLLM and serve with UECR_TEACHER_TOKENS=all, or set "
                    "teacher.entropy=none with a method that reads no entropy"
                )
        return torch.stack((logp_N, entropy_N))

    def _bracket(self, ids: Sequence[int], scores_2: Tensor) -> tuple[float, float]:
        """How far the last token's scores are from those of a request for its K best tokens, nats."""
        last = self._entries(ids, best=BEST)[-1]
        best = sorted((float(entry["logprob"]) for entry in last.values()), reverse=True)[:BEST]
        if (total := math.fsum(map(math.exp, best))) > 1 + SUM_SLACK:
            raise self._error(
                f"gives probabilities that add up to {total:.4g}; serve with --logprobs-mode raw_logprobs"
            )
        low, high = entropy_bracket(best, self.columns)
        logp, entropy = scores_2.tolist()
        return abs(logp - float(last[str(ids[-1])]["logprob"])), max(0.0, low - entropy, entropy - high)

    def _check_brackets(self, brackets: Sequence[tuple[float, float]]) -> None:
        for what, values in zip(("log-probability", "entropy"), zip(*brackets, strict=True), strict=True):
            mean, far = sum(values) / len(values), sum(value > APART * self.tolerance for value in values)
            if mean > self.tolerance or far > max(1, FEW * len(values)):
                raise self._error(
                    f"contradicts itself: {what} and {BEST} best tokens of one place differ by {mean:.3g} nats on "
                    f"average, and by over {APART * self.tolerance:g} in {far} of {len(values)} responses; "
                    f"tolerances.teacher_probe is {self.tolerance:g}. Is more than one model behind the URL?"
                )

    def _entries(self, ids: Sequence[int], *, best: int) -> list[dict[str, Any]]:
        """What the server reports of each token after the first: log-probabilities (and vLLM's ranks) by id."""
        echo, entries = (self._vllm if self.asked.server == "vllm" else self._sglang)(list(ids), best)
        if echo != list(ids) or len(entries) != len(ids) - 1:
            raise self._error(
                f"scored {len(entries)} tokens, not the {len(ids) - 1} that it was sent; expected an answer of "
                f"{self.asked.server} (teacher.server)"
            )
        return entries

    def _vllm(self, ids: list[int], best: int) -> tuple[list[int], list[dict[str, Any]]]:
        """Ids and entries that vLLM's completions route gives back; the first token has none."""
        body = {"model": self.asked.model_name, "prompt": ids, "prompt_logprobs": best, "max_tokens": 1}
        choice = self._ask("v1/completions", body | {"return_token_ids": True})["choices"][0]
        return choice.get("prompt_token_ids"), (choice.get("prompt_logprobs") or [None])[1:]

    def _sglang(self, ids: list[int], best: int) -> tuple[list[int], list[dict[str, Any]]]:
        """The same of SGLang's native route; null is a log-probability that JSON cannot write."""
        body: dict[str, object] = {"input_ids": ids, "sampling_params": {"temperature": 1.0, "max_new_tokens": 0}}
        body |= {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": best}
        meta = self._ask("generate", body)["meta_info"]
        own, tops = meta["input_token_logprobs"], meta.get("input_top_logprobs") or [()] * len(ids)
        entries = [
            {str(token): {"logprob": math.nan if logp is None else logp, "rank": 0} for logp, token, _ in (*top, one)}
            for one, top in zip(own[1:], tops[1:], strict=True)
        ]
        return [token for _, token, _ in own], entries

    def _ask(self, route: str, body: Mapping[str, object] | None) -> Any:
        """Send a request, again after each wait in `RETRY_S`; an answer is never made up."""
        data = None if body is None else json.dumps(body).encode()
        place = f"{self.asked.url.removesuffix('/v1')}/{route}"
        request = Request(place, data, {"Content-Type": "application/json"})
        for wait in (*RETRY_S, None):
            try:
                with urlopen(request, timeout=TIMEOUT_S) as reply:
                    return json.loads(reply.read())
            except HTTPError as error:
                reason = f"HTTP {error.code}: {' '.join(error.read().decode(errors='replace').split()):.300}"
                if error.code < HTTPStatus.INTERNAL_SERVER_ERROR and error.code != HTTPStatus.TOO_MANY_REQUESTS:
                    raise self._error(f"refuses a request: {reason}", RefusedError) from error
            except (OSError, HTTPException, ValueError) as error:
                reason = first_line(error)
            if wait is not None:
                log.warning("the teacher at %s did not answer (%s); asking again in %g s", self.asked.url, reason, wait)
                time.sleep(wait)
        raise self._error(
            f"did not answer {len(RETRY_S) + 1} times: {reason}. Start it, then run again (--resume if it had begun)"
        )

    def _error(self, text: str, kind: type[TeacherServerError] = TeacherServerError) -> TeacherServerError:
        return kind(f"teacher {self.asked.model_name!r} at {self.asked.url} {text}")


def entropy_bracket(best_logp: Sequence[float], columns: int) -> tuple[float, float]:
    """Least and largest entropy, in nats, of V probabilities with these K largest logarithms."""
    known = -math.fsum(math.exp(logp) * logp for logp in best_logp)
    rest, tail = columns - len(best_logp), 1.0 - math.fsum(map(math.exp, best_logp))
    if rest <= 0 or tail <= 0:
        return known, known
    return known - tail * min(best_logp), known + tail * math.log(rest / tail)
