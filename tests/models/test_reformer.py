"""The Reformer against transformers' own, with the same weights and hashes; and what it keeps of the laws."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from regard.config import read_section
from regard.errors import ConfigError, RegardError
from regard.look.collect import observe
from regard.models import Sizes, reformer, with_preset
from regard.models._foreign import to_ours, to_theirs
from regard.ops.attention import observing
from regard.ops.call import Scattered
from regard.ops.hashing import hash_buckets, usual_buckets
from regard.train.observe import _following, _Recorder
from regard.types import Batch, Sequences

NEAR = {"rtol": 0.0, "atol": 1e-9}
EXACT = {"rtol": 0.0, "atol": 1e-10}
VOCABULARY = 29
SMALL: dict[str, Any] = {"model_type": "reformer", "is_decoder": True, "vocab_size": VOCABULARY, "hidden_size": 12}
SMALL |= {"num_attention_heads": 3, "attention_head_size": 5, "feed_forward_size": 17, "max_position_embeddings": 80}
SMALL |= {"axial_pos_shape": [8, 10], "axial_pos_embds_dim": [4, 8], "hash_seed": 3, "eos_token_id": None}
FORMS: dict[str, dict[str, Any]] = {
    "local and lsh": {**SMALL, "attn_layers": ["local", "lsh", "local", "lsh"], "num_buckets": 8}
    | {"lsh_attn_chunk_length": 4, "local_attn_chunk_length": 6},
    "two factored hashes": {**SMALL, "attn_layers": ["lsh", "lsh", "local"], "num_buckets": [2, 4], "num_hashes": 2}
    | {"lsh_attn_chunk_length": 6, "local_attn_chunk_length": 4, "layer_norm_eps": 1e-3, "hidden_act": "gelu"}
    | {"chunk_size_feed_forward": 1, "hash_seed": 0},
    "four hashes, buckets as they come": {**SMALL, "attn_layers": ["lsh", "lsh"], "num_hashes": 4, "hidden_size": 7}
    | {"lsh_attn_chunk_length": 4, "axial_pos_embds": False, "num_attention_heads": 1, "hidden_act": "silu"},
    "further back": {**SMALL, "attn_layers": ["local", "lsh"], "lsh_num_chunks_before": 2, "num_hashes": 2}
    | {"lsh_attn_chunk_length": 4, "local_attn_chunk_length": 4, "local_num_chunks_before": 0, "num_buckets": 6},
}
every_form = pytest.mark.parametrize("name", FORMS)
LENGTHS = (3, 5, 24, 31)  # within a chunk, beyond it, whole chunks and not


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


@pytest.fixture
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def their_model(form: dict[str, Any]) -> Any:
    """One of theirs, with no number left that would hide what it does but the bias that it does not add."""
    model = transformers.ReformerModelWithLMHead(transformers.AutoConfig.for_model(**form)).eval()
    model = model.to(torch.get_default_dtype())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "lm_head.bias":
                parameter.add_(0.5 * torch.randn_like(parameter))
    return model


def ours_of(theirs: Any) -> reformer.Reformer:
    config, sizes = reformer.from_foreign(json.loads(theirs.config.to_json_string()))
    model = reformer.build(config, sizes).eval()
    model.load_state_dict(to_ours(reformer.pairs(config), theirs.state_dict(), where="here"))
    return model


def both(name: str, **more: Any) -> tuple[Any, reformer.Reformer]:
    # theirs keeps the number of buckets that the first text gave it, so that it is a new one for each
    theirs = their_model({**FORMS[name], **more})
    return theirs, ours_of(theirs)


def a_batch(length: int, rows: int = 3) -> Batch:
    lengths = torch.tensor([length, max(1, length - 5), max(1, length // 2)][:rows])
    return Batch(Sequences(torch.randint(VOCABULARY, (rows, length)), lengths))


def real(batch: Batch) -> Tensor:
    return torch.arange(batch.source.ids.shape[1]) < batch.source.lengths[:, None]


def compared(name: str, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """States and logits of all that is not padding, ours and theirs."""
    theirs, ours = both(name)
    batch = a_batch(length)
    wanted = theirs.reformer(batch.source.ids, attention_mask=real(batch).long()).last_hidden_state
    hidden = ours.hidden(batch)
    yield hidden[real(batch)], wanted[real(batch)]
    yield ours.head(hidden)[real(batch)], theirs.lm_head(wanted)[real(batch)]


# --- the same model ---------------------------------------------------------------------------------------------------


@every_form
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_states_and_logits_in_float64(name: str, length: int) -> None:
    for found, wanted in compared(name, length):
        assert wanted.abs().max() > 1  # there is something to compare
        assert_close(found, wanted, **NEAR)


@every_form
@pytest.mark.parametrize("length", LENGTHS)
@torch.no_grad()
def test_states_and_logits_in_float32(name: str, length: int) -> None:
    for found, wanted in compared(name, length):
        assert_close(found, wanted, rtol=0.0, atol=2e-5 * max(1.0, wanted.abs().max().item()))


@every_form
@pytest.mark.usefixtures("float64")
def test_gradients(name: str) -> None:
    """Theirs come only in training, and of as many tokens as there are axial positions."""
    none = {f"{part}_prob": 0.0 for part in ("hidden_dropout", "local_attention_probs_dropout")}
    theirs, ours = both(name, axial_pos_shape=[3, 8], **none)
    ids = torch.randint(VOCABULARY, (2, 24))
    theirs.train()
    F.cross_entropy(theirs(ids).logits.flatten(0, 1), ids.flatten()).backward()
    hidden = ours.hidden(Batch(Sequences(ids, torch.tensor([24, 24]))))
    F.cross_entropy(ours.head(hidden).flatten(0, 1), ids.flatten()).backward()
    config, _ = reformer.from_foreign(json.loads(theirs.config.to_json_string()))
    grads = {key: p.grad for key, p in theirs.named_parameters() if p.grad is not None}
    wanted = to_ours(reformer.pairs(config)[:-1], grads, where="here")
    found = {key: p.grad for key, p in ours.named_parameters()}
    assert found.keys() == wanted.keys()
    for key, grad in wanted.items():
        assert grad.abs().max() > 1e-6
        assert_close(found[key], grad, **NEAR, msg=lambda text, key=key: f"{key}: {text}")


@every_form
def test_there_and_back_again(name: str, tmp_path: Path) -> None:
    theirs = their_model(FORMS[name])
    theirs.save_pretrained(tmp_path)
    written, tensors = json.loads((tmp_path / "config.json").read_text()), load_file(tmp_path / "model.safetensors")
    config, sizes = reformer.from_foreign(written)
    back = to_theirs(reformer.pairs(config), to_ours(reformer.pairs(config), tensors, where="here"))
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[key], tensor) for key, tensor in tensors.items())
    foreign = reformer.to_foreign(config, sizes)
    assert reformer.from_foreign(json.loads(json.dumps(foreign))) == (config, sizes)
    read = transformers.AutoConfig.for_model(**foreign)
    told = ("attn_layers", "num_buckets", "hash_seed", "axial_pos_shape", "is_decoder", "hidden_act", "vocab_size")
    for key in (*told, *reformer._KEYS.values()):
        value, wanted = getattr(read, key), getattr(theirs.config, key)
        assert (list(value) if isinstance(value, tuple) else value) == (
            list(wanted) if isinstance(wanted, tuple) else wanted
        )


@torch.no_grad()
def test_what_we_built_is_theirs_too() -> None:
    config, sizes = read(preset="tiny", hash_seed=1, num_buckets=[8]), Sizes(VOCABULARY, VOCABULARY, True)
    ours = reformer.build(config, sizes).eval()
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**reformer.to_foreign(config, sizes))
    ).eval()
    theirs.load_state_dict(to_theirs(reformer.pairs(config), ours.state_dict()))
    ids = torch.randint(VOCABULARY, (1, 80))
    found = ours.head(ours.hidden(Batch(Sequences(ids, torch.tensor([80])))))
    assert_close(found, theirs(ids).logits, rtol=0.0, atol=2e-5)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"is_decoder": False}, '"is_decoder"\n  got:    False\n  wanted: True'),
        ({"hidden_act": "tanh"}, '"hidden_act"\n  got:    tanh\n  wanted: relu, gelu, gelu_new, silu'),
        ({"local_num_chunks_after": 1}, '"local_num_chunks_after"\n  got:    1\n  wanted: 0'),
        ({"tie_word_embeddings": True}, '"tie_word_embeddings"\n  got:    True\n  wanted: False'),
        ({"attn_layers": ["global"]}, "'local' or 'lsh'"),
    ],
)
def test_another_model_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        reformer.from_foreign(SMALL | change)
    assert text in str(error.value)


def test_a_bias_of_the_head_is_kept_and_added_and_not_trained() -> None:
    theirs = their_model(FORMS["local and lsh"])
    theirs.lm_head.bias.data.normal_()
    ours = ours_of(theirs)
    assert torch.equal(ours.head.bias, theirs.lm_head.bias)  # type: ignore[arg-type]
    assert torch.equal(ours.head(torch.zeros(24)), theirs.lm_head.bias)
    assert "head.bias" not in dict(ours.named_parameters())


@pytest.mark.parametrize("chunk", [2, 4, 16])
def test_buckets_as_theirs_come(chunk: int) -> None:
    theirs = their_model(FORMS["local and lsh"] | {"lsh_attn_chunk_length": chunk, "num_buckets": None})
    attention = theirs.reformer.encoder.layers[1].attention.self_attention
    for length in range(2 * chunk, 80, chunk):
        attention._set_num_buckets(length)
        found = usual_buckets(length, chunk, 80)
        assert (found[0] if len(found) == 1 else list(found)) == attention.num_buckets


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["local and lsh", "two factored hashes"])
@pytest.mark.parametrize("length", [3, 5, 17])
@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_greedy_output_is_theirs(name: str, length: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Token by token, from the buckets that both remember. (Theirs decodes one row; of many it reads the first.)"""
    theirs, ours = both(name)
    ids = torch.randint(VOCABULARY, (1, length))
    wanted = theirs.generate(ids, do_sample=False, max_new_tokens=12)
    out, seen = ids, theirs(ids, use_cache=True)
    logits, state = ours.step(ids, ours.start(Sequences(ids, torch.tensor([length])), 40))
    assert_close(logits, seen.logits, **NEAR)
    for _ in range(12):
        out = torch.cat([out, logits[:, -1:].argmax(-1)], dim=1)
        seen = theirs(out[:, -1:], use_cache=True, past_buckets_states=seen.past_buckets_states)
        logits, state = ours.step(out[:, -1:], state)
        assert_close(logits, seen.logits, **NEAR)
    assert torch.equal(out, wanted)
    capsys.readouterr()  # theirs prints what it makes of its own arguments


def model_of(**form: Any) -> reformer.Reformer:
    table = {"layers": ["local", "lsh"], "model_dim": 12, "num_heads": 2, "head_dim": 5, "ffn_dim": 17}
    table |= {"lsh_chunk": 4, "local_chunk": 4, "axial_shape": [8, 10], "axial_dims": [4, 8], "max_length": 80}
    table |= {"hash_seed": 5, "num_hashes": 2}
    model = reformer.build(read(**{**table, **form}), Sizes(VOCABULARY, VOCABULARY, True)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def read(**table: Any) -> reformer.Config:
    return read_section(reformer.Config, with_preset("reformer", table), where="here")


def logits_of(model: reformer.Reformer, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
    lengths = torch.full((len(ids),), ids.shape[1]) if lengths is None else lengths
    return model.head(model.hidden(Batch(Sequences(ids, lengths))))


@pytest.mark.parametrize(
    "form", [{"layers": ["local"] * 3}, {"lsh_chunk": 32}, {"lsh_chunk": 32, "hash_seed": -1}], ids=str
)
@pytest.mark.parametrize("sizes", [[19], [1] * 19, [7, 3, 9]], ids=str)
@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_steps_equal_a_whole_pass_without_hashed_chunks(form: dict[str, Any], sizes: list[int]) -> None:
    model, ids = model_of(**form), torch.randint(VOCABULARY, (2, 19))
    state, found = model.start(Sequences(ids, torch.tensor([19, 19])), 32), []
    for part in ids.split(sizes, dim=1):
        logits, state = model.step(part, state)
        found.append(logits)
    assert_close(torch.cat(found, dim=1), logits_of(model, ids), **EXACT)


@pytest.mark.parametrize("seed", [5, -1])
@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_steps_by_bucket(seed: int) -> None:
    """A prompt read at once is a whole pass; several tokens after it are as many steps; rows may be at any place."""
    model, ids = model_of(num_buckets=[4], hash_seed=seed), torch.randint(VOCABULARY, (2, 24))
    start = lambda: model.start(Sequences(ids, torch.tensor([24, 24])), 40)  # noqa: E731
    torch.manual_seed(1)
    prompt, one = model.step(ids[:, :13], start())
    if seed >= 0:
        assert_close(prompt, logits_of(model, ids[:, :13]), **EXACT)
    other = one.select(torch.tensor([0, 1]))
    at_once, _ = model.step(ids[:, 13:], one)
    one_by_one = []
    for place in range(13, 24):
        logits, other = model.step(ids[:, [place]], other)
        one_by_one.append(logits)
    assert_close(torch.cat(one_by_one, dim=1), at_once, **EXACT)
    back, _ = model.step(ids[:, 17:], other.truncate(torch.tensor([17, 17])))
    assert_close(back, at_once[:, 4:], **EXACT)


@torch.no_grad()
def test_a_full_cache_says_so() -> None:
    model = model_of()
    state = model.start(Sequences(torch.zeros(1, 1, dtype=torch.long), torch.tensor([1])), 6)
    with pytest.raises(RegardError, match="the cache is full\n  got:    7 tokens\n  wanted: at most 6"):
        model.step(torch.ones(1, 7, dtype=torch.long), state)


# --- laws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [{"layers": ["local"] * 3}, {"lsh_chunk": 32}], ids=str)
@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_without_hashed_chunks_it_is_causal_and_padding_changes_nothing(form: dict[str, Any]) -> None:
    model, ids = model_of(**form), torch.randint(VOCABULARY, (2, 19))
    before = logits_of(model, ids)
    for place in (1, 7, 8, 18):
        changed = ids.clone()
        changed[:, place:] = (changed[:, place:] + 1) % VOCABULARY
        after = logits_of(model, changed)
        assert_close(after[:, :place], before[:, :place], **EXACT)
        assert ((after - before)[:, place].abs().amax(-1) > 1e-6).all()
        assert_close(logits_of(model, ids[:, :place]), before[:, :place], **EXACT)
        assert_close(logits_of(model, ids, torch.tensor([place, 19]))[0, :place], before[0, :place], **EXACT)


@pytest.mark.parametrize("form", [{}, {"num_hashes": 1}, {"layers": ["lsh", "lsh"], "num_buckets": [2, 4]}], ids=str)
@torch.no_grad()
def test_no_token_ever_reads_a_later_one(form: dict[str, Any]) -> None:
    model = model_of(**form)
    with observe(model) as trace:
        logits_of(model, torch.randint(VOCABULARY, (2, 30)))
    for view in trace:
        weights = view.rows(range(30))
        assert (weights.triu(1) == 0).all()
        assert (weights.sum(-1) > 0.99).all()


@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_more_rounds_come_nearer_to_full_attention() -> None:
    """The hashed outputs of a layer against those of one whose chunk is the text, each with the same weights."""
    ids, errors = torch.randint(VOCABULARY, (4, 64)), []
    full = model_of(layers=["lsh"], lsh_chunk=64)
    wanted = logits_of(full, ids)
    for rounds in (1, 4, 16):
        model = model_of(layers=["lsh"], lsh_chunk=8, num_hashes=rounds, num_buckets=[8])
        model.load_state_dict(full.state_dict())
        errors.append((logits_of(model, ids) - wanted).square().mean().item())
    assert errors[0] > errors[1] > errors[2] > 0


@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_texts_in_one_row_do_not_see_each_other() -> None:
    model, ids = model_of(lsh_chunk=32), torch.randint(VOCABULARY, (1, 9))
    packed = model.hidden(Batch(Sequences(ids, torch.tensor([9]), torch.tensor([[0] * 4 + [1] * 5]))))
    apart = [model.hidden(Batch(Sequences(part, torch.tensor([part.shape[1]])))) for part in ids.split([4, 5], dim=1)]
    assert_close(packed, torch.cat(apart, dim=1), **EXACT)


@torch.no_grad()
def test_hashes_are_new_in_each_pass_without_a_seed() -> None:
    model, ids = model_of(hash_seed=-1, num_hashes=1), torch.randint(VOCABULARY, (2, 40))
    assert not torch.equal(logits_of(model, ids), logits_of(model, ids))
    model = model_of()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert torch.equal(logits_of(model, ids), logits_of(model, ids))
    assert torch.equal(torch.get_rng_state(), before)


# --- training and looking ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [5, -1])
@pytest.mark.usefixtures("float64")
def test_training_with_dropout_has_the_gradients_of_plain_blocks(seed: int) -> None:
    """The backward pass runs every block again: with the same hashes, buckets and dropout."""
    form = {"dropout": 0.2, "lsh_dropout": 0.2, "local_dropout": 0.2, "hash_seed": seed}
    model, ids = model_of(**form).train(), torch.randint(VOCABULARY, (2, 22))
    grads = []
    for plainly in (False, True):
        torch.manual_seed(2)
        model.zero_grad()
        if plainly:
            with observe(model):  # who is there for the gradients inside of blocks
                loss = F.cross_entropy(logits_of(model, ids).flatten(0, 1), ids.flatten())
        else:
            loss = F.cross_entropy(logits_of(model, ids).flatten(0, 1), ids.flatten())
        loss.backward()
        grads.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == dict(model.named_parameters()).keys()
    assert_close(grads[0], grads[1], **EXACT)


def test_buckets_are_hashed_once_in_a_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second run of a block, rounding could put a token elsewhere: the order of the first is kept."""
    model, calls = model_of(layers=["lsh", "local", "lsh"]).train(), []

    def counted(x: Tensor, *others: Any) -> Tensor:
        calls.append(x.shape)
        return hash_buckets(x, *others)

    monkeypatch.setattr("regard.layers.hashed.hash_buckets", counted)
    logits_of(model, torch.randint(VOCABULARY, (2, 22))).sum().backward()
    assert calls == [(2, 2, 22, 5)] * 2


@torch.no_grad()
def test_its_heads_are_measured_while_it_is_trained() -> None:
    model, batch = model_of(), a_batch(30)
    with _following(model) as running, observing(recorder := _Recorder(model, running, {"source": real(batch)})):
        model.hidden(batch)
    with observe(model, lengths={"source": batch.source.lengths}) as trace:
        model.hidden(batch)
    found = recorder.finish()
    assert list(found) == [view.name for view in trace]
    for view in trace:
        entropy = view.entropy.transpose(1, 2)[real(batch)].mean(0)
        assert_close(found[view.name][0], entropy, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("length", [3, 30])
@torch.no_grad()
def test_what_it_weighs_is_observed_with_its_hashes(length: int) -> None:
    model, batch = model_of(layers=["local", "lsh", "lsh"], hash_seed=-1), a_batch(length)
    torch.manual_seed(4)
    wanted = model.hidden(batch)
    outs: list[tuple[Tensor, Tensor]] = []
    torch.manual_seed(4)
    with observe(model, tell=lambda view, out, values: outs.append((out, values))) as trace:
        assert torch.equal(model.hidden(batch), wanted)
    assert [view.name for view in trace] == [f"stack.blocks.{i}.attention.body" for i in range(3)]
    for view, (out, values) in zip(trace, outs, strict=True):
        assert view.shape == (3, 2, length, length)
        assert isinstance(view._blocks[0][0], Scattered)  # no matrix is made before it is asked for
        assert_close(view.rows(range(length)) @ values, out, rtol=0.0, atol=1e-5)
        assert view.entropy.shape == (3, 2, length)
        assert view.value_norms is not None


@torch.no_grad()
def test_steps_are_observed_as_the_rows_of_one_text() -> None:
    model, ids = model_of(num_buckets=[4]), torch.randint(VOCABULARY, (1, 20))
    with observe(model) as trace:
        _, state = model.step(ids[:, :13], model.start(Sequences(ids, torch.tensor([20])), 24))
        for place in range(13, 20):
            _, state = model.step(ids[:, [place]], state)
    for view in trace:
        weights = view.rows(range(20))
        assert weights.shape == (1, 2, 20, 20)
        assert (weights.triu(1) == 0).all()
        assert_close(weights.sum(-1)[..., 1:], torch.ones(1, 2, 19), rtol=0.0, atol=1e-5)


def test_it_learns() -> None:
    """Eight texts of 0 w 0 w by heart; benchmarks copy longer ones."""
    model = model_of(dropout=0.0, local_dropout=0.0).train()
    words = torch.randint(1, VOCABULARY, (8, 11))
    zero = torch.zeros(8, 1, dtype=torch.long)
    ids = torch.cat([zero, words, zero, words], dim=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(logits_of(model, ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"layers": []}, "a model has layers\n  got:    none"),
        ({"num_buckets": [8, 3]}, r"opposites\n  got:    \(8, 3\)\n  wanted: even numbers"),
        ({"axial_dims": [4, 9]}, r"axial_dims must add up to model_dim \(256\)\n  got:    \(4, 9\)\n  wanted: 256"),
        ({"axial_shape": [0, 9]}, "axial positions have a size\n  got:    0"),
        ({"hash_seed": -2}, "hash_seed is too small\n  got:    -2\n  wanted: 0 or more, or -1"),
        ({"lsh_before": -1}, "lsh_before is too small\n  got:    -1\n  wanted: 0 or more"),
        ({"num_hashes": 0}, "num_hashes is too small"),
        ({"norm_eps": 0.0}, "norm_eps is too small"),
        ({"lsh_dropout": 1.0}, "lsh_dropout is a share"),
    ],
)
def test_values_that_cannot_be_meant(table: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read(**table)


def test_a_text_longer_than_its_positions() -> None:
    with pytest.raises(RegardError) as error:
        logits_of(model_of(), torch.zeros(1, 81, dtype=torch.long))
    assert str(error.value) == (
        "the text is longer than the axial positions\n  got:    81 tokens\n  wanted: at most 8 x 10\n"
        "  try:    raise model.axial_shape and train again"
    )


def test_a_batch_is_not_changed() -> None:
    model, batch = model_of(), a_batch(9)
    before = replace(batch.source, ids=batch.source.ids.clone())
    model.hidden(batch)
    assert torch.equal(batch.source.ids, before.ids)
