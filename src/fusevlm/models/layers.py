"""Hidden states of chosen layers at the last position, without keeping all the others."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch

from fusevlm.errors import InputError


class LayerTap:
    """While open, remembers what chosen layers put out for the last token of each row.

    Layers are numbered as in transformers' ``hidden_states``: k is the output of decoder layer k,
    the last one is taken after the final norm. ``last`` and ``middle`` are names for the last and
    for the one halfway up.
    """

    def __init__(self, decoder: Any, layers: Sequence[str | int]) -> None:
        depth = len(decoder.layers)
        self.names = [str(layer) for layer in layers]
        self._modules = [_module(decoder, layer, depth) for layer in layers]
        self._found: dict[str, torch.Tensor] = {}
        self._hooks: list[Any] = []

    def __enter__(self) -> LayerTap:
        for name, module in zip(self.names, self._modules, strict=True):
            self._hooks.append(module.register_forward_hook(self._keep(name)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def states(self) -> dict[str, torch.Tensor]:
        """The states [rows, d] of the latest forward pass, by layer name."""
        return dict(self._found)

    def _keep(self, name: str) -> Any:
        def hook(_: Any, __: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            self._found[name] = hidden[:, -1]

        return hook


def layer_index(layer: str | int, depth: int) -> int:
    """The place of a layer among ``hidden_states``, 1 to depth."""
    named = {"last": depth, "middle": max(1, depth // 2)}
    index = named.get(layer, layer) if isinstance(layer, str) else layer
    if isinstance(index, str):
        raise InputError(f"layer is {layer!r}; expected 'last', 'middle' or a number.")
    if index < 0:
        index += depth + 1
    if not 1 <= index <= depth:
        raise InputError(f"layer is {layer}; the decoder has layers 1 to {depth}.")
    return index


def _module(decoder: Any, layer: str | int, depth: int) -> Any:
    index = layer_index(layer, depth)
    return decoder.norm if index == depth else decoder.layers[index - 1]
