"""XLNet against transformers' own, with the same weights: both streams, memory, gradients, and the way back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close

from regard.config import read_section
from regard.errors import ConfigError, RunError
from regard.look.collect import observe
from regard.models import Sizes, with_preset, xlnet
from regard.models._foreign import to_ours, to_theirs
from regard.train.checkpoint import put_weights, weights
from regard.types import Batch, Sequences, State

NEAR = {"rtol": 0.0, "atol": 1e-9}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {"vocab_size": 31, "d_model": 42, "n_layer": 3, "n_head": 3, "d_inner": 29, "mem_len": 9},
    "clamped": {"vocab_size": 23, "d_model": 20, "n_layer": 2, "n_head": 4, "d_inner": 33, "mem_len": 6, "reuse_len": 4}
    | {"clamp_len": 3, "ff_activation": "relu", "tie_word_embeddings": False, "layer_norm_eps": 1e-5},
    "both ways": {"vocab_size": 37, "d_model": 14, "n_layer": 2, "n_head": 2, "d_inner": 17, "mem_len": None}
    | {"bi_data": True, "clamp_len": 5, "ff_activation": "gelu_new"},
}
NO_SPECIALS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
every_form = pytest.mark.parametrize("name", FORMS)
B, N, V = 4, 8, 19
LENGTHS = [8, 3, 6, 8]


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wide numbers everywhere: their waves would be float32 whatever the model is."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def their_model(name: str) -> transformers.XLNetLMHeadModel:
    """One of theirs, with no number left that would hide what it does."""
    model = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**FORMS[name], **NO_SPECIALS)).eval()
    model.to(torch.get_default_dtype())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@dataclass(frozen=True)
class Folder:
    """What save_pretrained wrote."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]


def saved(model: nn.Module, path: Path) -> Folder:
    model.save_pretrained(path)
    return Folder(json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors"))


def converted(folder: Folder) -> tuple[xlnet.XLNet, xlnet.Config, Sizes]:
    config, sizes = xlnet.from_foreign(folder.config)
    model = xlnet.build(config, sizes).eval()
    put_weights(model, ours_of(config, folder.tensors), where="this test")
    return model, config, sizes


def ours_of(config: xlnet.Config, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return to_ours(xlnet.pairs(config), tensors, where="this test", copies=xlnet.copies(config))


@dataclass(frozen=True)
class Question:
    """A batch of two texts a row, an order in which some of its tokens are predicted, and which these are."""

    batch: Batch
    seen: Tensor
    places: Tensor
    right: Tensor  # B x T: the places that are not padding

    @property
    def real(self) -> Tensor:
        return torch.arange(N) < self.batch.source.lengths[:, None]

    def asked(self, *, order: bool) -> dict[str, Tensor]:
        """The same as theirs takes it."""
        source = self.batch.source
        assert source.segments is not None
        found = {"input_ids": source.ids, "attention_mask": self.real.to(torch.get_default_dtype())}
        found["token_type_ids"] = source.segments
        if order:
            mapping = nn.functional.one_hot(self.places, N).to(torch.get_default_dtype())
            found |= {"perm_mask": (~self.seen).to(torch.get_default_dtype()), "target_mapping": mapping}
        return found


def a_question(vocabulary: int) -> Question:
    """The first two tokens of a row are the context, the others are predicted in some order; padding is random."""
    ids, lengths = torch.randint(vocabulary, (B, N)), torch.tensor(LENGTHS)
    segments = (torch.arange(N) >= torch.tensor([3, 1, 5, 8])[:, None]).long()
    ranks = torch.stack([torch.randperm(N) for _ in range(B)])
    ranks[:, :2] = -1
    places = torch.stack([2 + torch.randperm(N - 2)[:4] for _ in range(B)])
    places[1] = torch.tensor([5, 2, 7, 3])  # of the shortest row one place is real
    source = Sequences(ids, lengths, segments)
    return Question(Batch(source), xlnet.seen_in_order(ranks), places, places < lengths[:, None])


def a_memory(theirs: Any, ours: xlnet.XLNet, vocabulary: int) -> tuple[list[Tensor], State]:
    """What both remember of two segments."""
    mems, memory = None, ours.empty_memory(B, ours.memory or 20)
    for _ in range(2):
        ids = torch.randint(vocabulary, (B, 7))
        mems = theirs(ids, mems=mems, use_mems=True).mems
        _, memory = ours.remember(Batch(Sequences(ids, torch.full((B,), 7))), memory)
    return mems, memory


def compared(name: str, path: Path, *, order: bool, remembers: bool) -> list[tuple[Tensor, Tensor]]:
    """Last states, logits and what is remembered, ours and theirs, of every place that is not padding."""
    theirs = their_model(name)
    ours, _, sizes = converted(saved(theirs, path))
    question = a_question(sizes.source)
    mems, memory = a_memory(theirs, ours, sizes.source) if remembers else (None, ours.empty_memory(B, 20))
    wanted = theirs(
        **question.asked(order=order), mems=mems, use_mems=True, output_hidden_states=True, return_dict=True
    )
    h, g, after = ours(question.batch.source, memory, *((question.seen, question.places) if order else ()))
    real = question.real
    content = wanted.hidden_states[-2 if order else -1]
    pairs = [(h[real], content[real])]
    if order:
        pairs.append((g[question.right], wanted.hidden_states[-1][question.right]))
        pairs.append((ours.head(g)[question.right], wanted.logits[question.right]))
    else:
        pairs.append((ours.head(h)[real], wanted.logits[real]))
    for layer, mem in enumerate(wanted.mems):  # they keep padding; row 0 has none
        mine = after.cache[str(layer)][0]
        held = min(int(after.position[0]), len(mine), len(mem))
        pairs.append((mine[len(mine) - held :], mem[len(mem) - held :, 0]))
    return pairs


both = pytest.mark.parametrize("order", [False, True], ids=["all seen", "in an order"])
with_and_without = pytest.mark.parametrize("remembers", [False, True], ids=["alone", "remembers"])


@every_form
@both
@with_and_without
@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_states_and_logits(name: str, order: bool, remembers: bool, tmp_path: Path) -> None:
    for found, wanted in compared(name, tmp_path, order=order, remembers=remembers):
        assert_close(found, wanted, **NEAR)


@every_form
@both
@torch.no_grad()
def test_states_and_logits_in_float32(name: str, order: bool, tmp_path: Path) -> None:
    for found, wanted in compared(name, tmp_path, order=order, remembers=True):
        assert_close(found, wanted, rtol=0.0, atol=2e-5 * max(1.0, wanted.abs().max().item()))


@every_form
@pytest.mark.usefixtures("float64")
def test_gradients(name: str, tmp_path: Path) -> None:
    """Of both streams, with segments and a memory."""
    theirs = their_model(name)
    ours, config, sizes = converted(saved(theirs, tmp_path))
    question = a_question(sizes.source)
    mems, memory = a_memory(theirs, ours, sizes.source)
    wanted = theirs(**question.asked(order=True), mems=mems)
    weight = torch.randn_like(wanted.logits) * question.right[..., None]
    (wanted.logits * weight).sum().backward()
    states, _ = ours.predict(question.batch, question.seen, question.places, memory)
    (ours.head(states) * weight).sum().backward()
    found = to_theirs(xlnet.pairs(config), {n: p.grad for n, p in ours.named_parameters() if p.grad is not None})
    right = {n: p.grad for n, p in theirs.named_parameters()}
    assert found.keys() == right.keys()
    assert all(gradient.abs().max() > 1e-6 for gradient in right.values())
    for key, gradient in right.items():
        assert_close(found[key], gradient, rtol=0.0, atol=1e-9 * max(1.0, gradient.abs().max().item()))


@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_one_text_without_segments(tmp_path: Path) -> None:
    """It is as all of one segment: what is added to all scores of a row alike, softmax does not see."""
    theirs = their_model("plain")
    ours, _, sizes = converted(saved(theirs, tmp_path))
    ids = torch.randint(sizes.source, (2, 9))
    rows = Sequences(ids, torch.tensor([9, 9]))
    assert_close(ours.head(ours.hidden(Batch(rows))), theirs(ids).logits, **NEAR)
    one = Batch(replace(rows, segments=torch.zeros_like(ids)))
    assert_close(ours.head(ours.hidden(one)), theirs(ids, token_type_ids=torch.zeros_like(ids)).logits, **NEAR)
    assert_close(ours.hidden(one), ours.hidden(Batch(rows)), **NEAR)


# --- what they write --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_mems", [False, True])
@torch.no_grad()
def test_greedy_outputs_are_theirs(use_mems: bool, tmp_path: Path) -> None:
    """They predict the token after the text from all of it, each time anew, or all but the last two from memory."""
    theirs = their_model("plain")
    theirs.transformer.mem_len = None
    with torch.no_grad():  # let the text say more than biases do, so that not one token is written for ever
        for name, parameter in theirs.named_parameters():
            parameter *= 0 if name.endswith(("norm.bias", "lm_loss.bias")) else 2 if name.endswith("rel_attn.q") else 1
    ours, _, sizes = converted(saved(theirs, tmp_path))
    torch.manual_seed(1)
    prompt = torch.randint(sizes.source, (6, 5))
    wanted = theirs.generate(prompt, max_new_tokens=12, do_sample=False, use_mems=use_mems, max_length=None)
    text, memory, kept = prompt, ours.empty_memory(6, 20 if use_mems else 0), 0
    for _ in range(12):
        new = torch.cat([text[:, kept:], torch.zeros_like(text[:, :1])], dim=1)  # and a place for the next
        length = new.shape[1]
        seen = (torch.arange(length) < length - 1).expand(6, length, -1)
        ours.reuse = length - 2 if use_mems else 0  # they take the last two tokens again
        batch = Batch(Sequences(new, torch.full((6,), length)))
        states, memory = ours.predict(batch, seen, torch.full((6, 1), length - 1), memory)
        kept += length - 2 if use_mems else 0
        text = torch.cat([text, ours.head(states[:, 0]).argmax(-1, keepdim=True)], dim=1)
    assert text.tolist() == wanted.tolist()
    assert len(set(text[:, 5:].flatten().tolist())) > 4


# --- two streams ------------------------------------------------------------------------------------------------------


def small(**form: Any) -> xlnet.XLNet:
    """A model of ours, with no parameter left at a zero that would hide what it does."""
    table = {"layers": 2, "model_dim": 12, "num_heads": 3, "ffn_dim": 10, "memory": 5, **form}
    config = read_section(xlnet.Config, with_preset("xlnet", table), where="this test")
    model = xlnet.build(config, Sizes(V, V, True)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def rows(ids: Tensor, lengths: list[int] | None = None) -> Batch:
    return Batch(Sequences(ids, torch.tensor(lengths or [ids.shape[1]] * len(ids))))


def moved(before: Tensor, after: Tensor) -> list[bool]:
    return ((after - before)[0].abs().amax(-1) > 1e-9).tolist()


@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_a_place_is_predicted_from_what_comes_before_it_in_the_order() -> None:
    """z = 4, 0, 3, 1 after the context 2: the query stream sees those before, the content stream itself as well."""
    model, ids = small(), torch.randint(V, (1, 5))
    ranks = torch.tensor([[1, 3, -1, 2, 0]])
    seen, places = xlnet.seen_in_order(ranks), torch.arange(5)[None]
    h, g, _ = model(rows(ids).source, model.empty_memory(1, 0), seen, places)
    for changed in range(5):
        other = ids.clone()
        other[0, changed] = (other[0, changed] + 1) % V
        h_after, g_after, _ = model(rows(other).source, model.empty_memory(1, 0), seen, places)
        later = [rank > ranks[0, changed] or changed == 2 for rank in ranks[0]]
        assert moved(g, g_after) == [changed == 2 if i == 2 else later[i] for i in range(5)]
        assert moved(h, h_after) == [later[i] or i == changed for i in range(5)]


@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_a_place_that_sees_nothing_reads_nothing() -> None:
    """Theirs would read a bit of everything there, also of what it should predict."""
    model, ids, nothing = small(), torch.randint(V, (2, 4)), torch.zeros(2, 4, 4, dtype=torch.bool)
    places = torch.tensor([[0, 3], [1, 2]])
    found, _ = model.predict(rows(ids), nothing, places)
    assert_close(found, found[:1, :1].expand(2, 2, -1), **NEAR)
    assert_close(model.predict(rows((ids + 1) % V), nothing, places)[0], found, **NEAR)


@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_places_are_predicted_alone_as_together() -> None:
    model, ids = small(), torch.randint(V, (2, 6))
    seen = xlnet.seen_in_order(torch.tensor([[-1, 3, 1, 0, -1, 2], [2, 0, 1, -1, 3, 4]]))
    together, _ = model.predict(rows(ids), seen, torch.arange(6).expand(2, -1))
    for place in range(6):
        alone, _ = model.predict(rows(ids), seen, torch.full((2, 1), place))
        assert_close(alone[:, 0], together[:, place], **NEAR)


@pytest.mark.parametrize(("sizes", "room"), [([3, 3, 3, 3], 3), ([4, 1, 5, 2], 5), ([5, 5, 2], 20)])
@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_memory_is_attention_to_the_same_span_of_one_long_text(sizes: list[int], room: int) -> None:
    model, ids = small(), torch.randint(V, (2, 12))
    memory, found = model.empty_memory(2, room), []
    for part in ids.split(sizes, dim=1):
        states, memory = model.remember(rows(part), memory)
        found.append(states)
    ends = torch.repeat_interleave(torch.tensor(sizes).cumsum(0), torch.tensor(sizes))
    begins = ends - torch.repeat_interleave(torch.tensor(sizes), torch.tensor(sizes))
    places = torch.arange(12)
    span = (places < ends[:, None]) & (places >= begins[:, None] - room)
    wanted, _, _ = model(rows(ids).source, model.empty_memory(2, 0), span.expand(2, -1, -1))
    assert_close(torch.cat(found, dim=1), wanted, **NEAR)


@pytest.mark.usefixtures("float64")
def test_padding_changes_nothing() -> None:
    """Neither its ids nor how much there is of it, in either stream, nor in what is remembered, nor in gradients."""
    model, ids, lengths = small(), torch.randint(V, (2, 6)), [4, 6]
    seen, places = xlnet.seen_in_order(torch.stack([torch.randperm(6), torch.randperm(6)])), torch.tensor([[1, 3]] * 2)

    def gradients(ids: Tensor, seen: Tensor) -> list[Tensor]:
        segments = (torch.arange(ids.shape[1]) > 2).long().expand_as(ids)
        source = Sequences(ids, torch.tensor(lengths), segments)
        h, g, memory = model(source, model.empty_memory(2), seen, places)
        real = torch.cat([row[:length] for row, length in zip(h, lengths, strict=True)])
        loss = real.square().sum() + model.head(g).log_softmax(-1)[..., 0].sum()
        return [real, g, *memory.cache.values(), *torch.autograd.grad(loss, list(model.parameters()))]

    wider = torch.randint(V, (2, 9))
    for row, length in enumerate(lengths):
        wider[row, :length] = ids[row, :length]
    wanted = gradients(ids, seen)
    for found, right in zip(gradients(wider, nn.functional.pad(seen, (0, 3, 0, 3))), wanted, strict=True):
        assert_close(found, right, **NEAR)
    assert_close(model.hidden(rows(ids[:1, :4])), model.hidden(rows(ids, lengths))[:1, :4], **NEAR)


def test_half_a_batch_is_read_backwards() -> None:
    message = (
        "bi_data reads half of a batch backwards\n  got:    3 rows\n  wanted: an even number\n  try:    model.bi_data"
    )
    with pytest.raises(ConfigError, match=message):
        small(bi_data=True).hidden(rows(torch.randint(V, (3, 4))))


@torch.no_grad()
def test_both_streams_are_observed() -> None:
    model, ids = small(), torch.randint(V, (2, 6))
    seen = xlnet.seen_in_order(torch.tensor([[-1, 3, 1, 0, -1, 2]] * 2))
    with observe(model) as trace:
        model.predict(rows(ids), seen, torch.tensor([[1, 2]] * 2))
    names = [f"blocks.{i}.attention.body{stream}" for i in range(2) for stream in ("", "#2")]
    assert [(view.name, view.shape) for view in trace] == [(name, (2, 3, 2 if "#" in name else 6, 6)) for name in names]
    itself = torch.eye(6, dtype=torch.bool)
    assert torch.equal(trace[0].rows(range(6))[:, 0] > 0, seen | itself)
    assert torch.equal(trace[1].rows(range(2))[:, 0] > 0, seen[:, 1:3])


def test_bfloat16_autocast_is_near_float32() -> None:
    model, ids = small(), torch.randint(V, (2, 6))
    seen, places = xlnet.seen_in_order(torch.tensor([[-1, 3, 1, 0, -1, 2]] * 2)), torch.tensor([[1, 2]] * 2)
    source = Sequences(ids, torch.tensor([6, 6]), (ids > 3).long())
    _, memory = model.remember(rows(ids), model.empty_memory(2))
    wanted, _ = model.predict(Batch(source), seen, places, memory)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = model.predict(Batch(source), seen, places, memory)
        model.head(found).square().sum().backward()
    assert_close(found.float(), wanted, rtol=0.0, atol=0.05 * wanted.abs().max().item())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@torch.no_grad()
def test_dropout_acts_in_training_only() -> None:
    model, batch = small(dropout=0.5), rows(torch.randint(V, (1, 5)))
    assert torch.equal(model.hidden(batch), model.hidden(batch))
    assert model.pooled(model.hidden(batch), batch.source.lengths).shape == (1, 12)
    model.train()
    assert not torch.equal(model.hidden(batch), model.hidden(batch))


# --- both ways --------------------------------------------------------------------------------------------------------


@every_form
def test_back_again_with_the_same_keys_and_bits(name: str, tmp_path: Path) -> None:
    folder = saved(their_model(name), tmp_path)
    ours, config, _ = converted(folder)
    found = to_theirs(xlnet.pairs(config), weights(ours), copies=xlnet.copies(config))
    assert found.keys() == folder.tensors.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in folder.tensors.items())


@every_form
def test_the_config_goes_and_comes_back(name: str, tmp_path: Path) -> None:
    theirs = saved(their_model(name), tmp_path).config
    config, sizes = xlnet.from_foreign(theirs)
    assert xlnet.from_foreign(xlnet.to_foreign(config, sizes)) == (config, sizes)
    again = transformers.AutoConfig.for_model(**xlnet.to_foreign(config, sizes)).to_dict()
    assert {key for key in theirs if theirs[key] != again.get(key)} <= {"dtype", "transformers_version"}


@every_form
@torch.no_grad()
def test_a_model_of_ours_is_loaded_by_transformers(name: str, tmp_path: Path) -> None:
    config, sizes = xlnet.from_foreign(FORMS[name])
    ours = xlnet.build(config, sizes).eval()
    (tmp_path / "config.json").write_text(json.dumps(xlnet.to_foreign(config, sizes)))
    found = to_theirs(xlnet.pairs(config), weights(ours), copies=xlnet.copies(config))
    save_file(found, tmp_path / "model.safetensors", {"format": "pt"})
    theirs, told = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert [told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")] == [set(), set(), set()]
    ids = torch.randint(sizes.source, (2, 6))
    assert_close(ours.head(ours.hidden(rows(ids))), theirs.eval()(ids).logits, rtol=0.0, atol=2e-5)


def test_what_a_config_leaves_out_is_the_same_in_both() -> None:
    plain = transformers.XLNetConfig().to_dict()
    config, sizes = xlnet.from_foreign({})
    assert (config, sizes) == xlnet.from_foreign(plain)
    assert (sizes, config.layers, config.model_dim, config.memory) == (Sizes(32000, 32000, True), 24, 1024, 512)
    named = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "n_token": 50}
    config, sizes = xlnet.from_foreign(named)
    assert (config.layers, config.model_dim, config.num_heads, sizes.source) == (2, 64, 4, 50)


def test_the_published_base_is_ours_without_memory() -> None:
    """As its config.json says it, with keys of an older library and of other heads."""
    published = {"architectures": ["XLNetLMHeadModel"], "model_type": "xlnet", "attn_type": "bi", "d_head": 64}
    published |= {"d_inner": 3072, "d_model": 768, "n_head": 12, "n_layer": 12, "mem_len": None, "reuse_len": None}
    published |= {"untie_r": True, "same_length": False, "bi_data": False, "clamp_len": -1, "summary_type": "last"}
    published |= {"ff_activation": "gelu", "layer_norm_eps": 1e-12, "dropout": 0.1, "vocab_size": 32000}
    assert xlnet.from_foreign(published) == (xlnet.Config(memory=0), Sizes(32000, 32000, True))


@pytest.mark.parametrize(
    ("theirs", "text"),
    [
        ({"attn_type": "uni"}, 'this "attn_type"\n  got:    uni\n  wanted: bi\n  where:  config.json'),
        ({"ff_activation": "tanh"}, 'this "ff_activation"\n  got:    tanh\n  wanted: gelu, gelu_new, relu, silu'),
        ({"architectures": ["XLNetModel"]}, 'this "architectures"\n  got:    XLNetModel\n  wanted: XLNetLMHeadModel'),
        ({"model_type": "transfo-xl"}, 'this "model_type"\n  got:    transfo-xl\n  wanted: xlnet'),
        ({"d_head": 32}, 'this "d_head"\n  got:    32\n  wanted: 64'),
        ({"n_head": 7}, r"model_dim \(1024\) must be divisible by num_heads \(7\)"),
        ({"dropout": 1.5}, "dropout is a share"),
    ],
)
def test_what_would_be_another_model_is_refused(theirs: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        xlnet.from_foreign(theirs)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    folder = saved(their_model("plain"), tmp_path)
    config, _ = xlnet.from_foreign(folder.config)
    with pytest.raises(RunError, match=r"no place for\n  got:    logits_proj.weight"):
        ours_of(config, folder.tensors | {"logits_proj.weight": torch.zeros(1)})
    with pytest.raises(RunError, match=r"no transformer.layer.3.rel_attn.q\n"):
        ours_of(replace(config, layers=4), folder.tensors)
    with pytest.raises(RunError, match=r"lm_loss.weight is not what the config says it is"):
        ours_of(config, folder.tensors | {"lm_loss.weight": torch.zeros(31, 42)})


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"reuse": -1}, "reuse is too small\n  got:    -1\n  wanted: 0 or more"),
        ({"model_dim": 9}, "distances are waves in pairs\n  got:    9\n  wanted: an even model_dim"),
        ({"norm_eps": 0.0}, "norm_eps is too small"),
    ],
)
def test_values_that_cannot_be_meant(form: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        small(**form)
