"""The decode loop: Hugging Face's greedy tokens, the exact distribution, one stream a response, rows that leave."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from nemo_uecr.errors import DataError
from nemo_uecr.generation import decode as loop
from nemo_uecr.generation.decode import NOT_FINITE, choose, decode
from nemo_uecr.generation.engines import Decoding, ModelTokens, load_tokens
from tests.evaluation.tiny import save_tokenizer
from tests.gpu.pretend_cuda import captures, pretend, to_cuda

VOCABULARY, LENGTH = 64, 24
ENDS = frozenset(range(1, 5))
TOKENS, ENDLESS = ModelTokens(None, ENDS), ModelTokens(None, frozenset())
GREEDY = Decoding(0.0, 1.0, 0, LENGTH)
PLAIN = Decoding(1.0, 1.0, 0, LENGTH)
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 64, "max_position_embeddings": 256,
    "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None,
}  # fmt: skip
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256, "eos_token_id": 1}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"], "num_experts": 2, "num_experts_per_tok": 1,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "linear_num_key_heads": 2,
    "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
WINDOWS = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
CONFIGS: dict[str, Callable[[], Any]] = {
    "Qwen3": lambda: transformers.Qwen3Config(**SIZES),
    "Llama": lambda: transformers.LlamaConfig(**SIZES),
    "Gemma 3, sliding windows": lambda: transformers.Gemma3TextConfig(**SIZES, **WINDOWS),
    "GPT-2, learned positions": lambda: transformers.GPT2Config(**GPT2),
    "Bloom, no positions": lambda: transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=2),
    "Qwen3-Next, linear attention": lambda: transformers.Qwen3NextConfig(**SIZES, **LINEAR),
}


#: Those whose keys and values can stay in place; attention by SDPA, and by transformers' own product.
IN_PLACE: dict[str, Callable[[], Any]] = {
    "Qwen3": CONFIGS["Qwen3"],
    "Qwen3, eager attention": lambda: transformers.Qwen3Config(**SIZES, attn_implementation="eager"),
    "Llama": CONFIGS["Llama"],
    "GPT-2, learned positions": CONFIGS["GPT-2, learned positions"],
}


def built(config: Any) -> Any:
    torch.manual_seed(3)
    module = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.mul_(2.0)
    return module


@pytest.fixture(scope="module")
def qwen() -> Any:
    module = built(CONFIGS["Qwen3"]())
    loop.check_cache(module)  # its forwards are not counted
    return module


def prompts() -> list[tuple[int, ...]]:
    """Ragged, two of them twice."""
    generator = torch.Generator().manual_seed(0)
    different = [tuple(torch.randint(5, VOCABULARY, (n,), generator=generator).tolist()) for n in (3, 9, 5, 9, 1, 7)]
    return different + different[:2]


def by_hugging_face(module: Any) -> list[list[int]]:
    width = max(map(len, prompts()))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts()])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts()])
    config = transformers.GenerationConfig(
        max_new_tokens=LENGTH, do_sample=False, eos_token_id=sorted(ENDS), pad_token_id=0
    )
    rows = module.generate(ids, attention_mask=mask, generation_config=config)[:, width:].tolist()
    ends = [next((place for place, token in enumerate(row) if token in ENDS), LENGTH - 1) for row in rows]
    return [row[: end + 1] for row, end in zip(rows, ends, strict=True)]


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_greedy_is_hugging_faces_token_for_token(kind: str) -> None:
    module = built(CONFIGS[kind]())
    assert decode(module, TOKENS, prompts(), [0] * 8, GREEDY) == by_hugging_face(module)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: rows are looked at every three tokens, and room grows by eight."""
    monkeypatch.setitem(loop.CHECK_EVERY, "cpu", 3)
    monkeypatch.setattr(loop, "GROWTH", 8)


@pytest.mark.parametrize("mode", ["eager", "fixed"])
@pytest.mark.parametrize("kind", list(IN_PLACE))
def test_every_mode_gives_hugging_faces_tokens(kind: str, mode: Any, small_steps: None) -> None:
    module = built(IN_PLACE[kind]())
    assert decode(module, TOKENS, prompts(), [0] * 8, GREEDY, mode) == by_hugging_face(module)


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_only_caches_of_all_keys_and_values_can_stay_in_place(kind: str) -> None:
    module = built(CONFIGS[kind]())
    assert loop._Reader(module).can_be_fixed == (kind in IN_PLACE)


@pytest.mark.parametrize("decoding", [PLAIN, Decoding(0.7, 0.9, 12, LENGTH), Decoding(1.0, 0.9, 0, LENGTH)])
@pytest.mark.parametrize("mode", ["eager", "fixed"])
def test_looking_less_often_changes_no_draw(
    qwen: Any, mode: Any, decoding: Decoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = decode(qwen, TOKENS, prompts(), range(8), decoding)
    monkeypatch.setattr(loop, "GROWTH", 8)
    for look in (1, 3, 7):
        monkeypatch.setitem(loop.CHECK_EVERY, "cpu", look)
        assert decode(qwen, TOKENS, prompts(), range(8), decoding, mode) == expected


@pytest.mark.parametrize("mode", ["eager", "fixed"])
def test_a_stop_string_between_two_looks_cuts_where_it_ends(qwen: Any, mode: Any, tmp_path: Any) -> None:
    save_tokenizer(tmp_path)
    tokens = ModelTokens(load_tokens(str(tmp_path)).tokenizer, frozenset())
    decoding = Decoding(1.0, 1.0, 0, LENGTH, stop=("A", "K", "0", "T", "+", ":"))
    expected = decode(qwen, tokens, prompts(), range(8), decoding)
    assert len({len(response) for response in expected}) > 3
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(loop.CHECK_EVERY, "cpu", 5)
        assert decode(qwen, tokens, prompts(), range(8), decoding, mode) == expected


def test_ended_rows_leave_fixed_room_when_half_have_ended(qwen: Any, small_steps: None) -> None:
    sizes: list[int] = []
    hook = qwen.register_forward_hook(lambda *given: sizes.append(given[-1].logits.shape[0]))
    lengths = [len(response) for response in decode(qwen, TOKENS, prompts(), range(8), PLAIN, "fixed")]
    hook.remove()
    assert sizes[:2] == [6, 8]
    assert sizes == sorted(sizes[:1]) + sorted(sizes[1:], reverse=True)
    longest = max(lengths)
    assert sum(size < 8 for size in sizes) > longest / 3
    assert all(size < 2 * sum(length > 3 * (place // 3) for length in lengths) for place, size in enumerate(sizes[1:]))


def test_bfloat16_by_autocast_is_kept_in_place_as_attention_rounds_it(qwen: Any) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = decode(qwen, ENDLESS, prompts(), range(8), PLAIN, "eager")
        found = decode(qwen, ENDLESS, prompts(), range(8), PLAIN, "fixed")
    assert [response[:4] for response in found] == [response[:4] for response in expected]


@pytest.mark.parametrize(("mode", "padded"), [("fixed", True), ("fixed", False), ("eager", False)])
def test_a_gpu_is_waited_for_once_a_look(mode: Any, padded: bool) -> None:
    """A batch costs some waits of its own; each look is one. Nothing mixes devices."""
    given = prompts() if padded else [prompts()[1]] * 8
    seeds, again = range(8), inspect.unwrap(decode)  # inference mode does not dispatch to what pretends
    waits = []
    for decoding in (Decoding(1.0, 0.9, 12, 17), Decoding(1.0, 0.9, 12, 49)):
        module = built(CONFIGS["Qwen3"]())
        expected = decode(module, ENDLESS, given, seeds, decoding, mode)
        with pretend() as found, torch.no_grad():
            to_cuda(module)
            assert again(module, ENDLESS, given, seeds, decoding, mode) == expected
        waits.append(sum(found.values()))
    assert waits[0] <= 10
    assert waits[1] - waits[0] == 2  # for 32 tokens


@pytest.mark.parametrize("kind", list(IN_PLACE))
def test_a_captured_step_replays_as_it_runs(kind: str, small_steps: None) -> None:
    module, again = built(IN_PLACE[kind]()), inspect.unwrap(decode)
    for decoding in (GREEDY, Decoding(0.7, 0.9, 12, LENGTH)):
        expected = decode(module, TOKENS, prompts(), range(8), decoding)
        with captures(), torch.no_grad():
            assert again(module, TOKENS, prompts(), range(8), decoding, "graph") == expected
    assert loop._CAPTURES[module]


def test_one_token_for_each_response_needs_no_graph() -> None:
    module, again, decoding = built(CONFIGS["Qwen3"]()), inspect.unwrap(decode), Decoding(0.0, 1.0, 0, 1)
    with captures(), torch.no_grad():
        drawn = again(module, TOKENS, prompts(), range(8), decoding, "graph")
    assert [len(each) for each in drawn] == [1] * 8
    assert module not in loop._CAPTURES


def test_a_model_that_cannot_be_captured_is_sampled_without_a_graph_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module, again = built(CONFIGS["Qwen3"]()), inspect.unwrap(decode)
    expected = decode(module, TOKENS, prompts(), range(8), PLAIN)
    module.register_forward_hook(lambda *given: given[-1].logits.max().item() and None)
    with captures(), torch.no_grad():
        assert again(module, TOKENS, prompts(), range(8), PLAIN, "graph") == expected
    assert loop._CAPTURES[module] is False
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "'qwen3'" in caplog.text


def test_the_cache_goes_under_either_name(qwen: Any) -> None:
    """`cache` since transformers 5.24, `past_key_values` before."""
    older = "past_key_values" in inspect.signature(qwen.forward).parameters

    class OtherName(torch.nn.Module):
        device, config = qwen.device, qwen.config

        def forward(
            self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, cache: Any, use_cache: bool
        ) -> Any:
            key = "past_key_values" if older else "cache"
            return qwen(input_ids, attention_mask, position_ids, use_cache=use_cache, **{key: cache})

    assert decode(OtherName(), TOKENS, prompts(), range(8), PLAIN) == decode(qwen, TOKENS, prompts(), range(8), PLAIN)


SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 0, "eos_token_id": 1}
GRIFFIN = {"num_attention_heads": 2, "intermediate_size": 96, "lru_width": 32, "attention_window_size": 64}
MIXED = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64}
MINIMAX = {"head_dim": 16, "num_local_experts": 2, "layer_types": ["linear_attention", "full_attention"]}


@pytest.mark.parametrize(
    "config",
    [
        transformers.MambaConfig(**SMALL, state_size=8),  # takes a state, no cache
        transformers.RecurrentGemmaConfig(**SMALL | GRIFFIN | {"num_hidden_layers": 3}),  # keeps a state in its layers
        transformers.MiniMaxConfig(**SMALL, **MIXED, **MINIMAX),  # has a cache class of its own
        transformers.CpmAntConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2),  # adds to the prompt
    ],
    ids=lambda config: config.model_type,
)
def test_a_model_that_keeps_what_it_read_outside_of_the_cache_is_refused(config: Any) -> None:
    module = built(config)
    with pytest.raises(DataError, match=f"'{config.model_type}'"):
        decode(module, TOKENS, prompts(), [0] * 8, GREEDY)


def test_ended_rows_leave_and_equal_prompts_are_read_once(qwen: Any) -> None:
    sizes: list[int] = []
    hook = qwen.register_forward_hook(lambda *given: sizes.append(given[-1].logits.shape[0]))
    responses = decode(qwen, TOKENS, prompts(), range(8), PLAIN)
    hook.remove()
    lengths = [len(response) for response in responses]
    assert len(set(lengths)) > 3
    assert sizes == [6, *(sum(length > place for length in lengths) for place in range(1, max(lengths)))]


def test_a_response_is_a_function_of_its_prompt_and_seed(qwen: Any) -> None:
    together = decode(qwen, TOKENS, prompts(), range(8), PLAIN)
    torch.manual_seed(99)  # the global stream plays no part
    assert [decode(qwen, TOKENS, [prompt], [seed], PLAIN)[0] for seed, prompt in enumerate(prompts())] == together
    assert decode(qwen, TOKENS, prompts(), range(1, 9), PLAIN) != together


def warped(logits_V: Tensor, decoding: Decoding) -> Tensor:
    """The distribution that Hugging Face samples from, by its own warpers in its order."""
    scores, none = logits_V.double().unsqueeze(0), torch.zeros(1, 0, dtype=torch.long)
    for warper in (
        transformers.TemperatureLogitsWarper(decoding.temperature),
        *([transformers.TopKLogitsWarper(decoding.top_k)] if decoding.top_k else []),
        *([transformers.TopPLogitsWarper(decoding.top_p)] if decoding.top_p < 1 else []),
    ):
        scores = warper(none, scores)
    return scores.softmax(dim=-1)[0]


@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5, 1e-6])
@pytest.mark.parametrize("top_k", [0, 1, 7, 1000])
def test_choice_has_the_exact_distribution(top_p: float, top_k: int) -> None:
    """u = (i + 1/2) / N: the share of a token is its probability to 1 / N."""
    count, decoding = 20_000, Decoding(0.7, top_p, top_k, 1)
    logits_V = 2 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(5))
    uniform_B = ((torch.arange(count) + 0.5) / count).float()
    chosen_B = choose(logits_V.expand(count, -1), decoding, uniform_B)
    share_V = torch.bincount(chosen_B, minlength=VOCABULARY).double() / count
    assert float((share_V - warped(logits_V, decoding)).abs().max()) <= 1.01 / count


def test_drawn_tokens_follow_the_distribution(qwen: Any) -> None:
    """T = 0.8, top-p 0.9, top-k 12 through the loop: chi-square of 4,000 second tokens, far above its 0.1 % point."""
    decoding, prompt = Decoding(0.8, 0.9, 12, 2), prompts()[1]
    first = decode(qwen, ENDLESS, [prompt], [0], Decoding(0.0, 1.0, 0, 1))[0]
    drawn = decode(qwen, ENDLESS, [(*prompt, *first)] * 4000, range(4000), decoding)
    for place, context in enumerate(((*prompt, *first), (*prompt, *first, drawn[0][0]))):
        here = [row[place] for row in drawn if row[:place] == list(drawn[0][:place])]
        expected_V = warped(qwen(torch.tensor([context])).logits[0, -1].detach(), decoding) * len(here)
        found = Counter(here)
        kept = [token for token in range(VOCABULARY) if expected_V[token] > 0]
        assert set(found) <= set(kept)
        statistic = sum((found[token] - float(expected_V[token])) ** 2 / float(expected_V[token]) for token in kept)
        assert statistic < 33  # the 99.95 % point at 11 degrees of freedom is 33


@pytest.mark.parametrize(("mode", "look"), [("eager", 1), ("eager", 3), ("fixed", 3)])
def test_logits_that_are_not_finite_end_their_row_alone(
    qwen: Any, mode: Any, look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(loop.CHECK_EVERY, "cpu", look)
    clean = decode(qwen, TOKENS, prompts(), range(8), PLAIN)

    steps: list[int] = []

    def damage(_: Any, __: Any, output: Any) -> Any:
        steps.append(1)
        if len(steps) == 2:  # the second token of the batch, before any row left
            output.logits[2, :, 7] = float("nan")
        return output

    assert min(map(len, clean)) > 1
    hook = qwen.register_forward_hook(damage)
    found = decode(qwen, TOKENS, prompts(), range(8), PLAIN, mode)
    hook.remove()
    assert found == [*clean[:2], [clean[2][0], NOT_FINITE], *clean[3:]]
    for bad in (float("nan"), float("inf")):
        logits = torch.zeros(2, VOCABULARY)
        logits[1, 9] = bad
        for decoding in (GREEDY, PLAIN, Decoding(1.0, 0.9, 3, 1)):
            assert (choose(logits, decoding, torch.rand(2)) == NOT_FINITE).tolist() == [False, True]
    assert int(choose(torch.full((1, VOCABULARY), -torch.inf), PLAIN, torch.rand(1))) == NOT_FINITE
