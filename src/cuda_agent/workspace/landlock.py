"""Landlock by its three system calls: it restricts which paths a process without namespaces may read, write or execute.

This file uses the standard library only, because `confine.py` imports it without the package.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat

# These are for annotations only: every import delays a sandboxed command.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# The numbers are the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_MAKE_AND_REMOVE = sum(1 << bit for bit in range(4, 13))
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11

_NET_BIND_TCP, _NET_CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_UNIX, _SCOPE_SIGNAL = 1, 2

#: rights that the kernel accepts for a rule on something that isn't a directory.
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEV


class _RulesetAttr(ctypes.Structure):
    _fields_ = [
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    ]


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def _syscall(*arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(*arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def abi() -> int:
    """Returns the version of Landlock that the kernel offers, or 0 where it has none."""
    try:
        return _syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    except OSError:
        return 0


def _handled(version: int) -> int:
    rights = (1 << 13) - 1
    if version >= 2:
        rights |= _REFER
    if version >= 3:
        rights |= _TRUNCATE
    if version >= 5:
        rights |= _IOCTL_DEV
    return rights


def _add_path(ruleset: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ELOOP):
            return
        raise
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= _FILE_RIGHTS
        rule = _PathBeneathAttr(rights, handle)
        _syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(handle)


def restrict(
    *, readable: Iterable[str], writable: Iterable[str], devices: Iterable[str] = (), network: bool = False
) -> int:
    """Restricts this process for good; `no_new_privs` must be set. Returns the ABI that was used, or 0 when the kernel
    has no Landlock and nothing is restricted. Raises OSError when the kernel refuses the rules.

    The process can't trace processes outside. From ABI 6 on it can't signal them or use their abstract sockets either.
    """
    version = abi()
    if version < 1:
        return 0
    handled = _handled(version)
    network_rights = 0 if network or version < 4 else _NET_BIND_TCP | _NET_CONNECT_TCP
    scoped = _SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL if version >= 6 else 0
    attr = _RulesetAttr(handled, network_rights, scoped)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _syscall(_CREATE_RULESET, ctypes.byref(attr), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        read = (EXECUTE | READ_FILE | READ_DIR) & handled
        write = (read | WRITE_FILE | _REFER | _TRUNCATE | _MAKE_AND_REMOVE) & handled & ~_MAKE_CHAR & ~_MAKE_BLOCK
        for path in readable:
            _add_path(ruleset, path, read)
        for path in writable:
            _add_path(ruleset, path, write)
        for path in devices:
            _add_path(ruleset, path, (READ_FILE | READ_DIR | WRITE_FILE | _TRUNCATE | _IOCTL_DEV) & handled)
        _syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
    return version
