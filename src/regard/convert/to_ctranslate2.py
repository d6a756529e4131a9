"""A run as a CTranslate2 folder: our modules as its specs say them, module by module.

A Transformer (also as Marian, BART or T5) becomes a Translator, a GPT (also as Llama) a Generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.convert import check
from regard.convert.tokenizers import specials_of, tokenizers_of, write_tokenizers
from regard.data.tokenizers import Tokenizer
from regard.decode.config import DecodeConfig
from regard.decode.search import decode
from regard.errors import ConfigError, RunError
from regard.layers.feedforward import FeedForward
from regard.layers.positions import Learned, Rotary, T5Bias
from regard.models.gpt import GPT
from regard.models.t5 import End
from regard.models.transformer import CopyingTransformer, Transformer
from regard.run import Run

NEAR = 1e-4
PLACES = 2048  # rows of a table of sinusoids; theirs begin at another place
ACTIVATIONS = {"relu": "RELU", "reglu": "RELU", "gelu": "GELU", "geglu": "GELU", "silu": "SWISH", "swiglu": "SWISH"}
ACTIVATIONS |= {"gelu-tanh": "GELUTanh", "geglu-tanh": "GELUTanh"}


def library() -> Any:
    """CTranslate2, or how to get it."""
    try:
        import ctranslate2
    except ImportError:
        raise ConfigError("CTranslate2 is not installed", remedy='pip install "regard[ctranslate2]"') from None
    return ctranslate2


def write(run: Run, draft: Path, *, say: Callable[[str], None]) -> None:
    """Makes a CTranslate2 folder of a run, and sees that it writes the same."""
    library()
    model = run.model
    if isinstance(model, CopyingTransformer):
        raise ConfigError("CTranslate2 does not copy from the source", got="copy = true", wanted="copy = false")
    if isinstance(model, Transformer):
        spec = _translator(run, model)
    elif type(model) is GPT:  # what is made in its frame attends in another way
        spec = _generator(run, model)
    else:
        got, wanted = run.recipe.family, "gpt, t5, transformer"
        raise ConfigError("CTranslate2 has no such model", got=got, wanted=f"a run of one of the families {wanted}")
    spec.validate()
    spec.optimize(None)
    spec.save(str(draft))
    write_tokenizers(run, draft)
    say(f"written:   {type(spec).__name__}")
    for line in _verify_translator(run, draft) if isinstance(model, Transformer) else _verify_generator(run, draft):
        say(line)


# --- writing ----------------------------------------------------------------------------------------------------------


def _translator(run: Run, model: Transformer) -> Any:
    specs = library().specs
    options = _options(run, model.source, model.encoder.blocks, model.encoder.norm)
    encoder = specs.TransformerEncoderSpec(**options)
    _embedding(encoder, encoder.embeddings[0], model.source)
    options = _options(run, model.target, model.decoder.blocks, model.decoder.norm)
    decoder = specs.TransformerDecoderSpec(**options)
    _embedding(decoder, decoder.embeddings, model.target)
    for spec, stack in ((encoder, model.encoder), (decoder, model.decoder)):
        for layer, block in zip(spec.layer, stack.blocks, strict=True):
            _layer(layer, block)
    for spec, stack in ((encoder, model.encoder), (decoder, model.decoder)):
        if stack.norm is not None:
            _norm(spec.layer_norm, stack.norm.norm if isinstance(stack.norm, End) else stack.norm)
    if isinstance(model.decoder.norm, End) and model.decoder.norm.scale != 1:
        decoder.scale_outputs = float(model.decoder.norm.scale)  # before a tied output
    _linear(decoder.projection, model.head)
    spec = specs.TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = _eps(model)
    source, target = (list(tokenizers_of(run).values()) * 2)[:2]
    spec.register_source_vocabulary(_vocabulary(source))
    spec.register_target_vocabulary(_vocabulary(target))
    tokens, special = _vocabulary(target), target.specials
    spec.config.bos_token = spec.config.decoder_start_token = tokens[special.start]
    spec.config.eos_token, spec.config.unk_token = tokens[special.end], _unknown(target)
    return spec


def _generator(run: Run, model: GPT) -> Any:
    specs = library().specs
    options = _options(run, model.source, model.blocks, model.norm)
    decoder = specs.TransformerDecoderSpec(**options, with_encoder_attention=False)
    _embedding(decoder, decoder.embeddings, model.source)
    for layer, block in zip(decoder.layer, model.blocks, strict=True):
        _layer(layer, block)
    _norm(decoder.layer_norm, model.norm)
    _linear(decoder.projection, model.head)
    spec = specs.TransformerDecoderModelSpec(decoder)
    spec.config.layer_norm_epsilon = _eps(model)
    (tokenizer,) = tokenizers_of(run).values()
    tokens, special = _vocabulary(tokenizer), tokenizer.specials
    spec.register_vocabulary(tokens)
    spec.config.bos_token, spec.config.eos_token = tokens[special.start], tokens[special.end]
    spec.config.unk_token = _unknown(tokenizer)
    return spec


def _options(run: Run, embedding: Any, blocks: Iterable[Any], end: nn.Module | None) -> dict[str, Any]:
    """What a stack's spec is made with: its sizes, and where its tokens say that they stand."""
    layers = list(blocks)
    first = layers[0]
    attention, relative = first.attention.body, first.attention.body.relative
    if not isinstance(relative, (Rotary, T5Bias, type(None))):
        wanted = "sinusoidal, sinusoidal-halves, learned, rotary, t5 or none"
        raise ConfigError("CTranslate2 has no such positions", got=run.recipe.model.position, wanted=wanted)
    activation = library().specs.Activation[ACTIVATIONS[run.recipe.model.activation]]
    found: dict[str, Any] = {
        "num_layers": len(layers),
        "num_heads": attention.num_heads,
        "pre_norm": first.attention.norm_first,
        "activation": activation,
        "layernorm_embedding": embedding.norm is not None,
        "relative_attention_bias": isinstance(relative, T5Bias),
        "ffn_glu": first.feedforward.body.gated,
        "rms_norm": isinstance(first.attention.norm, nn.RMSNorm),
    }
    if attention.num_kv_heads != attention.num_heads:
        found["num_heads_kv"] = attention.num_kv_heads
    if attention.num_heads * attention.head_dim != attention.out.out_features:
        found["head_dim"] = attention.head_dim
    if isinstance(relative, Rotary):
        found |= {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": relative.base}
    return found


def _embedding(spec: Any, tokens: Any, embedding: Any) -> None:
    tokens.weight = _array(embedding.tokens.weight)
    spec.scale_embeddings = float(embedding.scale)
    if embedding.norm is not None:
        _norm(spec.layernorm_embedding, embedding.norm)
    if embedding.position is not None or "position_encodings" in vars(spec):
        spec.position_encodings.encodings = _array(_places(embedding))


def _places(embedding: Any) -> Tensor:
    """What is added at each place."""
    position = embedding.position
    if isinstance(position, Learned):
        return position.weight[position.first :]
    if position is None:
        return torch.zeros(PLACES, embedding.tokens.embedding_dim)
    return position(torch.arange(PLACES))  # type: ignore[no-any-return]


def _layer(spec: Any, block: Any) -> None:
    _attention(spec.self_attention, block.attention, block.attention.body.qkv)
    if "cross" in dict(block.named_children()):
        _attention(spec.attention, block.cross, block.cross.body.q, block.cross.body.kv)
    feedforward: FeedForward = block.feedforward.body
    _norm(spec.ffn.layer_norm, block.feedforward.norm)
    if feedforward.gated:
        weights, bias = feedforward.up.weight.chunk(2), feedforward.up.bias
        biases = (None, None) if bias is None else bias.chunk(2)
        for part, *both in zip((spec.ffn.linear_0, spec.ffn.linear_0_noact), weights, biases, strict=True):
            _put(part, *both)
    else:
        _linear(spec.ffn.linear_0, feedforward.up)
    _linear(spec.ffn.linear_1, feedforward.down)


def _attention(spec: Any, sublayer: Any, *projections: nn.Linear) -> None:
    body = sublayer.body
    _norm(spec.layer_norm, sublayer.norm)
    for part, linear in zip(spec.linear, (*projections, body.out), strict=True):
        _linear(part, linear)
    if body.scale is not None:
        spec.queries_scale = float(body.scale)
    relative = dict(body.named_children()).get("relative")
    if isinstance(relative, T5Bias):
        import numpy as np

        spec.relative_attention_bias = _array(relative.weight)
        spec.relative_attention_max_distance = np.int32(relative.max_distance)


def _linear(spec: Any, linear: Any) -> None:
    _put(spec, linear.weight, linear.bias)


def _put(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _array(weight)
    if bias is not None:
        spec.bias = _array(bias)


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma = _array(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = _array(torch.zeros_like(norm.weight) if norm.bias is None else norm.bias)


def _eps(model: nn.Module) -> float:
    found = {norm.eps for norm in model.modules() if isinstance(norm, (nn.LayerNorm, nn.RMSNorm))}
    if len(found) > 1:
        raise ConfigError("CTranslate2 has one epsilon for all norms", got=sorted(map(str, found)), wanted="one")
    (eps,) = found
    return float(eps or 0.0)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().cpu().contiguous().numpy()


def _vocabulary(tokenizer: Tokenizer) -> list[str]:
    """Each id's piece; an id that the tokenizer has no piece for is one of the model's alone."""
    return [tokenizer.inner.id_to_token(i) or f"<unused_{i}>" for i in range(tokenizer.size)]


def _unknown(tokenizer: Tokenizer) -> str:
    special = tokenizer.specials
    return _vocabulary(tokenizer)[special.end if special.unk is None else special.unk]


# --- verifying --------------------------------------------------------------------------------------------------------


def _verify_translator(run: Run, folder: Path) -> Iterable[str]:
    """The log-probabilities of given targets, then what is written for random sources, greedily and by beams."""
    rows, special = check.random_rows(run), specials_of(run)
    assert rows.targets is not None
    source, target = (_vocabulary(each) for each in (list(tokenizers_of(run).values()) * 2)[:2])
    translator = library().Translator(str(folder), compute_type="float32", inter_threads=1, intra_threads=1)
    sources = [[*row[:n].tolist(), special.end] for row, n in zip(rows.ids, rows.lengths.tolist(), strict=True)]
    read = [[source[i] for i in row] for row in sources]
    outputs = [row[1:].tolist() for row in rows.targets]
    scored = translator.score_batch(read, [[target[i] for i in row] for row in outputs])
    found = torch.tensor([each.log_probs for each in scored])
    wanted = _log_probs(run, sources, outputs)
    yield f"scores:    {check.apart(found, wanted, NEAR, 'log-probabilities of ours', folder)}"
    never = [[target[i]] for i in {special.start, special.pad} - {special.end}]
    for beam in (1, 4):
        limits = {"min_decoding_length": 0, "max_decoding_length": 16}
        theirs = translator.translate_batch(
            read, beam_size=beam, length_penalty=0, suppress_sequences=never or None, **limits
        )
        config = DecodeConfig(beam=beam, length_penalty=0.0, max_length=16, max_ratio=1e6)
        ours = decode(run.model, sources, config, bos=special.start, eos=special.end, pad=special.pad)  # type: ignore[arg-type]
        pairs = [(each.hypotheses[0], [target[i] for i in row[0].ids]) for each, row in zip(theirs, ours, strict=True)]
        yield _same_outputs(pairs, folder) if beam == 1 else _alike(pairs, beam)


def _log_probs(run: Run, sources: list[list[int]], outputs: list[list[int]]) -> Tensor:
    """The log-probability of each token of each output, and of its end."""
    special = specials_of(run)
    found = []
    for source, output in zip(sources, outputs, strict=True):
        logits = run.logits(torch.tensor([source]), torch.tensor([[special.start, *output]]))[0]
        found.append(logits.log_softmax(-1).gather(1, torch.tensor([*output, special.end])[:, None])[:, 0])
    return torch.stack(found)


def _verify_generator(run: Run, folder: Path) -> Iterable[str]:
    """Whole logits, then how random texts go on, greedily."""
    rows, special = check.random_rows(run), specials_of(run)
    (tokenizer,) = tokenizers_of(run).values()
    tokens, most = _vocabulary(tokenizer), rows.ids.shape[1]
    generator = library().Generator(str(folder), compute_type="float32", inter_threads=1, intra_threads=1)
    texts = [row[:n].tolist() for row, n in zip(rows.ids, rows.lengths.tolist(), strict=True)]
    logits = torch.from_numpy(_numpy(generator.forward_batch(texts)))
    wanted = run.logits(rows.ids, lengths=rows.lengths)
    yield f"logits:    {check.apart(logits[rows.real], wanted[rows.real], NEAR, 'logits of ours', folder)}"
    prompts = [row[: max(1, most // 2)] for row in texts]
    options: dict[str, Any] = {"max_length": most // 2, "sampling_topk": 1, "include_prompt_in_result": False}
    never = [[tokens[i]] for i in {special.pad} - {special.end}]
    read = [[tokens[i] for i in row] for row in prompts]
    theirs = [generator.generate_batch([row], suppress_sequences=never or None, **options)[0] for row in read]
    config = DecodeConfig(method="greedy", max_length=most // 2)
    ours = decode(run.model, [()] * 4, config, bos=None, eos=special.end, pad=special.pad, prefixes=prompts)  # type: ignore[arg-type]
    written = [[tokens[i] for i in row[0].ids[len(prompt) :]] for row, prompt in zip(ours, prompts, strict=True)]
    pairs = [(each.sequences[0], mine) for each, mine in zip(theirs, written, strict=True)]
    yield _same_outputs(pairs, folder)


def _numpy(view: Any) -> Any:
    import numpy as np

    return np.array(view)


def _same_outputs(pairs: list[tuple[list[str], list[str]]], where: Path) -> str:
    apart = [(theirs, ours) for theirs, ours in pairs if theirs != ours]
    if apart:
        theirs, ours = (" ".join(each) for each in apart[0])
        what = "the converted model writes something else (greedily)"
        raise RunError(what, got=theirs[:200], wanted=ours[:200], where=where)
    return f"greedy:    {len(pairs)} outputs are the same"


def _alike(pairs: list[tuple[list[str], list[str]]], beam: int) -> str:
    """Beams of the same model may end apart: theirs and ours have other rules for when a search is over."""
    return f"beam {beam}:    {sum(theirs == ours for theirs, ours in pairs)} of {len(pairs)} outputs are the same"
