"""Messages between the evaluator and a process that runs untrusted code: JSON and plain tensors, checked on arrival.

A message is two lengths, a JSON object that describes the tensors, and the tensors' bytes. It contains no code.
Tensors travel through the socket, not in shared memory, so the sender cannot change them after they were checked.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

import torch

LENGTHS = struct.Struct("<IQ")  # of the JSON and of the tensors, in bytes
LONGEST = 2**24  # bytes of JSON
TOGETHER = 100  # parts of a message in one system call, at most
KINDS = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")
DTYPES = {name: getattr(torch, name) for name in KINDS}
Tensors = dict[str, torch.Tensor]
Message = tuple[dict[str, Any], Tensors]


class Broken(Exception):
    """The other side ended, was silent for too long, or sent a malformed message; the text says which."""


class Ended(Broken):
    """The other side ended."""


class Channel:
    """One end of a connection. Several messages may be under way; each side knows what it waits for."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(
        self, message: Mapping[str, Any], tensors: Mapping[str, torch.Tensor] | None = None, seconds: float | None = None
    ) -> None:
        """Send JSON values, and tensors by name of the types in `DTYPES`, on any device.

        Raise `Broken` if the other side has ended, or does not read within `seconds`.
        """
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in (tensors or {}).items()}
        about = {n: [str(t.dtype).removeprefix("torch."), list(t.shape)] for n, t in plain.items()}
        head = json.dumps({"message": message, "tensors": about}).encode()
        parts = [_bytes(tensor) for tensor in plain.values()]
        try:
            self._socket.settimeout(seconds)
            parts = [memoryview(LENGTHS.pack(len(head), sum(map(len, parts))) + head), *parts]
            sent = self._socket.sendmsg(parts[:TOGETHER])  # at once, so that the other side wakes once
            for part in parts:
                if sent < len(part):
                    self._socket.sendall(part[sent:])
                sent = max(0, sent - len(part))
        except TimeoutError:
            raise Broken(f"it did not read for {seconds:g} s") from None
        except OSError:
            raise Ended("it ended") from None

    def receive(self, most: int, seconds: float | None = None) -> Message:
        """Return the next message and its tensors, on the CPU.

        Raises:
            Broken: the other side ended, sent nothing within `seconds`, sent a malformed message, or tensors of more
                than `most` bytes.
        """
        until = None if seconds is None else time.monotonic() + seconds
        try:
            lengths = bytearray(LENGTHS.size)
            self._fill(memoryview(lengths), until)
            head_size, size = LENGTHS.unpack(lengths)
            if head_size > LONGEST or size > most:
                raise Broken(f"it answered with {head_size + size} bytes, where {most} are due at most")
            head = bytearray(head_size)
            self._fill(memoryview(head), until)
            message, tensors = _opened(head, size)
            for tensor in tensors.values():
                self._fill(_bytes(tensor), until)
        except TimeoutError:
            raise Broken(f"it gave no answer within {seconds:g} s") from None
        except OSError:
            raise Ended("it ended") from None
        return message, tensors

    def _fill(self, view: memoryview, until: float | None) -> None:
        while len(view):
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            count = self._socket.recv_into(view)
            if not count:
                raise Ended("it ended")
            view = view[count:]


def _opened(head: bytearray, size: int) -> Message:
    """Return the message and empty tensors of `size` bytes in total, to be filled. Raise as `receive` does."""
    try:
        opened = json.loads(head)
        message, about = opened["message"], opened["tensors"]
        if not isinstance(message, dict) or not isinstance(about, dict):
            raise TypeError
        if sum(_size(*declared) for declared in about.values()) != size:
            raise Broken("it sent other tensors than it said")
        return message, {name: torch.empty(shape, dtype=DTYPES[dtype]) for name, (dtype, shape) in about.items()}
    except (ValueError, TypeError, KeyError, RecursionError, RuntimeError) as error:
        raise Broken(f"it sent what is no message ({type(error).__name__})") from None


def _size(dtype: str, shape: list[int]) -> int:
    """Return the bytes of a tensor."""
    if not isinstance(shape, list) or len(shape) > 16 or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
        raise TypeError
    return math.prod(shape) * DTYPES[dtype].itemsize


def _bytes(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU."""
    if not tensor.numel():
        return memoryview(b"")
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
