"""A system-call filter: it denies tracing, new namespaces and mounts, io_uring, BPF, and all sockets but Unix sockets.

The filter is classic BPF and is installed with `prctl`; `no_new_privs` must be set. This file uses the standard library
only, because `confine.py` imports it without the package.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_PR_SET_SECCOMP, _FILTER_MODE = 22, 2
_LOAD, _JUMP_EQUAL, _JUMP_ANY_BIT, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_X32_BIT = 0x40000000

#: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
_NAMESPACE_FLAGS = 0x7E020000

_DENIED = {
    "x86_64": {
        "ptrace": 101, "mount": 165, "umount2": 166, "swapon": 167, "reboot": 169, "init_module": 175,
        "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298, "setns": 308,
        "process_vm_readv": 310, "process_vm_writev": 311, "finit_module": 313, "kexec_load": 246, "bpf": 321,
        "userfaultfd": 323, "pivot_root": 155, "chroot": 161, "pidfd_getfd": 438, "open_by_handle_at": 304,
    },
    "aarch64": {
        "ptrace": 117, "mount": 40, "umount2": 39, "swapon": 224, "reboot": 142, "init_module": 105,
        "add_key": 217, "request_key": 218, "keyctl": 219, "unshare": 97, "perf_event_open": 241, "setns": 268,
        "process_vm_readv": 270, "process_vm_writev": 271, "finit_module": 273, "kexec_load": 104, "bpf": 280,
        "userfaultfd": 282, "pivot_root": 41, "chroot": 51, "pidfd_getfd": 438, "open_by_handle_at": 265,
    },
}  # fmt: skip
_MOUNT_API = range(428, 434)  # open_tree … fspick, the same on both
_MOUNT_SETATTR = 442
_IO_URING = range(425, 428)
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_CLONE3 = 435
_AF_UNIX = 1


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def build_filter(machine: str, *, network: bool) -> bytes | None:
    """Returns the filter as BPF code, or None for an architecture other than x86_64 and aarch64."""
    if machine not in _ARCHITECTURE:
        return None
    deny, allow = _ERRNO | errno.EPERM, _ALLOW
    code = [
        _instruction(_LOAD, 4),
        _instruction(_JUMP_EQUAL, _ARCHITECTURE[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, 0),
    ]
    if machine == "x86_64":
        code += [_instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1), _instruction(_RETURN, deny)]
    for number in sorted({*_DENIED[machine].values(), *_MOUNT_API, *_IO_URING, _MOUNT_SETATTR}):
        code += [_instruction(_JUMP_EQUAL, number, 0, 1), _instruction(_RETURN, deny)]
    # A filter can see the flags of clone but not those of clone3. Without clone3 the C library calls clone.
    code += [_instruction(_JUMP_EQUAL, _CLONE3, 0, 1), _instruction(_RETURN, _ERRNO | errno.ENOSYS)]
    code += [
        _instruction(_JUMP_EQUAL, _CLONE[machine], 0, 4),
        _instruction(_LOAD, 16),
        _instruction(_JUMP_ANY_BIT, _NAMESPACE_FLAGS, 0, 1),
        _instruction(_RETURN, deny),
        _instruction(_RETURN, allow),
    ]
    if not network:
        code += [
            _instruction(_JUMP_EQUAL, _SOCKET[machine], 0, 4),
            _instruction(_LOAD, 16),
            _instruction(_JUMP_EQUAL, _AF_UNIX, 1, 0),
            _instruction(_RETURN, deny),
            _instruction(_RETURN, allow),
        ]
    code.append(_instruction(_RETURN, allow))
    return b"".join(code)


def restrict(*, network: bool = False) -> bool:
    """Installs the filter on this process for good. Returns False where the architecture or the kernel can't have
    it."""
    code = build_filter(os.uname().machine, network=network)
    if code is None:
        return False
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p).value)
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0)) == 0
