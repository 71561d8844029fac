"""Attaches an XDP program that passes every packet to a network device, until the standard input ends.

A virtual cable copies zero-copy sends at once. With such a program at its other end it does not.
"""

import ctypes
import os
import socket
import struct
import sys

SYS_BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
BPF_PROG_LOAD, BPF_LINK_CREATE = 5, 28
PROG_TYPE_XDP, ATTACH_TYPE_XDP = 6, 37
# r0 = XDP_PASS, and exit.
PROGRAM = bytes.fromhex("b700000002000000 9500000000000000")
ATTRIBUTES_BYTES = 128

libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, attributes):
    attributes = ctypes.create_string_buffer(attributes, ATTRIBUTES_BYTES)
    descriptor = libc.syscall(SYS_BPF, command, attributes, ATTRIBUTES_BYTES)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "bpf(2)")
    return descriptor


program = ctypes.create_string_buffer(PROGRAM, len(PROGRAM))
license = ctypes.create_string_buffer(b"GPL")
attributes = struct.pack("IIQQ", PROG_TYPE_XDP, len(PROGRAM) // 8, ctypes.addressof(program), ctypes.addressof(license))
loaded = bpf(BPF_PROG_LOAD, attributes)
bpf(BPF_LINK_CREATE, struct.pack("IIII", loaded, socket.if_nametoindex(sys.argv[1]), ATTACH_TYPE_XDP, 0))
print("attached", flush=True)
sys.stdin.read()
