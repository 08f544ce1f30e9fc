"""Memory that the judge allocates and workers map: tensors cross between processes here and nowhere else.

On `cpu` an arena is a sealed memfd, passed as a descriptor. On `cuda` it is its own `cudaMalloc` allocation, a multiple
of 2 MiB, passed as a CUDA IPC handle. A handle exports a whole allocation, so torch's segments never take part, and
memory that a worker may see never shares an allocation with memory that it may not. Several tensors of one purpose are
packed into an arena. Each becomes a plain torch tensor with its own storage that starts at its first element.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import DeviceError
from cuda_agent.core.graph import TensorMeta
from cuda_agent.workers.requests import Attach, Slot

#: offsets are aligned like those of torch's allocators, so that vector loads behave as outside.
ALIGNMENT = {Device.CPU: 64, Device.CUDA: 512}
GRANULE = {Device.CPU: mmap.PAGESIZE, Device.CUDA: 2 << 20}

ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip

#: driver settings for a process that uses one stream, or whose times decide nothing. Its context starts and ends in
#: half the time, in a third beside nine others (benchmarks/results/2026-11-24-h200-contexts).
SMALL_CONTEXT = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}

_SEALS = fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def gpu_memory() -> tuple[int, int]:
    """Returns (free bytes, all bytes) of the GPU that this process uses."""
    import torch

    free, there = torch.cuda.mem_get_info()
    return int(free), int(there)


class OutOfDeviceMemory(Exception):
    """The judge couldn't allocate an arena."""


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns row-major strides in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def contiguous(meta: TensorMeta, dtype: str | None = None) -> TensorMeta:
    """Returns the same shape in row-major order, possibly with another element type."""
    return TensorMeta(shape=meta.shape, dtype=dtype or meta.dtype, strides=contiguous_strides(meta.shape))


def is_dense(meta: TensorMeta) -> bool:
    """Whether no two elements share a place and no place is unused (a permutation of row-major)."""
    if meta.numel == 0:
        return True
    expected = 1
    for stride, size in sorted((st, sz) for sz, st in zip(meta.shape, meta.strides, strict=True) if sz != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def dense(meta: TensorMeta) -> TensorMeta:
    """Returns the same tensor if it is dense, else in row-major order."""
    return meta if is_dense(meta) else contiguous(meta)


def extent_bytes(meta: TensorMeta) -> int:
    """Returns the bytes from the first element to the end of the last one."""
    if meta.numel == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(meta.shape, meta.strides, strict=True))
    return (last + 1) * ITEM_BYTES[meta.dtype]


@dataclass(frozen=True)
class Layout:
    """Tensors packed into one arena of `nbytes`."""

    slots: tuple[Slot, ...]
    nbytes: int

    @staticmethod
    def pack(metas: Iterable[TensorMeta], device: Device, copies: int = 1) -> Layout:
        """Packs tensors at aligned offsets in order; with `copies`, the whole list that many times (a ring)."""
        step, offset, slots = ALIGNMENT[device], 0, []
        metas = tuple(metas)
        for _ in range(copies):
            for meta in metas:
                slots.append(Slot(offset, meta))
                offset += -(-extent_bytes(meta) // step) * step
        return Layout(tuple(slots), max(offset, step))


class Memory:
    """A mapped arena as torch tensors, common to judge and worker."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self._map: mmap.mmap | None = None
        self._pointer = 0

    def raw(self, offset: int = 0, count: int | None = None) -> Any:
        """Returns bytes [offset, offset + count) as a uint8 tensor of shape (count,) with its own storage."""
        import torch

        count = self.nbytes - offset if count is None else count
        if offset < 0 or count < 0 or offset + count > self.nbytes:
            raise ValueError(f"bytes {offset}..{offset + count} lie outside an arena of {self.nbytes}")
        if count == 0:
            return torch.empty(0, dtype=torch.uint8, device=self.device.value)
        if self.device is Device.CPU:
            assert self._map is not None, "the arena is closed"
            return torch.frombuffer(self._map, dtype=torch.uint8, count=count, offset=offset)
        assert self._pointer, "the arena is closed"
        return torch.as_tensor(_CudaBytes(self._pointer + offset, count, self), device="cuda")

    def tensor(self, slot: Slot) -> Any:
        """Returns the tensor at `slot`. It is no view, so a program can't reach more memory from it."""
        import torch

        dtype = getattr(torch, slot.meta.dtype)
        if slot.meta.numel == 0:
            return torch.empty(slot.meta.shape, dtype=dtype, device=self.device.value)
        storage = self.raw(slot.offset, extent_bytes(slot.meta)).untyped_storage()
        empty = torch.empty(0, dtype=dtype, device=self.device.value)
        return empty.set_(storage, 0, slot.meta.shape, slot.meta.strides)

    def tensors(self, slots: Iterable[Slot]) -> list[Any]:
        return [self.tensor(slot) for slot in slots]


class _CudaBytes:
    """A piece of device memory under the CUDA array interface, version 3. torch keeps it, and so its arena, alive."""

    def __init__(self, pointer: int, count: int, owner: Memory) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "|u1", "data": (pointer, False), "version": 3, "strides": None,
        }  # fmt: skip


class Arena(Memory):
    """The judge's side, which allocates (zeros), exports and frees. Free it only after the workers that map it have
    detached or ended."""

    def __init__(self, name: str, nbytes: int, device: Device) -> None:
        """Raises OutOfDeviceMemory."""
        granule = GRANULE[device]
        super().__init__(device, -(-max(nbytes, 1) // granule) * granule)
        self.name = name
        self._descriptor = -1
        if device is Device.CPU:
            self._allocate_shared()
        else:
            self._pointer = cuda_runtime().allocate(self.nbytes)
            self._clear()

    def _clear(self) -> None:
        """Writes zeros. `cudaMalloc` returns memory of an earlier evaluation with its answers, inputs and weights. A
        memfd is zero when it is made."""
        try:
            cuda_runtime().clear(self._pointer, self.nbytes)
        except DeviceError:
            self.close()
            raise

    def _allocate_shared(self) -> None:
        self._descriptor = os.memfd_create(f"cuda-agent-{self.name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._descriptor, self.nbytes)
            # Sealed: if a worker shrank the file, the judge's next access would be a bus error.
            fcntl.fcntl(self._descriptor, *_SEALS)
            os.posix_fallocate(self._descriptor, 0, self.nbytes)
            self._map = mmap.mmap(self._descriptor, self.nbytes)
        except OSError as error:
            os.close(self._descriptor)
            raise OutOfDeviceMemory(f"{self.nbytes >> 20} MiB of shared memory: {error.strerror}") from None

    def export(self) -> tuple[Attach, tuple[int, ...]]:
        """The request that maps it into a worker, and its descriptors."""
        on_cpu = self.device is Device.CPU
        handle = "" if on_cpu else cuda_runtime().export(self._pointer).hex()
        request = Attach(arena=self.name, nbytes=self.nbytes, device=self.device, handle=handle)
        return request, (self._descriptor,) if on_cpu else ()

    def fill(self, byte: int) -> None:
        self.raw().fill_(byte)

    def copy_from(self, other: Arena) -> None:
        """Copies bytes. Both have the same layout."""
        count = min(self.nbytes, other.nbytes)
        self.raw(0, count).copy_(other.raw(0, count))

    def close(self) -> None:
        """Frees the memory. Tensors of this arena must not be used afterwards."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor, self._map = -1, None
        if self._pointer:
            cuda_runtime().free(self._pointer)
            self._pointer = 0


class Attached(Memory):
    """The worker's side of an arena."""

    def __init__(self, request: Attach, descriptors: Sequence[int]) -> None:
        super().__init__(request.device, request.nbytes)
        if self.device is Device.CPU:
            (descriptor,) = descriptors
            # Populated at once, so that first touches don't fault inside a timed call.
            self._map = mmap.mmap(descriptor, self.nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            os.close(descriptor)
        else:
            self._pointer = cuda_runtime().open(bytes.fromhex(request.handle))

    def detach(self) -> None:
        self._map = None
        if self._pointer:
            cuda_runtime().close(self._pointer)
            self._pointer = 0


def synchronize(device: Device) -> None:
    """Waits until all work that this process has queued on the device is done, so that another process may read the
    results."""
    if device is Device.CUDA:
        import torch

        torch.cuda.synchronize()


def trim(device: Device) -> None:
    """Returns device memory that this process's torch caches to the driver, for other processes."""
    if device is Device.CUDA:
        import torch

        torch.cuda.empty_cache()


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


class CudaRuntime:
    """The few calls of the CUDA runtime that torch doesn't offer, on the library that torch has loaded."""

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise DeviceError("PyTorch sees no CUDA device", "Check nvidia-smi, or use --device cpu")
        torch.cuda.init()
        torch.cuda.current_stream()
        self._library = ctypes.CDLL(_loaded_cudart())
        self._library.cudaGetErrorString.restype = ctypes.c_char_p
        pointer = ctypes.c_void_p
        self._library.cudaMalloc.argtypes = [ctypes.POINTER(pointer), ctypes.c_size_t]
        self._library.cudaFree.argtypes = [pointer]
        self._library.cudaMemset.argtypes = [pointer, ctypes.c_int, ctypes.c_size_t]
        self._library.cudaIpcGetMemHandle.argtypes = [ctypes.POINTER(_IpcHandle), pointer]
        self._library.cudaIpcOpenMemHandle.argtypes = [ctypes.POINTER(pointer), _IpcHandle, ctypes.c_uint]
        self._library.cudaIpcCloseMemHandle.argtypes = [pointer]
        self._check("cudaSetDevice", self._library.cudaSetDevice(torch.cuda.current_device()))

    def _check(self, call: str, status: int) -> None:
        if status == 0:
            return
        text = self._library.cudaGetErrorString(status).decode()
        self._library.cudaGetLastError()
        if status == 2:  # cudaErrorMemoryAllocation
            raise OutOfDeviceMemory(f"{call}: {text}")
        raise DeviceError(f"{call} failed: {text}", "Check nvidia-smi; another process may hold the GPU")

    def allocate(self, nbytes: int) -> int:
        """Returns the device pointer of a new allocation. Raises OutOfDeviceMemory."""
        pointer = ctypes.c_void_p()
        status = self._library.cudaMalloc(ctypes.byref(pointer), nbytes)
        if status == 2:
            import torch

            self._library.cudaGetLastError()
            torch.cuda.empty_cache()
            status = self._library.cudaMalloc(ctypes.byref(pointer), nbytes)
        self._check(f"cudaMalloc of {nbytes >> 20} MiB", status)
        return int(pointer.value or 0)

    def free(self, pointer: int) -> None:
        self._check("cudaFree", self._library.cudaFree(pointer))

    def clear(self, pointer: int, nbytes: int) -> None:
        """Writes zeros, and returns when they are there, so that another process may map the memory."""
        self._check("cudaMemset", self._library.cudaMemset(pointer, 0, nbytes))
        self._check("cudaDeviceSynchronize", self._library.cudaDeviceSynchronize())

    def export(self, pointer: int) -> bytes:
        handle = _IpcHandle()
        self._check("cudaIpcGetMemHandle", self._library.cudaIpcGetMemHandle(ctypes.byref(handle), pointer))
        return bytes(handle.reserved)

    def open(self, raw: bytes) -> int:
        handle, pointer = _IpcHandle.from_buffer_copy(raw), ctypes.c_void_p()
        lazy_peer_access = 1
        status = self._library.cudaIpcOpenMemHandle(ctypes.byref(pointer), handle, lazy_peer_access)
        self._check("cudaIpcOpenMemHandle", status)
        return int(pointer.value or 0)

    def close(self, pointer: int) -> None:
        self._check("cudaIpcCloseMemHandle", self._library.cudaIpcCloseMemHandle(pointer))


def _loaded_cudart() -> str:
    """Returns the path of the CUDA runtime that torch has mapped, since a second copy would have its own state."""
    with open("/proc/self/maps") as stream:
        for line in stream:
            path = line.split(maxsplit=5)[-1].strip()
            if "/libcudart" in path and ".so" in path:
                return path
    raise DeviceError("PyTorch has not loaded libcudart", "Install a CUDA build of PyTorch, or use --device cpu")


_RUNTIME: list[CudaRuntime] = []


def cuda_runtime() -> CudaRuntime:
    """Returns the runtime of this process, made when first needed. Raises DeviceError where there is no GPU."""
    if not _RUNTIME:
        _RUNTIME.append(CudaRuntime())
    return _RUNTIME[0]


def pieces(tensor: Any) -> list[Any]:
    """Yields a tensor's elements in row-major order, in pieces whose temporaries are small beside it."""
    step = (1 << 24) if tensor.is_cuda else (1 << 19)
    return list(tensor.reshape(-1).split(step))
