"""Guesses arguments of transformers layers from their names: values for constructors, tensors for `forward`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cuda_agent.tasks.crawl.trial import Unfit

_CONSTRUCTOR = {
    "layer_idx": "layer_idx=0", "layer_id": "layer_id=0", "layer_number": "layer_number=0", "i": "i=0",
    "hidden_size": "{D}", "dim": "{D}", "d_model": "{D}", "embed_dim": "{D}", "normalized_shape": "{D}",
    "num_channels": "{D}", "hidden_dim": "{D}", "in_features": "{D}", "out_features": "{D}", "channels": "{D}",
    "in_channels": "{D}", "out_channels": "{D}", "input_dim": "{D}", "output_dim": "{D}", "embedding_dim": "{D}",
    "input_size": "{D}", "output_size": "{D}", "dim_in": "{D}", "dim_out": "{D}", "n_embd": "{D}",
    "intermediate_size": "{intermediate_size}", "mlp_dim": "{intermediate_size}", "ffn_dim": "{intermediate_size}",
    "intermediate_dim": "{intermediate_size}", "inner_dim": "{intermediate_size}",
    "num_heads": "{heads}", "n_heads": "{heads}", "num_attention_heads": "{heads}", "n_head": "{heads}",
    "head_dim": "64", "eps": "1e-6", "kernel_size": "3", "stride": "1", "dilation": "1",
    "layer_type": "'full_attention'", "window_size": "7", "shift_size": "0",
    "has_relative_attention_bias": "False", "is_decoder": "False", "dropout": "0.0", "drop_path": "0.0",
    "hidden_act": "'gelu'", "activation": "'gelu'", "num_layers": "2", "act_fn": "'gelu'", "bias": "True",
    "drop_path_rate": "0.0", "in_dim": "{D}", "out_dim": "{D}", "hidden_features": "{intermediate_size}",
    "hidden_channels": "{D}", "feature_dim": "{D}", "features": "{D}", "n_state": "{D}", "width": "{D}",
}  # fmt: skip
_IDS = ("input_ids", "token_type_ids", "ids")
_POSITIONS = ("position_ids", "positions")
_COSINES = ("position_embeddings", "rotary_pos_emb", "rope_position_embeddings", "rotary_embeddings")
_LIKE_FIRST = (
    "residual", "input_tensor", "residual_tensor", "residual_states", "gate", "key", "value", "query", "keys",
    "values", "key_states", "value_states", "query_states", "k", "v", "q", "hidden_states", "second_residual",
    "layer_input",
)  # fmt: skip
_OTHERS = ("encoder_hidden_states", "key_value_states", "memory", "context", "encoder_output")
_FALSE = ("output_attentions", "use_cache", "is_causal", "output_hidden_states", "output_router_logits")


@dataclass(frozen=True)
class Argument:
    """A choice for one argument of a call: its text, and the ports in it."""

    name: str
    text: str
    ports: tuple[dict[str, Any], ...] = ()


def constructor_values(required: list[str]) -> dict[str, str]:
    """Returns the texts of the arguments without a default. Raises Unfit for an unknown name."""
    unknown = [name for name in required if name not in _CONSTRUCTOR]
    if unknown:
        raise Unfit(f"its constructor needs {unknown[0]}")
    return {name: _CONSTRUCTOR[name].removeprefix(f"{name}=") for name in required}


def _tensor(name: str, layout: str, **about: Any) -> Argument:
    return Argument(name, f"{{{name}}}", ({"name": name, "layout": layout, **about},))


def _pair(name: str, layout: str) -> Argument:
    ports = ({"name": "cos", "layout": layout}, {"name": "sin", "layout": layout})
    return Argument(name, "({cos}, {sin})", ports)


def _firsts(name: str, width: str, config: Any) -> list[Argument]:
    """Returns layouts for the tensor that a layer transforms, the most common first."""
    if name in _IDS:
        return [_tensor(name, "B T", dtype="int64", values="indices", high=str(getattr(config, "vocab_size", 1000)))]
    if name == "pixel_values":
        size, channels = getattr(config, "image_size", 224), getattr(config, "num_channels", 3)
        return [_tensor(name, f"B {channels} {size} {size}")] if isinstance(size, int) else []
    found = [_tensor(name, f"B T {width}"), _tensor(name, f"N {width}"), _tensor(name, f"B {width} H W")]
    if width == "D":
        found += [_tensor(name, "B T intermediate_size"), _tensor(name, "B H W D"), _tensor(name, "B D T")]
    else:
        inner = getattr(config, "intermediate_size", None)
        found += [_tensor(name, f"B T {inner}")] if isinstance(inner, int) else []
    return found


def _choices(name: str, width: str) -> list[Argument]:
    """Returns the choices for another argument. Raises Unfit for an unknown name."""
    if name in _COSINES:
        return [_pair(name, layout) for layout in ("B T 64", "T 64", "B T 32", "T 32", "B T 128")]
    if name in ("cos", "sin"):
        return [_tensor(name, layout) for layout in ("B T 64", "T 64", "B T 32", "T 32")]
    if name in _POSITIONS:
        return [_tensor(name, "B T", dtype="int64", values="indices", high="2048")]
    if name in ("top_k_index", "top_k_indices", "selected_experts", "topk_indices"):
        return [_tensor(name, "N 2", dtype="int64", values="indices", high="experts")]
    if name in ("top_k_weights", "routing_weights", "topk_weights"):
        return [_tensor(name, "N 2", values="probabilities")]
    if name in _LIKE_FIRST:
        return [_tensor(name, layout) for layout in (f"B T {width}", f"N {width}", f"B {width} H W")]
    if name in _OTHERS:
        return [_tensor(name, f"B S {width}")]
    if name in _FALSE:
        return [Argument(name, "False")]
    if "mask" in name or name in ("past_key_values", "past_key_value", "layer_head_mask", "position_bias", "alibi"):
        return [Argument(name, "None")]
    raise Unfit(f"its forward needs {name}")


def _rotary_choices(names: list[str]) -> list[list[Argument]]:
    """Returns the choices for rotary functions: queries and keys with heads, cosines and sines without."""
    tables = {"cos", "sin"} | {name for name in names if "cos" in name or "sin" in name}
    return [
        [
            _tensor(name, layout)
            for layout in (("B T 64", "T 64", "B T 32") if name in tables else ("B G T 64", "B T G 64"))
        ]
        for name in names
    ]


def arguments_of(function: Any, width: str, config: Any, *, is_function: bool) -> Iterator[list[list[Argument]]]:
    """Yields choices for every argument: first for the required ones, then also for those that carry positions.

    Raises Unfit when an argument is unknown.
    """
    parameters = [item for name, item in inspect.signature(function).parameters.items() if name != "self"]
    named = [item for item in parameters if item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)]
    if not named:
        raise Unfit("its forward names no tensor")
    required = [item.name for item in named[1:] if item.default is item.empty]
    if is_function:
        yield _rotary_choices([named[0].name, *required])
        return
    first = _firsts(named[0].name, width, config)
    yield [first, *(_choices(name, width) for name in required)]
    extra = [
        item.name for item in named[1:] if item.name in (*_COSINES, *_POSITIONS, *_OTHERS) and item.name not in required
    ]
    for count in range(1, len(extra) + 1):
        for names in ([name] for name in extra) if count == 1 else [extra[:count]]:
            yield [first, *(_choices(name, width) for name in (*required, *names))]
