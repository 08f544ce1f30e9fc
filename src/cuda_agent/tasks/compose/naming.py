"""Names a composed module: its sizes, layers and tensors."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.core.assets import tables
from cuda_agent.tasks.compose.affinity import role
from cuda_agent.tasks.compose.chain import ChainStep, used_names
from cuda_agent.tasks.compose.layouts import Unsolvable, leading
from cuda_agent.tasks.compose.sizes import word_for
from cuda_agent.tasks.compose.sizing import Sized
from cuda_agent.tasks.expressions import dimensions, names_in
from cuda_agent.tasks.records import Port, Seed

#: Parameters that are sizes, so constants of the module; other parameters are written in place.
_SIZE = re.compile(
    r"^(out_|in\d?_|hidden|embed|intermediate|num_(embeddings|heads|experts|classes)|d_model|vocabulary|heads|kv_heads|experts|active|expert_size)"
)
_TABLES = tables(__file__)
_LAYERS: dict[str, str] = _TABLES["layers"]
_BY_OPERATOR: dict[str, str] = _TABLES["by_operator"]
_SECOND: dict[str, list[str]] = {operator: text.split() for operator, text in _TABLES["second"].items()}
_AGAIN: dict[str, list[str]] = {name: text.split() for name, text in _TABLES["again"].items()}
_VAGUE = frozenset(("y", "z", "other", "input2", "b"))
_MORE = ("y", "z", "w", "u", "v")
#: Names for a second operand with a matrix for each batch element, which isn't a weight.
_BATCHED = ["other", "keys"]
#: The largest change of a size by padding, or by a window without it.
_MARGIN = 16
#: The largest size of an input that is written as a number without a name.
_PLAIN = 16
#: The largest factor by which a size is written as a multiple or a part of a named one.
_MOST_TIMES = 4


@dataclass
class NamedStep:
    """A step with its names. `texts` has the name or text of each dimension or parameter, and `sizes` those that are
    constants. `ports` has the variable of each port but the first. `layer` is the attribute."""

    step: ChainStep
    layer: str
    ports: dict[str, str]
    texts: dict[str, str]
    sizes: frozenset[str]
    #: The text of each further port's shape, in constants.
    shapes: dict[str, tuple[str, ...]]
    #: The names of its first tensor's dimensions, where they have some.
    dims: tuple[str | None, ...] = ()


@dataclass
class Names:
    """The names of a whole module. `constants` maps a lower-case name to its size, in order. `first` is the variable of
    the first tensor, and `first_shape` its shape in constants."""

    constants: dict[str, int] = field(default_factory=dict)
    steps: list[NamedStep] = field(default_factory=list)
    first: str = "x"
    first_shape: tuple[str, ...] = ()
    #: The names of the current step, because a constant may be renamed meanwhile.
    scopes: list[dict[Any, Any]] = field(default_factory=list)

    def add(self, word: str, size: int) -> str:
        """Adds a constant with this name, or a similar one where the name is taken."""
        if word.startswith("out_") and word in self.constants:
            return _parameter(self, word, size)
        for name in (word, f"out_{word}", f"{word}_2", f"{word}_3"):
            if name not in self.constants:
                self.constants[name] = size
                return name
        raise Unsolvable(f"too many sizes are called {word}")


def name(sized: Sized) -> Names:
    """Returns names for the whole chain. Raises Unsolvable where there are no good ones."""
    names = Names()
    symbols = {item: names.add(word, sized.sizes[at, item]) for (at, item), word in sized.named.items() if at == 0}
    first = sized.plan.links[0].seed.ports[0]
    lead = [symbols[word] for word in sized.plan.lead]
    shape = [*lead, *(_written(text, symbols) for text in dimensions(first.layout)[1])]
    names.first_shape = tuple(constant(text) for text in shape)
    names.first = "x" if first.name in ("x", "input", "self") else first.name
    taken = {names.first, "x"}
    layers = _layer_names([step.seed for step in sized.steps])
    current: list[str | None] = [text if text in names.constants else None for text in shape]
    for position, (step, layer) in enumerate(zip(sized.steps, layers, strict=True)):
        free = {letter: key for letter in step.link.free if (key := (position, letter)) in sized.sizes}
        current = _step(names, sized, step, layer, current, free, taken)
    return names


def constant(text: str) -> str:
    """Returns the text of an expression with its names in capitals, like module-level constants."""
    return re.sub(r"[a-z_][a-z_0-9]*", lambda found: found[0].upper(), text)


def literal(value: Any) -> str:
    """Returns a value as code, with double quotes."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _step(
    names: Names, sized: Sized, step: ChainStep, layer: str, current: list[str | None],
    free: dict[str, tuple[int, str]], taken: set[str],
) -> list[str | None]:  # fmt: skip
    """Names one step. Returns the known names of its output's dimensions."""
    seed, first = step.seed, step.seed.ports[0]
    named = dimensions(first.layout)[1]
    known: dict[str, str] = {}
    derived: dict[str, str] = {}
    texts: dict[str, str] = {}
    held = dict(enumerate(current))
    names.scopes = [known, derived, texts, held]
    for text, symbol in zip(named, current[len(current) - len(named) :], strict=True):
        if text.isidentifier() and symbol is not None:
            (known if symbol.isidentifier() else derived)[text] = symbol
    for letter, key in free.items():
        known[letter] = names.add(sized.named[key], sized.sizes[key]) if key[0] else _same(names, sized, key)
    needed = [item for item in used_names(seed) if item in step.names]
    sizes = set(known)
    texts.update(known)
    for letter in _dimensions(seed):
        if letter not in texts and letter in needed:
            texts[letter] = names.add(_beside(names, word_for(seed, letter)), step.names[letter])
            sizes.add(letter)
    for parameter, choice in zip(seed.parameters, step.link.choices, strict=True):
        size = step.names[parameter.name]
        if choice in known:
            texts[parameter.name] = known[choice]
            sizes.add(parameter.name)
        elif _SIZE.match(parameter.name) and type(size) is int:
            texts[parameter.name] = _parameter(names, parameter.name, size)
            sizes.add(parameter.name)
        elif not choice.isidentifier() and (used := names_in(choice)) and all(item in known for item in used):
            texts[parameter.name] = _written(choice, known)
        else:
            texts[parameter.name] = literal(size)
    current = list(held.values())
    ports = {port.name: _port(seed, port, taken) for port in seed.ports[1:]}
    before = [
        constant(symbol) if symbol else str(size)
        for symbol, size in zip(current, leading(first.layout, step.shapes[0]), strict=False)
    ]
    shapes = {port.name: _shape(port, derived | texts, step, before) for port in seed.ports[1:]}
    names.steps.append(NamedStep(step, layer, ports, texts, frozenset(sizes), shapes, tuple(current)))
    return _after(step, texts, sizes, current)


def _same(names: Names, sized: Sized, key: tuple[int, str]) -> str:
    """Returns the constant that was made for an unknown of the first step."""
    word, size = sized.named[key], sized.sizes[key]
    return next(found for found in (word, f"out_{word}") if names.constants.get(found) == size)


def _beside(names: Names, word: str) -> str:
    return f"out_{word}" if word in names.constants else word


def _parameter(names: Names, word: str, size: int) -> str:
    """Adds a size of a layer's constructor. The last layer of a chain has the plain name, and earlier ones
    `hidden_…`."""
    if word in names.constants:
        earlier = f"hidden_{word.removeprefix('out_')}"
        if earlier in names.constants:
            raise Unsolvable(f"too many sizes are called {word}")
        _rename(names, word, earlier)
    names.constants[word] = size
    return word


def _rename(names: Names, old: str, new: str) -> None:
    names.constants = {new if item == old else item: size for item, size in names.constants.items()}
    for scope in names.scopes:
        scope.update({key: re.sub(rf"\b{old}\b", new, text) for key, text in scope.items() if text})
    for step in names.steps:
        step.texts = {key: re.sub(rf"\b{old}\b", new, text) for key, text in step.texts.items()}
        step.shapes = {
            key: tuple(re.sub(rf"\b{constant(old)}\b", constant(new), text) for text in shape)
            for key, shape in step.shapes.items()
        }


def _dimensions(seed: Seed) -> list[str]:
    return list(dict.fromkeys(item for port in seed.ports for item in names_in(port.layout)))


def _shape(port: Port, texts: dict[str, str], step: ChainStep, before: Sequence[str]) -> tuple[str, ...]:
    starred, named = dimensions(port.layout)
    written = {item: texts.get(item, str(step.names[item])) for text in named for item in names_in(text)}
    found = [constant(_written(text, written)) for text in named]
    if any(text.isdecimal() and int(text) > _PLAIN and text not in named for text in (*found, *before)):
        raise Unsolvable("an input has a size without a name")
    return (*(before if starred else ()), *found)


def _written(expression: str, texts: dict[str, str]) -> str:
    """Returns the expression with its names replaced, and spaces around operators: `2*D` is `2 * features`."""
    alone = expression.strip().isidentifier()

    def text(found: re.Match[str]) -> str:
        own = texts.get(found[0], found[0])
        return own if alone or re.fullmatch(r"\w+", own) else f"({own})"

    replaced = re.sub(r"[A-Za-z_]\w*", text, expression)
    return re.sub(r"\s*(//|\*\*|[-+*/%])\s*", r" \1 ", replaced).strip()


def _after(step: ChainStep, texts: dict[str, str], sizes: Iterable[str], current: list[str | None]) -> list[str | None]:
    """Returns the names of the output's dimensions: from the parameters that set them, or from the input."""
    before, after = step.shapes[0], tuple(step.outputs[0].shape)
    made = {
        step.names[item]: texts[item] for item in sizes if item.startswith(("out_", "embed", "hidden", "num_classes"))
    }
    new = {step.names[item]: texts[item] for item in sizes if item in step.link.free}
    feature = (
        1 if step.seed.family in ("convolution", "normalization", "pooling") and len(after) > 2 else len(after) - 1
    )
    moved = _moved(before, after, current)
    found = []
    for place, size in enumerate(after):
        same = [symbol for symbol, old in zip(current, before, strict=True) if old == size]
        kept = moved[place] if moved[place] in same else None
        own = made.get(size) or _doubled(made, size) or new.get(size) if place == feature else None
        alike = next((text for text in same if text), None) if step.seed.family == "matrix product" else None
        found.append(own or kept or new.get(size) or alike or moved[place])
    return found


def _doubled(made: dict[Any, str], size: int) -> str | None:
    """Returns the text for twice a size of the layer, as both directions of a recurrent layer give."""
    return f"2 * {made[size // 2]}" if size % 2 == 0 and size // 2 in made else None


def _moved(before: Sequence[int], after: Sequence[int], current: Sequence[str | None]) -> list[str | None]:
    """Returns for each dimension of the output the text of the input's dimension that it equals, or is a part or a
    multiple of."""
    if tuple(before) == tuple(after):
        return list(current)
    if len(before) == len(after) and sorted(before) != sorted(after):
        return [_part(old, new, symbol) for old, new, symbol in zip(before, after, current, strict=True)]
    found: list[str | None] = []
    free = list(zip(before, current, strict=True))
    for size in after:
        pair = next((pair for pair in free if pair[0] == size), None)
        found.append(None if pair is None else pair[1])
        if pair is not None:
            free.remove(pair)
    return found


def _part(old: int, new: int, symbol: str | None) -> str | None:
    """Returns `height // 2` for half the size, `2 * height` for twice the size, `height + 2` after a padding."""
    if symbol is None or old == new:
        return symbol
    if not symbol.isidentifier() or new == 1 or max(old // new, new // old) > _MOST_TIMES:
        return None
    if old // new > 1 and old // (old // new) == new:
        return f"{symbol} // {old // new}"
    if new % old == 0:
        return f"{new // old} * {symbol}"
    return f"{symbol} {'+' if new > old else '-'} {abs(new - old)}" if abs(new - old) <= _MARGIN else None


def _layer_names(seeds: Sequence[Seed]) -> list[str]:
    """Returns the names of attributes: `conv`, `norm`, `linear`; repeated names are numbered."""
    plain = [_BY_OPERATOR.get(seed.operator) or _LAYERS.get(role(seed)) or _own_word(seed) for seed in seeds]
    held = [item for item, seed in zip(plain, seeds, strict=True) if seed.constructor is not None]
    counts: dict[str, int] = {}
    found = []
    for item, seed in zip(plain, seeds, strict=True):
        if seed.constructor is not None and held.count(item) > 1:
            counts[item] = counts.get(item, 0) + 1
            item = f"{item}{counts[item]}"
        found.append(item)
    return found


def _own_word(seed: Seed) -> str:
    """Returns a word from the operator; for a class of transformers its last word, as in `LlamaTopKRouter`."""
    if seed.library != "transformers":
        return _slug(seed.operator)
    if "Rotary" in seed.operator:
        return "rotary"
    return _slug(re.findall(r"[A-Z][a-z0-9]+|[A-Z]+(?![a-z])|[a-z0-9]+", seed.operator)[-1])


def _slug(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_").lower()


def _port(seed: Seed, port: Port, taken: set[str]) -> str:
    """Returns an unused variable for a further input."""
    wanted: list[str] = [port.name]
    if port.name in _VAGUE:
        own = _SECOND.get(seed.operator, ["other"] if port.name == "other" else [])
        wanted = [*(_BATCHED if port.layout.startswith("B ") and own[:1] == ["weight"] else own), *_MORE]
    for found in (*wanted, *_AGAIN.get(port.name, []), *(f"{port.name}{number}" for number in range(2, 9))):
        if found not in taken:
            taken.add(found)
            return found
    raise Unsolvable("too many inputs of one name")
