"""Run a command as systemd runs a service: python strict_view.py UNIT INSTANCE ROOT COMMAND...

Every file is read-only but for what the unit allows to be written (`ProtectSystem=strict`, `PrivateTmp`,
`ReadWritePaths`, `CacheDirectory`). The unit's own paths are used: ROOT/srv, ROOT/opt and ROOT/cache appear as /srv,
/opt and /var/cache. To be run by `unshare --map-root-user --mount`.
"""

from __future__ import annotations

import configparser
import ctypes
import os
import shlex
import sys
from pathlib import Path

BIND, RECURSIVE, PRIVATE = 4096, 16384, 1 << 18
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, READ_ONLY = 442, -100, 0x8000, 1

libc = ctypes.CDLL(None, use_errno=True)


class MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "namespace")]


def mount(source, target, kind=None, flags=0):
    if libc.mount(
        *(None if one is None else os.fsencode(one) for one in (source, target, kind)), flags, None
    ):
        raise OSError(ctypes.get_errno(), f"mount {source} {target}")


def set_read_only(path, value):
    attributes = MountAttributes(set=READ_ONLY if value else 0, clear=0 if value else READ_ONLY)
    if libc.syscall(
        MOUNT_SETATTR,
        AT_FDCWD,
        os.fsencode(path),
        AT_RECURSIVE if value else 0,
        ctypes.byref(attributes),
        ctypes.sizeof(attributes),
    ):
        raise OSError(ctypes.get_errno(), f"mount_setattr {path}")


def read_unit(path, instance):
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read_string(Path(path).read_text().replace("%i", instance))
    return parser["Service"]


def enter(unit, root):
    mount(None, "/", flags=RECURSIVE | PRIVATE)
    for own, place in (("srv", "/srv"), ("opt", "/opt"), ("cache", "/var/cache")):
        mount(Path(root) / own, place, flags=BIND)
    writable = shlex.split(unit["ReadWritePaths"])
    if "CacheDirectory" in unit:
        cache = Path("/var/cache", unit["CacheDirectory"])
        cache.mkdir(mode=int(unit["CacheDirectoryMode"], 8), exist_ok=True)
        writable.append(str(cache))
    if unit["ProtectSystem"] == "strict":
        set_read_only("/", True)
    for path in writable:
        mount(path, path, flags=BIND)
        set_read_only(path, False)
    if unit.get("PrivateTmp") == "true":
        for path in ("/tmp", "/var/tmp"):
            mount("tmpfs", path, "tmpfs")


def main():
    path, instance, root, *command = sys.argv[1:]
    unit = read_unit(path, instance)
    enter(unit, root)
    os.umask(int(unit["UMask"], 8))
    os.chdir(unit["WorkingDirectory"])
    # As a service of a user without a home.
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LANG": "C.UTF-8"}
    environment |= dict(one.split("=", 1) for one in shlex.split(unit.get("Environment", "")))
    command = command or shlex.split(unit["ExecStart"])
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    main()
