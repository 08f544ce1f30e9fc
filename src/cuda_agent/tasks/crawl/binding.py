"""A seed with chosen sizes and arguments: its source and its tensors."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cuda_agent.core.errors import UsageError
from cuda_agent.tasks.expressions import evaluate, fill, names_in, placeholders, shape
from cuda_agent.tasks.records import Port, Seed


@dataclass(frozen=True)
class Binding:
    """A seed with values. `names` has the dimensions and parameters; `leading` replaces the `*` of its layouts."""

    seed: Seed
    names: Mapping[str, Any]
    leading: tuple[int, ...]

    def layer(self, scope: dict[str, Any]) -> Any:
        """Returns a new layer, or None for a function. Raises UsageError, and what the library raises."""
        written = {name: repr(value) for name, value in self.names.items()}
        return None if self.seed.constructor is None else eval(fill(self.seed.constructor, written), scope).eval()

    def call(self, scope: dict[str, Any], layer: Any, inputs: dict[str, torch.Tensor]) -> Any:
        """Returns the output. Raises UsageError, and what the library raises."""
        written = {name: repr(value) for name, value in self.names.items()} | {"layer": "layer"}
        source = fill(self.seed.call, written | {port.name: port.name for port in self.seed.ports})
        return eval(source, scope | inputs | {"layer": layer})

    def inputs(self, device: str = "cpu") -> dict[str, torch.Tensor]:
        """Returns fresh tensors for all ports, drawn with torch's generator."""
        return {port.name: self._tensor(port, device) for port in self.seed.ports}

    def cost(self, inputs: int, weights: int, outputs: int) -> tuple[float, float]:
        """Returns (FLOPs, bytes moved). Raises UsageError."""
        names = {**self.names, "inputs": inputs, "weights": weights, "outputs": outputs}
        return float(evaluate(self.seed.flops, names)), float(evaluate(self.seed.moved, names))

    def _tensor(self, port: Port, device: str) -> torch.Tensor:
        sizes, dtype = shape(port.layout, self.names, self.leading), getattr(torch, port.dtype)
        if port.values == "indices":
            high = int(evaluate(port.high or "2", self.names))
            return torch.randint(0, high, sizes, dtype=dtype, device=device)
        if port.values == "mask":
            return (torch.rand(sizes, device=device) > 0.5).to(dtype)
        if port.values == "positions":
            return torch.arange(sizes[-1], dtype=dtype, device=device).expand(sizes)
        return _DRAWS[port.values](sizes, device).to(dtype)


_DRAWS = {
    "normal": lambda sizes, device: torch.randn(sizes, device=device),
    "uniform": lambda sizes, device: torch.rand(sizes, device=device),
    "positive": lambda sizes, device: torch.rand(sizes, device=device) + 0.1,
    "probabilities": lambda sizes, device: torch.randn(sizes, device=device).softmax(-1),
    "log_probabilities": lambda sizes, device: torch.randn(sizes, device=device).log_softmax(-1),
    "signs": lambda sizes, device: torch.randint(0, 2, sizes, device=device) * 2.0 - 1.0,
}


def unbound(seed: Seed) -> tuple[str, ...]:
    """Returns the sizes that the seed uses but that are in no port and no parameter, so nothing gives them a value."""
    layouts = " ".join(port.layout for port in seed.ports)
    bound = {*names_in(layouts), *(item.name for item in seed.parameters), *(port.name for port in seed.ports)}
    choices = [choice for parameter in seed.parameters for choice in parameter.choices]
    texts = [*seed.where, seed.flops, seed.moved, *choices, *(port.high or "" for port in seed.ports)]
    used = {
        *placeholders(seed.call),
        *placeholders(seed.constructor or ""),
        *(n for text in texts for n in names_in(text)),
    }
    return tuple(sorted(used - bound - {"layer", "inputs", "outputs", "weights"}))


def bindings(seed: Seed, small: Mapping[str, int], leading: tuple[int, ...]) -> Iterator[Binding]:
    """Yields a binding with the first choice of every parameter, then one for each other choice; only those whose
    conditions hold. Raises UsageError when an expression can't be evaluated, or no choice meets the conditions."""
    wanted: list[dict[str, int]] = [{}]
    wanted += [{item.name: at} for item in seed.parameters for at in range(1, len(item.choices))]
    found = False
    for picks in wanted:
        names: dict[str, Any] = dict(small)
        for parameter in seed.parameters:
            names[parameter.name] = evaluate(parameter.choices[picks.get(parameter.name, 0)], names)
        if all(evaluate(condition, names) for condition in seed.where):
            found = True
            yield Binding(seed, names, leading)
    if not found:
        raise UsageError(f"{seed.name}: no choice meets its conditions at small sizes", "Correct its page")
