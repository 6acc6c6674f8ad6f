"""Messages between two processes of which one runs a stranger's code: JSON and plain tensors, each checked as it comes.

A message is two lengths, a JSON object that says which tensors follow, and their numbers. Nothing in it is code. Tensors
travel as bytes through the socket, not in memory that both sides hold, so that nothing changes after it was looked at.
"""

from __future__ import annotations

import io
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
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
    )
}
Tensors = dict[str, torch.Tensor]


class Broken(Exception):
    """The other side ended, was silent too long, or sent what is no message; in words."""


class Ended(Broken):
    """The other side ended."""

    def __init__(self) -> None:
        super().__init__("it ended")


class Channel:
    """One end. Several messages may be under way; each side knows what it waits for."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(
        self,
        message: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor] | None = None,
        seconds: float | None = None,
    ) -> None:
        """
        Args:
            message: JSON values.
            tensors: by name; any device and layout, of the types in `DTYPES`.
            seconds: how long it may take; None for as long as it takes.

        Raises:
            Broken: the other side has ended or does not read.
        """
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in (tensors or {}).items()}
        about = {n: [str(t.dtype).removeprefix("torch."), list(t.shape)] for n, t in plain.items()}
        head = json.dumps({"message": message, "tensors": about}).encode()
        parts = [_bytes(tensor) for tensor in plain.values()]
        try:
            self._socket.settimeout(seconds)
            self._socket.sendall(LENGTHS.pack(len(head), sum(len(part) for part in parts)) + head)
            for part in parts:
                self._socket.sendall(part)
        except TimeoutError:
            raise Broken(f"it did not read for {seconds:g} s") from None
        except OSError:
            raise Ended from None

    def receive(self, most: int, seconds: float | None = None) -> tuple[dict[str, Any], Tensors]:
        """The next message and its tensors, on the CPU.

        Args:
            most: bytes that the tensors may have in all.
            seconds: how long it may take; None for as long as it takes.

        Raises:
            Broken: the other side ended, was silent too long, or sent what is no message or more than `most`.
        """
        until = None if seconds is None else time.monotonic() + seconds
        lengths = bytearray(LENGTHS.size)
        self._fill(memoryview(lengths), until, seconds)
        head_size, size = LENGTHS.unpack(lengths)
        if head_size > LONGEST or size > most:
            raise Broken(f"it answered with {head_size + size} bytes, where {most} are due at most")
        head = bytearray(head_size)
        self._fill(memoryview(head), until, seconds)
        try:
            message, about = _opened(head)
            tensors = {name: _empty(*declared) for name, declared in about.items()}
        except (ValueError, TypeError, KeyError, RecursionError, RuntimeError) as error:
            raise Broken(f"it sent what is no message ({type(error).__name__})") from None
        if sum(t.numel() * t.element_size() for t in tensors.values()) != size:
            raise Broken("it sent other tensors than it said")
        for tensor in tensors.values():
            self._fill(_bytes(tensor), until, seconds)
        return message, tensors

    def _fill(self, view: memoryview, until: float | None, seconds: float | None) -> None:
        while len(view):
            left = None if until is None else until - time.monotonic()
            try:
                if left is not None and left <= 0:
                    raise TimeoutError
                self._socket.settimeout(left)
                count = self._socket.recv_into(view)
            except TimeoutError:
                raise Broken(f"it gave no answer within {seconds:g} s") from None
            except OSError:
                count = 0
            if not count:
                raise Ended
            view = view[count:]


class Printed(io.TextIOBase):
    """What is printed, sent as {"say": line}: for `contextlib.redirect_stdout` where the other side listens for it."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._begun = channel, ""

    def write(self, text: str, /) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._channel.send({"say": line})
        return len(text)


def _opened(head: bytearray) -> tuple[dict[str, Any], dict[str, tuple[str, list[int]]]]:
    found = json.loads(bytes(head), parse_constant=float)
    message, about = found["message"], found["tensors"]
    if not isinstance(message, dict) or not isinstance(about, dict):
        raise TypeError
    return message, about


def _empty(dtype: str, shape: list[int]) -> torch.Tensor:
    if not isinstance(shape, list) or len(shape) > 16 or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
        raise TypeError
    if math.prod(shape) > 2**40:
        raise ValueError
    return torch.empty(shape, dtype=DTYPES[dtype])


def _bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    if not tensor.numel():
        return memoryview(b"")
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
