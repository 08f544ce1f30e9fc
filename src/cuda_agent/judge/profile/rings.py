"""Plans the rings of slots for timing, their memory, and whether the L2 cache must be flushed besides.

Masters are mapped by the judge and the reference worker only. The candidate and each baseline worker have their own
input and output rings. The judge copies masters into an input ring when that worker's burst begins, so inputs are
released inside its time. A large task's ring has one slot and exists only for one burst of its worker, which then gives
its memory back.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import TensorMeta
from cuda_agent.judge.verify.reference import Places, Reference, allocate
from cuda_agent.workers.buffers import ITEM_BYTES, Layout, contiguous, extent_bytes, gpu_memory, is_dense, synchronize
from cuda_agent.workers.process import Worker, WorkerFault
from cuda_agent.workers.requests.reference import TaskSpec
from cuda_agent.workers.requests.timed import DropRing, MakeRing

MAX_SLOTS = 64
#: multiples of the L2 cache that are touched between two uses of a slot.
L2_TIMES = 3
#: calls of a round, so that it has its own median.
LEAST_CALLS = 5
#: slots of a cpu's ring whatever their size.
CPU_SLOTS = 4
#: seconds of a burst where the ring allows it; a call takes at least CALL_SECONDS with its events and synchronisations.
#: What two processes that take turns on a device add to a burst varies by 0.1 ms between bursts, however many calls it
#: has (`benchmarks/clock.py`), so it must be little to each call. Longer bursts make rounds fewer, and rounds are what
#: the interval counts.
BURST_SECONDS = 0.008
#: of a cpu's burst, whose inputs take longer to draw: the system's accounts are right to 20 µs.
CPU_BURST_SECONDS = 0.002
CALL_SECONDS = 80e-6
CPU_CALL_SECONDS = 5e-6
#: memory of rings with more than the least calls. Half (cuda) or a quarter (cpu) of the free memory bounds all.
RING_BYTES = {Device.CUDA: 24 << 30, Device.CPU: 256 << 20}
#: memory of a cpu's ring with the least slots.
CPU_RING_BYTES = 1 << 30
#: copies of a slot's inputs (master, three rings) and outputs (three rings, a burst's results, the null's).
INPUT_COPIES, OUTPUT_COPIES = 4, 5
#: workers that call programs.
WORKERS = 3
#: share of a device's memory from which on the rings aren't kept between bursts.
KEPT_SHARE = 0.25


@dataclass(frozen=True)
class RingPlan:
    """`slots` is the number of sets of inputs with memory, `traffic_bytes` the inputs and outputs of one call.
    `l2_bytes` is 0 on the CPU, whose sets only alternate. `is_kept`: every worker keeps its ring between bursts."""

    slots: int
    traffic_bytes: int
    l2_bytes: int
    is_kept: bool = True

    def calls(self, call_s: float, share: float = 1.0) -> int:
        """Returns the calls of one burst, for a program that takes `call_s` seconds: long enough and, if possible, past
        the L2 cache. `share`: of a burst's usual length."""
        if not self.l2_bytes:
            return min(self.slots, max(CPU_SLOTS, int(CPU_BURST_SECONDS / max(call_s, CPU_CALL_SECONDS))))
        past_l2 = -(-L2_TIMES * self.l2_bytes // self.traffic_bytes)
        long_enough = int(share * BURST_SECONDS / max(call_s, CALL_SECONDS))
        wanted = max(LEAST_CALLS, long_enough, past_l2 if past_l2 <= self.slots else 0)
        return min(self.slots, wanted)

    def flush_bytes(self, calls: int) -> int:
        """Returns the bytes to write before each call to empty the L2 cache; 0 where a burst's own traffic does
        that."""
        needed = L2_TIMES * self.l2_bytes
        return 0 if calls * self.traffic_bytes >= needed else needed


def _keeping_bytes(input_bytes: int, output_bytes: int, rest_bytes: int) -> int:
    """Returns the least bytes of a timing whose workers keep their rings and what a call holds."""
    return INPUT_COPIES * input_bytes + OUTPUT_COPIES * output_bytes + WORKERS * (output_bytes + rest_bytes)


def timing_bytes(input_bytes: int, output_bytes: int, rest_bytes: int, card_bytes: int) -> int:
    """Returns the least bytes of a timing on a device of `card_bytes`. `rest_bytes` is what a call holds besides its
    inputs and outputs."""
    keeping = _keeping_bytes(input_bytes, output_bytes, rest_bytes)
    # A master, a ring, and either what drawing holds or a call's and the null's outputs.
    return keeping if keeping <= KEPT_SHARE * card_bytes else 4 * input_bytes + 3 * output_bytes + rest_bytes


def plan_ring(
    device: Device,
    input_bytes: int,
    output_bytes: int,
    l2_bytes: int,
    free_bytes: int,
    card_bytes: int,
    rest_bytes: int = 0,
) -> RingPlan:
    """Plans as many slots for one task as memory allows, up to what a burst of a short program needs. `rest_bytes` is
    what a call holds besides, without what workers hold already; each of them keeps as much. `card_bytes` is all memory
    of the device."""
    if _keeping_bytes(input_bytes, output_bytes, rest_bytes) > KEPT_SHARE * card_bytes:
        return RingPlan(1, max(1, input_bytes + output_bytes), l2_bytes if device is Device.CUDA else 0, is_kept=False)
    each = max(1, INPUT_COPIES * input_bytes + OUTPUT_COPIES * output_bytes)
    most = max(0, free_bytes - WORKERS * rest_bytes) // (2 if device is Device.CUDA else 4)
    least = LEAST_CALLS * each if device is Device.CUDA else min(CPU_SLOTS * each, CPU_RING_BYTES)
    slots = max(1, min(MAX_SLOTS, min(most, max(RING_BYTES[device], least)) // each))
    return RingPlan(slots, max(1, input_bytes + output_bytes), l2_bytes if device is Device.CUDA else 0)


def device_facts(device: Device) -> tuple[int, int, int]:
    """Returns (bytes of the L2 cache, bytes of free memory, bytes of all memory). The L2 cache counts only on cuda."""
    if device is Device.CUDA:
        import torch

        return int(torch.cuda.get_device_properties(0).L2_cache_size), *gpu_memory()
    page = os.sysconf("SC_PAGE_SIZE")
    return 0, os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def total_bytes(metas: Sequence[TensorMeta]) -> int:
    return sum(extent_bytes(meta) for meta in metas)


class Masters:
    """The inputs of a round, one set per slot, which only the judge and the reference worker map."""

    def __init__(self, metas: Sequence[TensorMeta], slots: int, device: Device) -> None:
        """Raises DeviceError where memory is short."""
        self.places = allocate("masters", metas, device, slots)
        self._each = len(metas)

    def slot(self, index: int) -> Places:
        """Returns one slot's place."""
        layout = self.places.layout
        part = layout.slots[index * self._each : (index + 1) * self._each]
        return Places(self.places.arena, Layout(part, layout.nbytes))

    def used_bytes(self, slots: int) -> int:
        """Returns the bytes of the first slots."""
        following = self.places.layout.slots[slots * self._each : slots * self._each + 1]
        return following[0].offset if following else self.places.layout.nbytes


def output_places(metas: Sequence[TensorMeta], device: Device, slots: int) -> tuple[list[list[int]], list[int]]:
    """Returns for each output where the first slots of a ring begin (in elements of its type) and how many elements it
    has."""
    each = len(metas)
    found = Layout.pack([contiguous(meta) for meta in metas], device, slots).slots
    begins = [
        [found[slot * each + index].offset // ITEM_BYTES[found[index].meta.dtype] for slot in range(slots)]
        for index in range(each)
    ]
    return begins, [found[index].meta.numel for index in range(each)]


class Ring:
    """A worker's input ring and output ring."""

    def __init__(self, worker: Worker, masters: Masters, spec: TaskSpec, plan: RingPlan) -> None:
        """Raises DeviceError where memory is short, WorkerFault when the worker can't map it."""
        device, slots = worker.settings.device, plan.slots
        self.worker, self.device, self._masters, self._is_kept = worker, device, masters, plan.is_kept
        self._inputs = allocate("ring", spec.inputs, device, slots)
        try:
            self._outputs = allocate("outputs", [contiguous(meta) for meta in spec.outputs], device, slots)
        except BaseException:
            self._inputs.arena.close()
            raise
        self._pairs: dict[int, tuple[Any, Any]] = {}
        self._bits: dict[int, Any] = {}
        # Outputs that the reference left with gaps or overlaps may have any layout.
        strides = tuple(meta.strides if is_dense(meta) else () for meta in spec.outputs)
        inputs, outputs = self._inputs.refs, self._outputs.refs
        ring = MakeRing(slots=slots, spec=spec.inputs_spec, inputs=inputs, outputs=outputs, strides=strides)
        try:
            worker.attach(self._inputs.arena)
            worker.attach(self._outputs.arena)
            worker.request(ring, timeout_s=120.0)
        except WorkerFault:
            self.close()
            raise

    def fill(self, slots: int) -> None:
        """Copies masters into the ring, and returns when the copy is done."""
        mine, theirs = self._views(slots)
        mine.copy_(theirs)
        synchronize(self.device)

    def prepare_fill(self, slots: int) -> Callable[[], None]:
        """Returns `fill` with all preparation done, for use inside the clock."""
        self._views(slots)
        return lambda: self.fill(slots)

    def wipe(self, slots: int) -> None:
        """Writes zeros over the inputs, so that later computation can't use them."""
        self._views(slots)[0].zero_()
        synchronize(self.device)

    def take(self, output: int, positions: Any) -> Any:
        """Copies what the last burst left of an output at these places, as bits, so that every type can be taken."""
        import torch

        meta = self._outputs.layout.slots[output].meta
        size = ITEM_BYTES[meta.dtype]
        if size not in self._bits:
            self._bits[size] = self._outputs.arena.raw().view(getattr(torch, f"int{8 * size}"))
        return self._bits[size][positions].view(getattr(torch, meta.dtype))

    def close(self) -> None:
        """Frees both rings. A worker that doesn't unmap them is ended."""
        self._pairs.clear()
        self._bits.clear()
        if self.worker.alive:
            try:
                self.worker.request(DropRing(frees=not self._is_kept), timeout_s=60.0)
                self.worker.detach(self._inputs.arena)
                self.worker.detach(self._outputs.arena)
            except WorkerFault:
                self.worker.kill()
        self._inputs.arena.close()
        self._outputs.arena.close()

    def _views(self, slots: int) -> tuple[Any, Any]:
        if slots not in self._pairs:
            count = self._masters.used_bytes(slots)
            self._pairs[slots] = (self._inputs.arena.raw(0, count), self._masters.places.arena.raw(0, count))
        return self._pairs[slots]


class Rings:
    """The masters of a timing, and the rings of the workers that keep one."""

    def __init__(self, plan: RingPlan, spec: TaskSpec, device: Device) -> None:
        """Raises DeviceError where memory is short."""
        self.plan, self._spec = plan, spec
        self.masters = Masters(spec.inputs, plan.slots, device)
        self._rings: dict[Worker, Ring] = {}

    def add(self, worker: Worker) -> None:
        """Makes the ring of a worker, if it keeps one. Raises what `Ring` raises."""
        if self.plan.is_kept:
            self._rings[worker] = Ring(worker, self.masters, self._spec, self.plan)

    def drop(self, worker: Worker) -> None:
        """Frees the ring of a worker, if it keeps one."""
        if worker in self._rings:
            self._rings.pop(worker).close()

    @contextlib.contextmanager
    def of(self, worker: Worker) -> Iterator[Ring]:
        """Yields a worker's ring. One that isn't kept is made for this block and holds what the masters hold. Raises
        what `Ring` raises."""
        if self.plan.is_kept:
            yield self._rings[worker]
            return
        ring = Ring(worker, self.masters, self._spec, self.plan)
        try:
            ring.fill(self.plan.slots)
            yield ring
        finally:
            ring.close()

    def fill(self) -> None:
        """Copies the masters into all rings that are kept."""
        for ring in self._rings.values():
            ring.fill(self.plan.slots)

    def close(self, reference: Reference) -> None:
        """Frees rings and masters. Ended workers need nothing."""
        for worker in tuple(self._rings):
            self.drop(worker)
        reference.detach(self.masters.places)
        self.masters.places.arena.close()
