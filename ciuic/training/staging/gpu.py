"""Copy tensors of GPUs into the shared memory, which is pinned, on a stream of their own.

Guarantees: when ``copy`` returns, or raises, no GPU writes to the memory any more. So the caller
may change the tensors, and the writer's process may read the memory.

This is for CUDA, and for ROCm, which torch shows as CUDA. Other accelerators are copied without it.
"""

import contextlib
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

__all__ = ["GpuCopies", "is_on_gpu"]

Tensor = Any
"""A tensor of torch, which may be missing."""

_PORTABLE: Final = 1
"""cudaHostRegisterPortable: pinned for all GPUs, not only for the current one."""


def is_on_gpu(value: Any) -> bool:
    """Return whether a value is a tensor that ``GpuCopies`` copies."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor) and value.device.type == "cuda"


class GpuCopies:
    """Copies tensors of GPUs into one piece of shared memory.

    Args:
        cuda: ``torch.cuda``, or what stands for it in a test; None: that of torch, at the first
            copy.
    """

    def __init__(self, cuda: Any = None) -> None:
        self._cuda = cuda
        self._memory: np.ndarray | None = None
        self._unpin: Callable[[], object] = lambda: None
        self._streams: dict[Any, Any] = {}

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]], memory: np.ndarray) -> None:
        """Copy tensors to their places.

        A copy sees what the current stream of its GPU has been asked to compute so far, as every
        other operation of torch does.

        Args:
            pairs: A place in the memory, as ``place_for`` returns it, and the tensor; no place: the
                tensor is empty.
            memory: The shared memory. It must stay mapped until ``close``, or until a call with
                another memory.
        """
        import torch

        self._cuda = self._cuda or torch.cuda
        wanted = [(place, value) for place, value in pairs if place is not None]
        if not wanted:
            return
        self._pin(memory, wanted[0][1].device)
        begun: dict[Any, Any] = {}
        # The tensors that the streams read stay alive until the streams have ended: a tensor that
        # is dropped before could give its memory to another one.
        alive = []
        try:
            for place, value in wanted:
                device = value.device
                if device not in begun:
                    begun[device] = self._stream(device)
                with torch.no_grad(), self._cuda.stream(begun[device]):
                    # A copy that does not block loses these bits: they would be resolved on the
                    # CPU, before the bytes are there (pytorch#146286).
                    plain = value.resolve_conj().resolve_neg()
                    alive.append(plain)
                    same = plain.dtype is place.dtype
                    place.copy_(plain if same else plain.view(place.dtype), non_blocking=True)
        finally:
            _wait_for(self._cuda, list(begun.values()))

    def close(self) -> None:
        """Let go of the memory; harmless twice."""
        self._unpin()
        self._memory = None
        self._streams.clear()

    def _stream(self, device: Any) -> Any:
        """Return a GPU's own stream for copies, which waits for the current one."""
        if device not in self._streams:
            self._streams[device] = self._cuda.Stream(device)
        stream = self._streams[device]
        stream.wait_stream(self._cuda.current_stream(device))
        return stream

    def _pin(self, memory: np.ndarray, device: Any) -> None:
        """Pin the memory, once. Copies to memory that is not pinned are slower, but correct."""
        if memory is self._memory:
            return
        # First: the driver would otherwise remember pages that are no longer mapped.
        self._unpin()
        self._memory = memory
        runtime = self._cuda.cudart()
        code = int(runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, _PORTABLE))
        if code == 0:
            # With the memory as an argument, it stays mapped until it is unpinned.
            unpin = weakref.finalize(self, _unregister, runtime, memory)
            # The manager closes at the end of the program; a forked process must not unpin.
            unpin.atexit = False
            self._unpin = unpin
            return
        self._unpin = lambda: None
        _forget_error(device)
        warnings.warn(
            f"ciuic: {memory.nbytes:,} bytes of shared memory cannot be pinned (CUDA error {code}),"
            " so each save of tensors of a GPU takes longer",
            RuntimeWarning,
            stacklevel=2,
        )


def _wait_for(cuda: Any, streams: list[Any]) -> None:
    """Wait until streams have ended. Ctrl-C meanwhile is raised afterwards, as is an error."""
    failure: BaseException | None = None
    while streams:
        try:
            event = cuda.Event(blocking=True)
            event.record(streams[0])
            event.synchronize()
            streams.pop(0)
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failure = failure or error
            if isinstance(error, Exception):
                streams.pop(0)  # the GPU itself failed: to ask again would not help
    if failure is not None:
        raise failure


def _unregister(runtime: Any, memory: np.ndarray) -> None:
    # Nothing can be done about an error: at the end of a program, the driver may be gone.
    runtime.cudaHostUnregister(memory.ctypes.data)


def _forget_error(device: Any) -> None:
    """Consume the error that a failed call has left behind.

    CUDA keeps it until it is asked for. torch asks after each kernel, so the training's next kernel
    would raise it. This kernel does instead.
    """
    import torch

    with contextlib.suppress(RuntimeError):
        torch.empty(1, device=device).fill_(1)
