"""A run as ONNX graphs, which take any number of rows of any length.

    encoder, causal:   model.onnx    input_ids, attention_mask -> logits (last_hidden_state, where there is no head)
    encoder-decoder:   encoder.onnx  input_ids, attention_mask -> last_hidden_state
                       decoder.onnx  input_ids, encoder_hidden_states, encoder_attention_mask -> logits

Rows are padded at the right. A causal model needs no mask: no token sees what comes after it.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.convert import check
from regard.convert.check import Rows
from regard.convert.tokenizers import kind_of, special_keys, specials_of, write_tokenizers
from regard.decode.config import DecodeConfig
from regard.decode.search import decode
from regard.errors import ConfigError, RunError
from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.output import NoHead
from regard.models.transformer import CopyingTransformer, Transformer
from regard.run import Run
from regard.train.checkpoint import write_text
from regard.train.finetune import body_of
from regard.types import Batch, Sequences

NEAR = 1e-4
LONG = 200  # tokens of rows that are traced: where a model cuts texts into chunks, one chunk would be all that is seen
SHORT = 24  # of those that are verified beside them
WITHOUT = ("recurrent", "reformer")  # loops over a text, and sorting by hashes, are nothing that a graph says
LARGE = 2**30  # bytes: one file of ONNX holds two of these; beyond, the weights stand beside it


def library() -> Any:
    """onnxruntime, once all that is needed is seen to be there."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError("ONNX is not installed", got=error, remedy='pip install "regard[onnx]"') from None
    return onnxruntime


class Part(nn.Module):
    """A model, or a part of one, as a graph: tensors in, one tensor out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model


class Reader(Part):
    """A model that reads a text."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.model.hidden(Batch(Sequences(input_ids, attention_mask.sum(1))))
        return hidden if isinstance(self.model.head, NoHead) else self.model.head(hidden)  # type: ignore[no-any-return]


class Continuer(Part):
    """A model that continues a text."""

    def forward(self, input_ids: Tensor) -> Tensor:
        lengths = torch.full_like(input_ids[:, 0], input_ids.shape[1])
        return self.model.head(self.model.hidden(Batch(Sequences(input_ids, lengths))))  # type: ignore[no-any-return]


class Encoder(Part):
    """The part of an encoder-decoder that reads."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model.encode(Sequences(input_ids, attention_mask.sum(1)))  # type: ignore[no-any-return]


class Decoder(Part):
    """The part of an encoder-decoder that writes."""

    def forward(self, input_ids: Tensor, encoder_hidden_states: Tensor, encoder_attention_mask: Tensor) -> Tensor:
        hidden = self.model.decode(input_ids, encoder_hidden_states, encoder_attention_mask.sum(1))
        return self.model.head(hidden)  # type: ignore[no-any-return]


def write(run: Run, draft: Path, *, say: Callable[[str], None]) -> None:
    """Makes a folder of ONNX graphs of a run, and sees that they compute and write the same."""
    if body_of(run.model)[1]:
        raise ConfigError(
            "there is no ONNX form of what a task puts over its model",
            got=f"a run of {run.recipe.task_name}",
            wanted="a run of the model itself",
            remedy="convert the run that it was fine-tuned from",
        )
    if run.recipe.family in WITHOUT and kind_of(run) != "seq2seq":  # of those the message names what there is
        wanted = "a family of attention or convolutions"
        raise ConfigError("there is no ONNX form of this family", got=run.recipe.family, wanted=wanted)
    library()
    rows, kind = check.random_rows(run, LONG), kind_of(run)
    with _plain_attention(run.model):
        if kind == "seq2seq":
            _write_two(run, draft, rows)
        elif kind == "causal":
            _export(Continuer(run.model), {"input_ids": rows.ids}, "logits", draft / "model.onnx")
        else:
            given = {"input_ids": rows.ids, "attention_mask": rows.real.long()}
            _export(Reader(run.model), given, _output(run), draft / "model.onnx")
    write_tokenizers(run, draft)
    if kind != "encoder":
        import json

        write_text(draft / "generation_config.json", json.dumps(special_keys(run), indent=2) + "\n")
    say(f"written:   {', '.join(sorted(path.name for path in draft.glob('*.onnx')))}")
    for line in _verify(run, draft, rows):
        say(line)


def _output(run: Run) -> str:
    return "last_hidden_state" if isinstance(run.model.head, NoHead) else "logits"


def _write_two(run: Run, draft: Path, rows: Rows) -> None:
    model, mask = run.model, rows.real.long()
    assert rows.targets is not None
    if not isinstance(model, Transformer) or isinstance(model, CopyingTransformer):
        got, wanted = run.recipe.family, "t5, transformer"
        if isinstance(model, Transformer):
            got, wanted = "copy = true", "copy = false"
        raise ConfigError("there is no ONNX form of this encoder-decoder", got=got, wanted=wanted)
    _export(
        Encoder(model), {"input_ids": rows.ids, "attention_mask": mask}, "last_hidden_state", draft / "encoder.onnx"
    )
    memory = model.encode(Sequences(rows.ids, rows.lengths)).detach()
    given = {"input_ids": rows.targets, "encoder_hidden_states": memory, "encoder_attention_mask": mask}
    _export(Decoder(model), given, "logits", draft / "decoder.onnx")


def _export(module: nn.Module, given: Mapping[str, Tensor], output: str, path: Path) -> None:
    """Traces a module with rows and lengths left open; what is read together has one length."""
    rows, shapes = torch.export.Dim.DYNAMIC, {}
    for name, tensor in given.items():
        shapes[name] = {0: rows, 1: rows, **dict.fromkeys(range(2, tensor.dim()), torch.export.Dim.STATIC)}
    large = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values()) > LARGE
    try:
        with _quiet(), torch.inference_mode(False), torch.no_grad():
            torch.onnx.export(
                module.eval(),
                kwargs=dict(given),
                f=path,
                input_names=list(given),
                output_names=[output],
                dynamic_shapes=shapes,
                dynamo=True,
                external_data=large,
                verbose=False,
            )
    except Exception as error:  # whatever PyTorch cannot say in ONNX, as recurrent layers for batches of any size
        reason = str(error.__cause__ or error).strip().split("\n")[0]
        what = "PyTorch has no ONNX form of this model"
        raise ConfigError(what, got=reason, wanted="a family of attention or convolutions") from None


@contextlib.contextmanager
def _plain_attention(model: nn.Module) -> Iterator[None]:
    """The attention of the formula: every operation of it is one that ONNX has."""
    layers = [layer for layer in model.modules() if isinstance(layer, (SelfAttention, CrossAttention))]
    before = [layer.backend for layer in layers]
    for layer in layers:
        layer.backend = "reference"
    try:
        yield
    finally:
        for layer, backend in zip(layers, before, strict=True):
            layer.backend = backend


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter without what it says to its own makers."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


# --- verifying --------------------------------------------------------------------------------------------------------


class Graph:
    """An ONNX file that is asked with tensors."""

    def __init__(self, path: Path) -> None:
        options = library().SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.session = library().InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def __call__(self, **given: Tensor) -> Tensor:
        (found,) = self.session.run(None, {name: tensor.numpy() for name, tensor in given.items()})
        return torch.from_numpy(found)


def _verify(run: Run, folder: Path, traced: Rows) -> Iterator[str]:
    """Whole logits, for rows of other numbers and lengths than those that were traced; then greedy outputs."""
    kind, short = kind_of(run), check.random_rows(run, SHORT)
    width = short.ids.shape[1]
    rows = Rows(short.ids[:3], short.lengths[:3], None if short.targets is None else short.targets[:3])
    logits = _asked(run, folder)
    found, wanted = [], []
    cuts = [(rows, length) for length in dict.fromkeys((width, max(1, width // 3), 1))]
    for each, length in [*cuts, (traced, traced.ids.shape[1])]:
        cut = Rows(each.ids[:, :length], each.lengths.clamp(max=length), each.targets)
        ours = run.hidden if _output(run) == "last_hidden_state" else run.logits
        everywhere = cut.real if cut.targets is None else slice(None)
        found.append(logits(cut)[everywhere].flatten())
        wanted.append(ours(cut.ids, cut.targets, lengths=cut.lengths)[everywhere].flatten())
    line = check.apart(torch.cat(found), torch.cat(wanted), NEAR, f"{_output(run)} of ours", folder)
    yield f"logits:    {line}"
    if kind != "encoder":
        yield _verify_greedy(run, folder, rows, logits)


def _asked(run: Run, folder: Path) -> Callable[[Rows], Tensor]:
    """The graphs of a folder as one function of rows."""
    if kind_of(run) == "causal":
        model = Graph(folder / "model.onnx")
        return lambda rows: model(input_ids=rows.ids)
    if kind_of(run) == "encoder":
        model = Graph(folder / "model.onnx")
        return lambda rows: model(input_ids=rows.ids, attention_mask=rows.real.long())
    encoder, decoder = Graph(folder / "encoder.onnx"), Graph(folder / "decoder.onnx")

    def both(rows: Rows) -> Tensor:
        mask = rows.real.long()
        memory = encoder(input_ids=rows.ids, attention_mask=mask)
        assert rows.targets is not None
        return decoder(input_ids=rows.targets, encoder_hidden_states=memory, encoder_attention_mask=mask)

    return both


def _verify_greedy(run: Run, folder: Path, rows: Rows, logits: Callable[[Rows], Tensor]) -> str:
    special, most, writes = specials_of(run), max(1, rows.ids.shape[1] // 2), rows.targets is not None
    # what `decode` never writes
    never = list({special.pad, *([special.start] if writes else [])} - {special.end})
    options: dict[str, Any] = {"eos": special.end, "pad": special.pad}
    config = DecodeConfig(method="greedy", max_length=most, max_ratio=1e6)
    for row, n in zip(rows.ids, rows.lengths.tolist(), strict=True):
        text = [*row[: n - 1].tolist(), special.end] if writes else row[: min(n, most)].tolist()
        begun = [special.start] if writes else text
        ids = list(begun)
        while len(ids) - len(begun) < most:
            given = torch.tensor([text if writes else ids])
            targets = torch.tensor([ids]) if writes else None
            after = logits(Rows(given, torch.tensor([given.shape[1]]), targets))[0, -1]
            after[never] = -torch.inf
            if int(after.argmax()) == special.end:
                break
            ids.append(int(after.argmax()))
        if writes and text == [special.end]:  # an empty text has the empty output
            continue
        source, prefix = (text, ()) if writes else ((), text)
        found = decode(run.model, [source], config, bos=special.start if writes else None, prefixes=[prefix], **options)  # type: ignore[arg-type]
        wanted = list(found[0][0].ids[len(prefix) :])
        if ids[len(begun) :] != wanted:
            what = "the converted model writes something else (greedy)"
            raise RunError(what, got=ids[len(begun) :], wanted=wanted, where=folder)
    return f"greedy:    {len(rows.ids)} outputs are the same"
