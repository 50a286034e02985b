"""Tensors of GPUs go to pinned memory on a stream of their own, and the caller waits for it.

On a machine without a GPU, the order of the calls is tested with stand-ins for ``torch.cuda``: they
note what is asked of them, and copy on the CPU. What a driver does can be tested only on a GPU.
"""

import contextlib
import gc
import inspect

import numpy as np
import pytest

from ciuic import SnapshotManager
from ciuic.training.staging.buffer import StagingBuffer
from ciuic.training.staging.gpu import GpuCopies
from ciuic.training.staging.stage import Stager

torch = pytest.importorskip("torch", reason="torch is not installed")


class FakeCuda:
    """Stands for ``torch.cuda``, and notes the calls in their order.

    Args:
        code: What pinning returns: 0 is success.
    """

    def __init__(self, code: int = 0) -> None:
        self.calls: list[str] = []
        self._code = code
        self._current: dict[object, FakeStream] = {}
        self._count = 0

    def Stream(self, device: object) -> "FakeStream":  # noqa: N802 - the name of torch
        self._count += 1
        return FakeStream(self, f"side{self._count}")

    def Event(self, *, blocking: bool) -> "FakeEvent":  # noqa: N802 - the name of torch
        assert blocking, "waiting must not keep a processor busy"
        return FakeEvent(self)

    def current_stream(self, device: object) -> "FakeStream":
        return FakeStream(self, f"current of {device}")

    @contextlib.contextmanager
    def stream(self, stream: "FakeStream"):
        self.calls.append(f"enter {stream.name}")
        yield
        self.calls.append(f"leave {stream.name}")

    def cudart(self) -> "FakeCuda":
        return self

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:  # noqa: N802
        assert flags == 1
        self.calls.append(f"pin {address} {size_bytes}")
        return self._code

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - the name of torch
        self.calls.append(f"unpin {address}")
        return 0


class FakeStream:
    """Stands for a stream."""

    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self._cuda, self.name = cuda, name

    def wait_stream(self, other: "FakeStream") -> None:
        self._cuda.calls.append(f"{self.name} waits for {other.name}")


class FakeEvent:
    """Stands for an event."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda, self._of = cuda, "nothing"

    def record(self, stream: FakeStream) -> None:
        self._of = stream.name
        self._cuda.calls.append(f"mark the end of {stream.name}")

    def synchronize(self) -> None:
        self._cuda.calls.append(f"wait for {self._of}")


class FakeTensor:
    """Stands for a tensor of a GPU."""

    def __init__(self, name: str, device: str) -> None:
        self.name, self.device, self.dtype = name, device, torch.float32

    def resolve_conj(self) -> "FakeTensor":
        return self

    def resolve_neg(self) -> "FakeTensor":
        return self


class FakePlace:
    """Stands for a place in the shared memory."""

    dtype = torch.float32

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda

    def copy_(self, value: FakeTensor, *, non_blocking: bool) -> None:
        assert non_blocking
        if value.name == "broken":
            raise RuntimeError("CUDA error")
        self._cuda.calls.append(f"copy {value.name}")


MEMORY = np.zeros(64, np.uint8)
AT = MEMORY.ctypes.data


def pairs(cuda: FakeCuda, *values: tuple[str, str]) -> list[tuple[FakePlace, FakeTensor]]:
    return [(FakePlace(cuda), FakeTensor(name, device)) for name, device in values]


def test_the_copies_wait_for_the_training_and_the_caller_waits_for_the_copies():
    cuda = FakeCuda()
    copies = GpuCopies(cuda)
    copies.copy(pairs(cuda, ("a", "gpu0"), ("b", "gpu1"), ("c", "gpu0")), MEMORY)
    assert cuda.calls == [
        f"pin {AT} 64",
        "side1 waits for current of gpu0",
        "enter side1",
        "copy a",
        "leave side1",
        "side2 waits for current of gpu1",
        "enter side2",
        "copy b",
        "leave side2",
        "enter side1",
        "copy c",
        "leave side1",
        "mark the end of side1",
        "wait for side1",
        "mark the end of side2",
        "wait for side2",
    ]
    # The next save pins nothing and makes no stream, but waits for the training again.
    cuda.calls.clear()
    copies.copy(pairs(cuda, ("a", "gpu0")), MEMORY)
    assert cuda.calls[0] == "side1 waits for current of gpu0"
    assert cuda.calls[-1] == "wait for side1"
    cuda.calls.clear()
    copies.close()
    copies.close()
    assert cuda.calls == [f"unpin {AT}"]


def test_a_copy_that_fails_leaves_no_gpu_writing():
    cuda = FakeCuda()
    copies = GpuCopies(cuda)
    with pytest.raises(RuntimeError, match="CUDA error"):
        copies.copy(pairs(cuda, ("a", "gpu0"), ("broken", "gpu0")), MEMORY)
    assert cuda.calls[-2:] == ["mark the end of side1", "wait for side1"]


def test_ctrl_c_while_a_gpu_is_waited_for_is_raised_when_no_gpu_writes_any_more(monkeypatch):
    cuda, interrupts = FakeCuda(), [KeyboardInterrupt("first"), KeyboardInterrupt("second")]
    synchronize = FakeEvent.synchronize

    def interrupted(event: FakeEvent) -> None:
        if interrupts:
            raise interrupts.pop(0)
        synchronize(event)

    monkeypatch.setattr(FakeEvent, "synchronize", interrupted)
    with pytest.raises(KeyboardInterrupt, match="first"):
        GpuCopies(cuda).copy(pairs(cuda, ("a", "gpu0"), ("b", "gpu1")), MEMORY)
    assert [call for call in cuda.calls if "wait for side" in call] == [
        "wait for side1",
        "wait for side2",
    ]


def test_a_gpu_that_fails_does_not_keep_the_copies_of_another_from_being_waited_for(monkeypatch):
    cuda = FakeCuda()
    synchronize = FakeEvent.synchronize

    def failing(event: FakeEvent) -> None:
        if event._of == "side1":
            raise RuntimeError("CUDA error")
        synchronize(event)

    monkeypatch.setattr(FakeEvent, "synchronize", failing)
    with pytest.raises(RuntimeError, match="CUDA error"):
        GpuCopies(cuda).copy(pairs(cuda, ("a", "gpu0"), ("b", "gpu1")), MEMORY)
    assert cuda.calls[-1] == "wait for side2"


def test_memory_is_unpinned_before_other_memory_is_pinned_and_when_the_copies_are_dropped():
    cuda = FakeCuda()
    copies = GpuCopies(cuda)
    other = np.zeros(128, np.uint8)
    for memory in (MEMORY, other, other):
        copies.copy(pairs(cuda, ("a", "gpu0")), memory)
    pins = [call for call in cuda.calls if "pin" in call]
    assert pins == [f"pin {AT} 64", f"unpin {AT}", f"pin {other.ctypes.data} 128"]
    del copies
    gc.collect()
    assert cuda.calls[-1] == f"unpin {other.ctypes.data}"


def test_memory_that_cannot_be_pinned_is_a_warning_and_the_copies_go_on():
    cuda = FakeCuda(code=2)
    copies = GpuCopies(cuda)
    values = [(torch.zeros(3), torch.arange(3.0))]
    with pytest.warns(RuntimeWarning, match="64 bytes of shared memory cannot be pinned .*error 2"):
        copies.copy(values, MEMORY)
    copies.copy(values, MEMORY)
    assert values[0][0].tolist() == [0, 1, 2]
    copies.close()
    assert [call for call in cuda.calls if "pin" in call] == [f"pin {AT} 64"], "it was not pinned"


def test_a_state_of_gpus_and_processors_is_the_same_bytes(monkeypatch):
    """The tensors are on the CPU, and half of them are taken for tensors of a GPU."""
    conjugate = torch.tensor([1 + 2j, 3 - 4j]).conj()
    state = {
        "model_state_dict": {
            "a": torch.arange(6.0).reshape(2, 3).T,
            "b": torch.ones(5, dtype=torch.bfloat16),
            "c": np.arange(7),
            "empty": torch.zeros(0, 3),
            "conjugate": conjugate,
            "negative": conjugate.imag,
            "tied": conjugate,
        },
        "extra": [torch.tensor([1, 2]).to_sparse(), torch.ones((), dtype=torch.float8_e4m3fn)],
    }

    def staged(stager: Stager, buffer: StagingBuffer) -> dict[str, bytes]:
        files = stager.stage(state)
        memory = buffer.reserve(0)
        return {
            file.name: b"".join(memory[at : at + size].tobytes() for at, size in file.parts)
            for file in files
        }

    buffer = StagingBuffer()
    wanted = staged(Stager(buffer), buffer)
    cuda = FakeCuda()
    monkeypatch.setattr(
        "ciuic.training.staging.plan.is_on_gpu",
        lambda value: isinstance(value, torch.Tensor) and value.dtype is not torch.bfloat16,
    )
    stager = Stager(buffer)
    stager._gpu = GpuCopies(cuda)
    for _ in range(2):
        buffer.reserve(0)[:] = 255
        assert staged(stager, buffer) == wanted
    assert cuda.calls.count("wait for side1") == 2
    buffer.close()


def test_torch_has_the_calls_that_the_stand_ins_have():
    cuda = torch.cuda
    assert list(inspect.signature(cuda.current_stream).parameters) == ["device"]
    assert list(inspect.signature(cuda.stream).parameters) == ["stream"]
    assert "device" in inspect.signature(cuda.Stream.__new__).parameters
    assert "blocking" in inspect.signature(cuda.Event.__new__).parameters
    assert callable(cuda.Stream.wait_stream)
    assert callable(cuda.cudart)
    assert list(inspect.signature(cuda.Event.record).parameters) == ["self", "stream"]
    assert callable(cuda.Event.synchronize)


def test_a_state_on_a_gpu_comes_back_as_it_was_when_the_save_returned(tmp_path):
    """The GPU is still computing when the save begins, and goes on at once when it returns."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU with CUDA")
    generator = torch.Generator("cuda").manual_seed(1)
    weights = torch.randn(2048, 2048, device="cuda", generator=generator)
    phases = torch.randn(1000, device="cuda", dtype=torch.complex64, generator=generator).conj()
    with SnapshotManager(tmp_path) as manager:
        for step in range(3):
            for _ in range(50):
                weights = torch.nn.functional.normalize(weights @ weights)
            wanted = weights.clone()
            state = {"w": weights, "turned": weights.T, "phases": phases, "cpu": torch.ones(3)}
            manager.save_snapshot(state, step=step)
            weights.zero_()
            assert torch.from_numpy(manager._saves._buffer.reserve(0)).is_pinned()
            manager.wait()
            found = manager.load_latest_snapshot()["model_state_dict"]
            assert torch.equal(found["w"], wanted.cpu())
            assert torch.equal(found["turned"], wanted.cpu().T)
            assert torch.equal(found["phases"], phases.cpu().resolve_conj())
            weights = wanted
