"""Predicts the time of one pass in eager PyTorch: for each operator the slower of memory and arithmetic, plus its
launch.

Rates are what eager reaches on a stack, not datasheet values. They only choose sizes whose time is likely in the
window; the filter measures the tasks afterwards.
"""

import math
from collections.abc import Sequence

from cuda_agent.core.errors import UsageError
from cuda_agent.core.record import Record
from cuda_agent.judge import datasheet
from cuda_agent.tasks.compose.chain import ChainStep
from cuda_agent.tasks.records import Cost

#: Families whose arithmetic runs as matrix products.
_PRODUCTS = frozenset(("matrix product", "attention", "recurrent", "transformer"))
#: Families of several operators, which have further tensors between input and output.
_LAYERED = frozenset(("attention", "transformer block", "experts", "state space", "feed-forward"))
_HALVES = ("float16", "bfloat16")


class Rates(Record):
    """Rates of a stack: memory in TB/s, and arithmetic in Tflop/s for matrix products and convolutions in float32
    (PyTorch's default flags), products in 16 bits, and everything else. `launch_us` is the start of one operator."""

    name: str
    memory_tb_s: float
    product_tflops: float
    convolution_tflops: float
    half_tflops: float
    vector_tflops: float
    launch_us: float = 5.0

    def predict_us(self, step: ChainStep) -> float:
        busy_us = max(step.moved / self.memory_tb_s, step.flops / self._tflops(step)) * 1e-6
        launches = 3 * int(step.names.get("T", 1)) if step.seed.family == "recurrent" else 1
        return busy_us + launches * self.launch_us

    def _tflops(self, step: ChainStep) -> float:
        if step.seed.family == "convolution":
            return self.convolution_tflops
        if step.seed.family in _PRODUCTS or step.seed.library == "transformers":
            half = step.seed.ports[0].dtype in _HALVES
            return self.half_tflops if half else self.product_tflops
        return self.vector_tflops

    def cost(self, steps: Sequence[ChainStep]) -> Cost:
        parts_us = tuple(self.predict_us(step) for step in steps)
        return Cost(
            flops=sum(step.flops for step in steps),
            bytes=sum(step.moved for step in steps),
            predicted_us=sum(parts_us),
            parts_us=tuple(round(part, 1) for part in parts_us),
            held_bytes=memory_bytes(steps),
        )


#: Measured on one H200: copies at 4.1 TB/s; float32 products near 50 Tflop/s; convolutions, which use TF32, with
#: eager's work around them.
H200 = Rates(
    name="H200", memory_tb_s=4.1, product_tflops=50.0, convolution_tflops=140.0, half_tflops=600.0, vector_tflops=30.0
)
#: The share of a datasheet's numbers that eager reaches, where nothing was measured.
_REACHED = 0.75


def rates_for(stack: str) -> Rates:
    """Returns the rates of a GPU by its name. Raises UsageError when its speed is unknown."""
    if stack.upper() == "H200":
        return H200
    peak = datasheet(stack)
    if peak is None or peak.fp32_tflops is None:
        raise UsageError(f"The speed of {stack!r} is unknown", "Give a GPU, such as H200, H100 or A100")
    return Rates(
        name=stack,
        memory_tb_s=peak.memory_tb_s * _REACHED,
        product_tflops=peak.fp32_tflops * _REACHED,
        convolution_tflops=peak.fp32_tflops * _REACHED * 1.8,
        half_tflops=(peak.half_tflops or peak.fp32_tflops) * _REACHED,
        vector_tflops=peak.fp32_tflops * _REACHED / 2,
    )


def memory_bytes(steps: Sequence[ChainStep]) -> int:
    """Returns the bytes that one pass in eager holds if nothing is freed: inputs, weights, and every operator's
    outputs."""
    given = sum(
        math.prod(shape) * ITEM_BYTES.get(port.dtype, 4)
        for position, step in enumerate(steps)
        for index, (port, shape) in enumerate(zip(step.seed.ports, step.shapes, strict=True))
        if position == 0 or index > 0
    )
    made: int = sum(tensor.numel() * tensor.element_size() for step in steps for tensor in step.outputs)
    inside = sum(int(step.moved / 3) for step in steps if step.seed.family in _LAYERED)
    return given + made + inside + 4 * sum(step.weights for step in steps)


ITEM_BYTES = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "bool": 1, "uint8": 1, "int8": 1, "complex64": 8}
