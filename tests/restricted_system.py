"""Runs a command as on a system that allows less: `restricted_system.py WITHOUT COMMAND …`.

`privileges` takes the right to mount from root, so that only unprivileged user namespaces are left;
`namespaces` takes these too, so that only Landlock is left; `landlock` takes that as well.
"""

import ctypes
import os
import struct
import sys
from pathlib import Path

_NEW_USER = 0x10000000
_DROP_FROM_BOUNDING_SET, _MOUNTING = 24, 21  # PR_CAPBSET_DROP, CAP_SYS_ADMIN
_SET_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38
_LANDLOCK_CREATE = 444
_LEVELS = ("privileges", "namespaces", "landlock")


def restrict(without: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    level = _LEVELS.index(without)
    if level >= 1:
        user, group = os.geteuid(), os.getegid()
        if libc.unshare(_NEW_USER) != 0:
            sys.exit("user namespaces are not allowed here")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    libc.prctl(_DROP_FROM_BOUNDING_SET, _MOUNTING, 0, 0, 0)
    if level >= 2:
        _forbid_call(libc, _LANDLOCK_CREATE)


def _forbid_call(libc: ctypes.CDLL, number: int) -> None:
    """A seccomp filter: this call of the system fails with EPERM, as in some containers."""
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (0x20, 0, 0, 0),  # load the number of the call
            (0x15, 0, 1, number),  # if it is this one
            (0x06, 0, 0, 0x00050001),  # fail with EPERM
            (0x06, 0, 0, 0x7FFF0000),  # else allow
        )
    )
    code = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if libc.prctl(_SET_SECCOMP, _FILTER, ctypes.create_string_buffer(header), 0, 0) != 0:
        sys.exit("seccomp filters are not allowed here")


if __name__ == "__main__":
    restrict(sys.argv[1])
    os.execvp(sys.argv[2], sys.argv[2:])
