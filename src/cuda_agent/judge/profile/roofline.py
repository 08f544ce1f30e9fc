"""Finds impossible times: an output that came faster than its bytes pass through the device's memory.

The bytes are what any correct program must touch once: it reads the inputs of which every element is needed, and writes
the outputs. Weights don't count, because a candidate may fold them. As much of the outputs as fits the L2 cache doesn't
count, because the cache may write it later. Inputs start outside that cache (see `rings`). Bandwidths are those of the
datasheets.

A time below that bound is quarantined: it isn't paid before a person has looked. Fewer operations than the reference's
are only flagged, since algebra may remove them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml

from cuda_agent.core.assets import word_lists
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.graph import Graph, Node, TensorMeta, base_name, refs
from cuda_agent.workers.buffers import ITEM_BYTES


@dataclass(frozen=True)
class Peak:
    """A datasheet's limits: memory in TB/s, and dense arithmetic in Tflop/s of float32, TF32 and 16-bit products."""

    memory_tb_s: float
    fp32_tflops: float | None = None
    tf32_tflops: float | None = None
    half_tflops: float | None = None

    def tflops(self, precision: Precision) -> float | None:
        return {Precision.FP32: self.fp32_tflops, Precision.TF32: self.tf32_tflops}.get(precision, self.half_tflops)


#: a copy reaches about nine tenths of a datasheet's bandwidth.
MEASURED_HEADROOM = 1.25


@dataclass(frozen=True)
class Work:
    """The least work of a task: bytes in, bytes out, and operations of the reference's products."""

    read_bytes: int
    written_bytes: int
    flops: int = 0


@dataclass(frozen=True)
class Hardware:
    """Memory bandwidth in bytes/s with its source, L2 cache in bytes, and peak arithmetic in flop/s where known."""

    name: str
    bandwidth: float
    l2_bytes: int = 0
    flop_s: float | None = None
    measured: bool = False


@dataclass(frozen=True)
class Finding:
    """`quarantine` says why the time is impossible, `flag` why a person should look. Either may be missing."""

    quarantine: str | None = None
    flag: str | None = None


def examine(latency_us: float, work: Work, hardware: Hardware) -> Finding:
    """Compares a time with the hardware's limits."""
    least_bytes = work.read_bytes + max(0, work.written_bytes - hardware.l2_bytes)
    least_us = least_bytes / hardware.bandwidth * 1e6
    quarantine = flag = None
    if latency_us < least_us:
        source = "measured" if hardware.measured else "datasheet's"
        quarantine = (
            f"{latency_us:.1f} µs is less than the {least_us:.1f} µs that {least_bytes / 1e6:.0f} MB of inputs and "
            f"outputs take at the {source} {hardware.bandwidth / 1e12:.2f} TB/s of {hardware.name}"
        )
    if hardware.flop_s is not None and latency_us < work.flops / hardware.flop_s * 1e6:
        flag = (
            f"fewer operations than the reference: its {work.flops / 1e9:.0f} Gflop of products would take "
            f"{work.flops / hardware.flop_s * 1e6:.0f} µs at the datasheet's peak"
        )
    return Finding(quarantine, flag)


def work_of(graph: Graph | None, outputs: Sequence[TensorMeta]) -> Work:
    """Counts the work on the reference's graph. Without a graph it counts the outputs only, as one tensor of the
    largest one's size."""
    if graph is None:
        return Work(0, max((_bytes(meta) for meta in outputs), default=0))
    needed = needed_values(graph)
    read = sum(_bytes(given.meta) for given in graph.inputs if given.kind == "input" and given.name in needed)
    shapes = {given.name: given.meta.shape for given in graph.inputs}
    shapes |= {node.name: node.outputs[0].shape for node in graph.nodes if node.outputs and node.outputs[0] is not None}
    flops = sum(_flops(node, shapes) for node in graph.nodes if node.name in needed)
    return Work(read, _written(graph, outputs), flops)


def needed_values(graph: Graph) -> set[str]:
    """Returns the names of values of which every element is needed for the outputs. Doubtful values are left out."""
    lists = word_lists(__file__)
    needed = set(graph.outputs)
    for node in reversed(graph.nodes):
        if node.name not in needed:
            continue
        name = base_name(node.op)
        if name in lists["views"] | lists["others"]:
            needed.update(refs(node.args), refs(node.kwargs.values()))
        elif name == "where":
            needed.update(refs(node.args[:1]))
        elif name == "convolution" and _reads_whole_input(node):
            needed.update(refs(node.args[:2]))
    return needed


def _reads_whole_input(node: Node) -> bool:
    """Whether a convolution's stride is one. With longer strides, rows may be skipped."""
    strides = node.args[3] if len(node.args) > 3 else None
    return isinstance(strides, list) and all(stride == 1 for stride in strides)


def _written(graph: Graph, outputs: Sequence[TensorMeta]) -> int:
    """Returns the values that outputs are written from. Views of one value may be views of one output."""
    nodes, views = {node.name: node for node in graph.nodes}, word_lists(__file__)["views"]
    sizes: dict[str, int] = {}
    for name, meta in zip(graph.outputs, outputs, strict=False):
        root = name
        while root in nodes and base_name(nodes[root].op) in views and (above := refs(nodes[root].args[:1])):
            root = above[0]
        sizes[root] = max(sizes.get(root, 0), _bytes(meta))
    return sum(sizes.values())


def _flops(node: Node, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Returns 2·m·n·k of a matrix product, 2·outputs·window of a convolution, and 0 of other operators."""
    name, out = base_name(node.op), node.outputs[0] if node.outputs else None
    if out is None:
        return 0
    operands = [shapes.get(ref, ()) for ref in refs(node.args)]
    if name in ("mm", "bmm", "matmul", "linear") and operands and operands[0]:
        return 2 * out.numel * operands[0][-1]
    if name in ("addmm", "baddbmm") and len(operands) > 1 and operands[1]:
        return 2 * out.numel * operands[1][-1]
    if name == "convolution" and len(operands) > 1 and len(operands[1]) > 2:
        transposed = len(node.args) > 6 and node.args[6] is True
        pixels = math.prod(operands[0]) if transposed else out.numel
        return 2 * pixels * math.prod(operands[1][1:])
    return 0


def _bytes(meta: TensorMeta) -> int:
    return meta.numel * ITEM_BYTES[meta.dtype]


@lru_cache(maxsize=8)
def datasheet(name: str) -> Peak | None:
    """Returns the limits of a GPU by the driver's name for it, from `datasheets.yaml`."""
    known = yaml.safe_load(Path(__file__).with_name("datasheets.yaml").read_text())
    return next((Peak(*limits) for part, limits in known.items() if part in name), None)


@lru_cache(maxsize=4)
def hardware(device: Device, precision: Precision) -> Hardware | None:
    """Returns the limits of torch's GPU, measured where no datasheet is known; None on the CPU, whose caches are larger
    than many a task."""
    if device is not Device.CUDA:
        return None
    import torch

    facts = torch.cuda.get_device_properties(0)
    peak = datasheet(facts.name)
    if peak is None:
        from cuda_agent.workers.inside.inspected import copy_gb_s

        bandwidth = copy_gb_s(device, 1 << 26) * 1e9 * MEASURED_HEADROOM
        return Hardware(facts.name, bandwidth, int(facts.L2_cache_size), measured=True)
    tflops = peak.tflops(precision)
    flop_s = None if tflops is None else tflops * 1e12
    return Hardware(facts.name, peak.memory_tb_s * 1e12, int(facts.L2_cache_size), flop_s)
