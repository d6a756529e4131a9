"""Fine-tuning: which weights of a base stay as they are, how fast the others learn, and low-rank changes of matrices.

A task may put a family's model inside a larger one, under the name `body`; what a base has is then the body's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from regard.config import key
from regard.errors import ConfigError, require
from regard.train import checkpoint

EMBEDDINGS = ("source", "target")  # what families call them
LAYERS = re.compile(r"layers:(\d+)(?:-(\d+))?")


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """The `[finetune]` section: a base whose weights, model and tokenizer are taken, and how they change."""

    base: str = key("", 'a run folder whose model is trained on; "" = none, the weights begin at random')
    weights: bool = key(True, "take its weights too; false: only its model and tokenizer, to compare with")
    freeze: tuple[str, ...] = key(
        (), 'what stays as it is: "embeddings", "layers:0-3" (counted from 0), or names of weights, with * and ?'
    )
    layer_decay: float = key(1.0, "each layer learns at this share of the rate of the one above it, as 0.9")
    lora_rank: int = key(0, "train changes of this rank in place of the base's matrices (LoRA), as 8; 0: all of them")
    lora_alpha: float = key(16.0, "the changes are scaled by lora_alpha / lora_rank")
    lora_targets: tuple[str, ...] = key(("*attention*", "*cross*"), "names of the linear layers that change")

    def __post_init__(self) -> None:
        require(0 < self.layer_decay <= 1, "layer_decay is a share", got=self.layer_decay, wanted="0 < x <= 1")
        require(self.lora_rank >= 0, "lora_rank is too small", got=self.lora_rank, wanted="0 (none) or for example 8")
        require(self.lora_alpha > 0, "lora_alpha is too small", got=self.lora_alpha, wanted="more than 0")
        used = [n for n, on in (("freeze", self.freeze), ("lora_rank", self.lora_rank)) if on]
        fits = self.weights or not used
        require(fits, "what is random should learn", got=f"{', '.join(used)} without weights", wanted="weights = true")
        used += ["layer_decay"] if self.layer_decay < 1 else []
        used += [] if self.weights else ["weights = false"]
        fields, low = type(self).__dataclass_fields__, () if self.lora_rank else ("lora_alpha", "lora_targets")
        alone = [name for name in low if getattr(self, name) != fields[name].default]
        require(not alone, "this is about changes of a low rank", got=", ".join(alone), wanted="lora_rank, as 8")
        need = "what is fine-tuned has a base"
        require(bool(self.base or not used), need, got=f"{', '.join(used)} without base", wanted='base = "runs/..."')


class Lora(nn.Module):
    """W + alpha / rank * up down (Hu et al. 2022); `up` begins at zero, so that the model begins as the base."""

    def __init__(self, weight: Tensor, rank: int, alpha: float) -> None:
        super().__init__()
        self.down = nn.Parameter(weight.new_empty(rank, weight.shape[1]))
        self.up = nn.Parameter(weight.new_zeros(weight.shape[0], rank))
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):  # as exact as the merged weight will be
            return weight + self.scale * (self.up @ self.down)


def body_of(model: nn.Module) -> tuple[nn.Module, str]:
    """The family's model in what a task made of it, and what its names begin with."""
    body = getattr(model, "body", None)
    return (body, "body.") if isinstance(body, nn.Module) else (model, "")


def prepare(model: nn.Module, config: FinetuneConfig, *, embedding_rate: float = 1.0) -> dict[str, float]:
    """Freezes weights and puts LoRA in; gives the share of the learning rate of each weight that learns, by name."""
    body, prefix = body_of(model)
    if config.lora_rank:
        body.requires_grad_(False)
        for name, module in _linears(body, config.lora_targets).items():
            _check_rank(name, module, config.lora_rank)
            change = Lora(module.weight, config.lora_rank, config.lora_alpha)
            parametrize.register_parametrization(module, "weight", change)
    for name in frozen_names(body, config.freeze):
        body.get_parameter(name).requires_grad_(False)
    learning = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    require(bool(learning), "nothing is left to learn", got=f"freeze = {list(config.freeze)}", wanted="some weights")
    embeddings = {name for name in learning if name.removeprefix(prefix).split(".")[0] in EMBEDDINGS}
    require(
        embedding_rate == 1 or bool(embeddings),
        "train.embedding_rate has no use here: no embedding learns",
        got=embedding_rate,
        wanted="1.0, as if unsaid, or neither lora_rank nor embeddings that are frozen",
    )
    depths = layer_depths(body)
    decays = {name: config.layer_decay ** depths.get(name.removeprefix(prefix), 0) for name in learning}
    return {name: decay * (embedding_rate if name in embeddings else 1.0) for name, decay in decays.items()}


def frozen_names(body: nn.Module, patterns: Iterable[str]) -> set[str]:
    """The parameters that the keys of `freeze` mean; one that means none is an error."""
    names = [name for name, _ in body.named_parameters()]
    found: set[str] = set()
    for pattern in patterns:
        if pattern == "embeddings":
            meant = {name for name in names if name.split(".")[0] in EMBEDDINGS}
        elif layers := LAYERS.fullmatch(pattern):
            meant = _of_layers(body, names, range(int(layers[1]), int(layers[2] or layers[1]) + 1))
        else:
            meant = {name for name in names if fnmatchcase(name, pattern)}
        if not meant:
            wanted = f'"embeddings", "layers:0-3", or names as {names[0]}'
            raise ConfigError("finetune.freeze means no weight", got=pattern, wanted=wanted)
        found |= meant
    return found


def layer_depths(body: nn.Module) -> dict[str, int]:
    """How deep each parameter of layers and embeddings lies: 1 in the top layer, one more in each below, and then the
    embeddings; what stands above the layers is at 0. Each of several stacks counts for itself."""
    sizes = _stacks(body)
    depths: dict[str, int] = {}
    for name, _ in body.named_parameters():
        place = _place(name, sizes)
        if place is not None:
            depths[name] = sizes[place[0]] - place[1]
        elif name.split(".")[0] in EMBEDDINGS:
            depths[name] = max(sizes.values(), default=0) + 1
    return depths


def plain_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights as a model without LoRA has them: what was learned is in the matrices."""
    found: dict[str, Tensor] = {}
    for name, tensor in checkpoint.weights(model).items():
        module, inside, rest = name.partition(".parametrizations.")
        if not inside:
            found[name] = tensor
        elif rest.endswith(".original"):
            attribute = rest.removesuffix(".original")
            found[f"{module}.{attribute}"] = getattr(model.get_submodule(module), attribute).detach()
    return found


def _check_rank(name: str, module: nn.Linear, rank: int) -> None:
    """Raises where a change would have a rank that the matrix itself cannot have."""
    rows, columns = module.weight.shape
    require(
        rank <= min(rows, columns),
        "finetune.lora_rank is more than a matrix has",
        got=f"{rank} for {name}, {rows} x {columns}",
        wanted=f"at most {min(rows, columns)}; small ranks are the use of LoRA, as 8",
        remedy="a smaller lora_rank, or lora_targets without it",
    )


def _linears(body: nn.Module, patterns: Iterable[str]) -> dict[str, nn.Linear]:
    named = {name: module for name, module in body.named_modules() if isinstance(module, nn.Linear)}
    found: dict[str, nn.Linear] = {}
    for pattern in patterns:
        found |= {name: module for name, module in named.items() if fnmatchcase(name, pattern)}
    if not found:
        wanted = ", ".join(list(named)[:4]) or "none: this family has none"
        raise ConfigError("finetune.lora_targets means no linear layer", got=list(patterns), wanted=f"{wanted}, ..")
    return found


def _of_layers(body: nn.Module, names: Iterable[str], wanted: range) -> set[str]:
    sizes = _stacks(body)
    most = max(sizes.values(), default=0)
    if not len(wanted) or wanted[-1] >= most:
        got = f"layers:{wanted.start}-{wanted.stop - 1}"
        there = f"layers:0-{most - 1}, counted from 0" if most else "names of weights: no layer stands above another"
        raise ConfigError("finetune.freeze: no such layers", got=got, wanted=there)
    places = ((name, _place(name, sizes)) for name in names)
    return {name for name, place in places if place is not None and place[1] in wanted}


def _stacks(body: nn.Module) -> dict[str, int]:
    """The lists of layers of a model, by name, with how many there are in each; not those inside of a layer."""
    found: dict[str, int] = {}
    for name, module in body.named_modules():
        inside = name.split(".")[0] in (*EMBEDDINGS, "head") or any(name.startswith(f"{outer}.") for outer in found)
        # the changes of LoRA are kept in such a list, too
        if isinstance(module, nn.ModuleList) and not isinstance(module, parametrize.ParametrizationList) and not inside:
            found[name] = len(module)
    return found


def _place(name: str, stacks: Iterable[str]) -> tuple[str, int] | None:
    """The stack and the layer that a parameter is of."""
    for stack in stacks:
        if name.startswith(f"{stack}."):
            return stack, int(name.removeprefix(f"{stack}.").split(".")[0])
    return None
