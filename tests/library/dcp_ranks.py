"""Ranks of a small FSDP2 model: they save a checkpoint through ciuic, or load one and compare.

Arguments: the store; a prefix of files; and steps that follow each other, such as ``save:4:1``:
save, thread, process, cached, die or load; the number of ranks; the seed. The last line of the
output lists the exit codes of the ranks of each step.

Each rank is a process of its own. This program forks them, as each import of torch takes seconds.
"""

import json
import os
import signal
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ciuic.dcp import CiuicReader, CiuicWriter


def trained(ranks: int, seed: int):
    """Return a sharded model and its optimizer after two steps; all ranks see the same data."""
    torch.manual_seed(seed)
    # 13 and 7 are not multiples of the number of ranks: shards are uneven, and some are empty.
    model = torch.nn.Sequential(torch.nn.Linear(5, 13), torch.nn.ReLU(), torch.nn.Linear(13, 7))
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(8, 5)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def full(model, optimizer) -> dict:
    """Return all values, gathered from the ranks."""
    states = get_state_dict(model, optimizer)
    found = {}

    def walk(name: str, value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{name}.{key}", inner)
        elif isinstance(value, torch.Tensor):
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            found[name] = (whole.dtype, whole.tolist())
        elif isinstance(value, (int, float, bool, str, type(None))):
            found[name] = value

    walk("model", states[0])
    walk("optimizer", states[1])
    return found


def main(mode: str, store: str, rank: int, ranks: int, meeting: str, seed: int) -> None:
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    model, optimizer = trained(ranks, seed)
    states = get_state_dict(model, optimizer)
    state = {"model": states[0], "optimizer": states[1], "step": 2, "note": {"text": "of all"}}
    if mode == "save":
        dcp.save(state, checkpoint_id="runs/step-2", storage_writer=CiuicWriter(store))
        torch.save(full(model, optimizer), f"{meeting}.saved-{rank}")
    elif mode in {"thread", "process"}:
        kind = AsyncCheckpointerType(mode)
        writer = CiuicWriter(store)
        dcp.async_save(state, storage_writer=writer, async_checkpointer_type=kind).result()
        torch.save(full(model, optimizer), f"{meeting}.saved-{rank}")
    elif mode == "cached":
        for step in (1, 2):
            state["step"] = step
            # The second save sends no plan, and has another writer.
            planner = DefaultSavePlanner(enable_plan_caching=True)
            dcp.save(state, storage_writer=CiuicWriter(store), planner=planner)
        torch.save(full(model, optimizer), f"{meeting}.saved-{rank}")
    elif mode == "die":

        class DyingWriter(CiuicWriter):
            def write_data(self, plan, planner):
                if rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().write_data(plan, planner)

        dcp.save(state, storage_writer=DyingWriter(store))
    else:
        state["step"], state["note"] = 0, {"text": ""}
        dcp.load(state, storage_reader=CiuicReader(store))
        assert state["step"] == 2
        assert state["note"] == {"text": "of all"}
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        torch.save(full(model, optimizer), f"{meeting}.loaded-{rank}")
    dist.barrier()
    dist.destroy_process_group()


def forked(mode: str, store: str, rank: int, ranks: int, meeting: str, seed: int) -> int:
    """Start a rank; returns its process ID, or 0 when the rank has ended in the new process."""
    pid = os.fork()
    if not pid:
        main(mode, store, rank, ranks, meeting, seed)
    return pid


def run(store: str, prefix: str, *steps: str) -> None:
    codes = []
    for mode, ranks, seed in (step.split(":") for step in steps):
        pids = []
        for rank in range(int(ranks)):
            meeting = f"{prefix}{mode}-{ranks}"
            pids.append(forked(mode, store, rank, int(ranks), meeting, int(seed)))
            if not pids[-1]:
                return
        codes.append([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
    print(json.dumps(codes))


if __name__ == "__main__":
    # The process of a save in the background imports this file.
    run(*sys.argv[1:])
