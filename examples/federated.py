"""Federated averaging of three clients that this program simulates; it goes on to the bit.

    python federated.py STORE

Each client has data of its own kind, an optimizer with momentum, and a generator. In each round, a
client starts from the shared model, trains it on its data, and sends back its weights; the average
becomes the shared model. A snapshot holds the round of all: a training that goes on never mixes the
rounds of several clients. Stop it at any moment, and run it again to go on. Each round prints a
line with its number and the exact loss of the shared model.
"""

import sys

import torch

from ciuic import SnapshotManager

ROUNDS = 30
CLIENTS = ("north", "south", "west")
LOCAL_STEPS = 5


class Client:
    """A client: its data, its copy of the model, its optimizer and its generator."""

    def __init__(self, number: int) -> None:
        self.generator = torch.Generator().manual_seed(number)
        center = torch.zeros(8)
        center[number] = 2.0
        self.inputs = torch.randn(64, 8, generator=self.generator) + center
        self.outputs = self.inputs.sin().sum(1, keepdim=True)
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.8)

    def train(self, shared: torch.nn.Module) -> None:
        """Start from the shared model, and train on a few random batches."""
        self.model.load_state_dict(shared.state_dict())
        for _ in range(LOCAL_STEPS):
            chosen = torch.randint(len(self.inputs), (16,), generator=self.generator)
            loss = self.loss(self.model, chosen)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def loss(self, model: torch.nn.Module, chosen: torch.Tensor | slice) -> torch.Tensor:
        """Return the loss of a model on some of the client's data."""
        return (model(self.inputs[chosen]) - self.outputs[chosen]).square().mean()


def network() -> torch.nn.Module:
    """Return a new model."""
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


def average(shared: torch.nn.Module, clients: dict[str, Client]) -> None:
    """Make the shared model the average of those of the clients."""
    states = [client.model.state_dict() for client in clients.values()]
    shared.load_state_dict({name: sum(s[name] for s in states) / len(states) for name in states[0]})


def main(store: str = "./snapshots") -> None:
    """Train the shared model, from the latest snapshot if there is one."""
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    shared = network()
    clients = {name: Client(number) for number, name in enumerate(CLIENTS)}
    optimizers = {name: client.optimizer for name, client in clients.items()}
    with SnapshotManager(store, max_snapshots=3) as manager:
        first = 0
        latest = manager.load_latest_snapshot(model=shared, optimizer=optimizers)
        if latest is not None:
            for name, client in clients.items():
                client.generator.set_state(latest["extra"][name])
            first = latest["epoch"] + 1
            latest.restore_rng()
        for number in range(first, ROUNDS):
            for client in clients.values():
                client.train(shared)
            average(shared, clients)
            with torch.no_grad():
                losses = [client.loss(shared, slice(None)) for client in clients.values()]
            print(number, torch.stack(losses).mean().item().hex(), flush=True)
            generators = {name: client.generator.get_state() for name, client in clients.items()}
            manager.save_snapshot(shared, optimizers, number, extra=generators)


if __name__ == "__main__":
    main(*sys.argv[1:])
