"""``SnapshotManager``: the library's calls."""

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Self

from ciuic.catalog import check_tags, list_snapshots
from ciuic.errors import CiuicError, UsageError
from ciuic.hints import aiming
from ciuic.ids import SnapshotId
from ciuic.model import complete_ones, newest_first
from ciuic.report.tensor_documents import tensor_diff_json
from ciuic.store.addressed import ensure_store, local_directory
from ciuic.store.place.keys import is_url
from ciuic.system.clock import SystemClock
from ciuic.training.cadence import Cadence, duration_s
from ciuic.training.completeness import Completeness, warn_program
from ciuic.training.finding import (
    FULL,
    SavedSnapshot,
    begun_snapshots,
    find_saved,
    tags_of,
)
from ciuic.training.handle import SaveHandle
from ciuic.training.layers.groups import Layer, as_json, checked_layers
from ciuic.training.loading.latest import check_mixture
from ciuic.training.loading.loads import Loads
from ciuic.training.loading.state import LoadedState
from ciuic.training.objects import fill, sections_of
from ciuic.training.preemption import Preemption
from ciuic.training.ranks.job import check_ranks, job_of_torchrun
from ciuic.training.retention.claims import Claims
from ciuic.training.retention.planning import RetentionPlan, Rules, of_channel, plan_retention
from ciuic.training.retention.policies import Best, Policy, checked_policies, metric_tags
from ciuic.training.saves import Saves, check_if_busy
from ciuic.training.values import arguments
from ciuic.training.values.pickles import check_pickle_leaves

__all__ = ["SnapshotManager"]

Channel = Literal["full", "weights"]
_managers: "weakref.WeakSet[SnapshotManager]" = weakref.WeakSet()


class SnapshotManager:
    """Saves the state of a training program to a store, and loads it.

    A save copies the state and returns. Another process stores the copy, and finishes even if this
    program is killed. If a save fails, the next call raises the error, and so does the handle. A
    disk that is full or read-only costs saves but does not end the training: the next call warns,
    and only ``wait``, ``close`` and the handle raise the error. One thread at a time may call it.

    Args:
        save_dir: The store's directory, or the URL of its bucket, such as s3://bucket/prefix, for
            which the environment has the credentials; it is created if it is missing.
        interval: For ``step``: seconds, ``"1h"`` or ``"500 steps"`` between full states.
        max_snapshots: Snapshots that stay in each channel; pinned ones are not counted.
        full_every: For ``step``: number of steps between two saves of the full state.
        weights_every: For ``step``: number of steps between two saves of the weights alone.
        keep: Policies that keep further snapshots: ``Best``, ``EverySteps`` and ``Younger`` of
            ``ciuic``. Each is applied to each channel.
        keep_optimizer: Number of newest full states that stay complete. Older ones that stay keep
            their weights alone, under a new ID and with the tag ``reduced``; pinned ones stay
            complete. None: every full state that stays is complete.
        layers: Groups of the model's parameters, the most important first: ``Layer`` of ``ciuic``.
            Each has a file of its own, and becomes durable in this order: if a save is interrupted,
            an incomplete snapshot has the first ones. None: all parameters are in one file.
        run: A name for this run, if several use the store. Each run counts its own snapshots, and
            loads its own latest one. None: the run without a name.
        preemption_grace: Seconds, or a duration such as ``"60s"``, from SIGTERM or SIGUSR1 until
            the program is killed. These signals then set ``preempted`` and do not end the program,
            and the next ``step`` saves. None: the signals do what they did before.
        ranks: ``torchrun``: this process is one of several that ``torchrun`` has started on this
            machine. All call the same methods, and their parts become one snapshot: rank 0 saves
            what the ranks have in common, and each rank its generators, ``dataloader`` and
            ``extra``. Schedules must count steps.
        rank_timeout: Seconds, or a duration, that a rank waits for another one.
        if_busy: ``skip``: while a save is under way, ``save_snapshot`` saves nothing, and its
            handle raises BusyError; not with ``wait``, nor when the program is preempted.
        pickle_leaves: Values that may be stored as pickles, as the error message names them; ``*``
            stands for any text. A load returns a ``PickledLeaf`` for each, and opens none.

    Raises:
        UsageError: An argument makes no sense.
        StoreError: The store cannot be created or used.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        interval: float | str | None = None,
        max_snapshots: int = 10,
        *,
        full_every: int | None = None,
        weights_every: int | None = None,
        keep: Sequence[Policy] = (),
        keep_optimizer: int | None = None,
        layers: Sequence[Layer] | None = None,
        run: str | None = None,
        preemption_grace: float | str | None = None,
        ranks: Literal["torchrun"] | None = None,
        rank_timeout: float | str = "10m",
        if_busy: Literal["wait", "skip"] = "wait",
        pickle_leaves: Sequence[str] = (),
    ) -> None:
        self._path = arguments.checked_address(save_dir)
        arguments.checked_run(run)
        policies = checked_policies(keep)
        self._rules = Rules(max_snapshots, policies, keep_optimizer)
        self._layers = checked_layers(layers)
        check_if_busy(if_busy, ranks)
        leaves = check_pickle_leaves(pickle_leaves)
        self._clock = SystemClock()
        self._cadence = Cadence(interval, full_every, weights_every, self._clock.monotonic_s())
        grace_s = duration_s("preemption_grace", preemption_grace)
        self._run = run
        names = {policy.metric: 0 for policy in policies if isinstance(policy, Best)}
        check_tags([*tags_of(FULL, run, None, None), *metric_tags(policies, names)])
        self._job, self._claims = None, None
        if ranks is not None:
            timeout_s = duration_s("rank_timeout", rank_timeout) or 0.0
            schedule = interval if self._cadence.counts_seconds else None
            check_ranks(ranks, seconds=schedule, grace_s=grace_s)
            self._job = job_of_torchrun(os.environ, self._path, run, timeout_s)
        if self._job is None or self._job.rank == 0:
            with aiming(self._path):
                ensure_store(self._path, os.environ, self._clock)
                self._claims = Claims(_local(self._path), run)
        self._lock = threading.RLock()
        self._saves = Saves(
            self._path, self._job, self._clock, self._layers, if_busy=if_busy, pickle_leaves=leaves
        )
        self._completeness = Completeness()
        self._loads = Loads(self._path, run, self._job, self._saves)
        # Last: a constructor that fails leaves no handlers.
        self._preemption = None if grace_s is None else Preemption(grace_s, self._clock)
        _managers.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            # The program's own error must not be replaced by one of a save.
            _close_loudly(self)

    @property
    def run(self) -> str | None:
        """The name of this run; None: the run without a name."""
        return self._run

    @property
    def preempted(self) -> bool:
        """SIGTERM or SIGUSR1 has come: go to the next step soon. See ``preemption_grace``."""
        return self._preemption is not None and self._preemption.is_noticed

    @property
    def should_stop(self) -> bool:
        """The program is preempted, and a full state was saved since the signal: end the loop.

        A loop that asks ``preempted`` instead loses its last steps, if the signal comes between
        the save and the question.
        """
        return self.preempted and not self._is_urgent

    def save_snapshot(
        self,
        model: object,
        optimizer: object = None,
        epoch: object = None,
        *,
        step: int | None = None,
        scheduler: object = None,
        scaler: object = None,
        dataloader: object = None,
        metrics: object = None,
        extra: object = None,
        channel: Channel = "full",
        wait: bool = False,
    ) -> SaveHandle:
        """Copy a state, and begin to store it. The state may change when this returns.

        This first waits for a save that is under way. The full state includes the random number
        generators of Python, numpy and torch. The first full state after a signal that preempts the
        program is durable when this returns, unless ``preemption_grace`` ends: then this warns.
        The first full save also warns of parts that are missing or were not loaded.

        Args:
            model: An object with ``state_dict``, or a dict of objects, tensors and arrays.
            optimizer: The same.
            epoch: The epoch: a number, or text of one line.
            step: The step: a whole number of 0 or more.
            scheduler: As ``model``; saved with the full state, as are all that follow.
            scaler: As ``model``.
            dataloader: As ``model``.
            metrics: Any value of numbers, text, arrays and containers.
            extra: The same.
            channel: ``full``, or ``weights``: only the model, the epoch, the step and the metrics.
            wait: Return when the snapshot is durable.

        Raises:
            TypeError: A value cannot be stored; the message names it. Nothing is saved.
            CiuicError: An earlier save has failed, or with ``wait`` this one. After the failure of
                an earlier save, this one has not begun.
        """
        arguments.checked_channel(channel)
        step = arguments.checked_step_of_save(step, has_ranks=self._job is not None)
        policies = self._rules.policies
        with self._lock, aiming(self._path):
            try:
                epoch = arguments.checked_epoch(epoch)
                tags = tags_of(channel, self._run, epoch, step) + metric_tags(policies, metrics)
            except Exception as error:
                self._saves.give_up([step, channel], error)
                raise
            urgent = self._preemption if channel == FULL and self._is_urgent else None
            if (other := self._saves.wait_for_turn(urgent, wait=wait)) is not None:
                return other
            noticed_count = 0 if urgent is None else urgent.noticed_count
            always = {"epoch": epoch, "step": step, "metrics": metrics}
            others = {
                "optimizer": optimizer,
                "scheduler": scheduler,
                "scaler": scaler,
                "dataloader": dataloader,
            }
            take = partial(sections_of, self._job, model, always, others, extra)
            take = partial(take, policies=policies, is_full=channel == FULL)
            handle = self._begin(take, channel, tags, step)
            if urgent is not None:
                self._saves.settle_in_grace(urgent)
                urgent.saved(noticed_count)
            # After the copy, and after an urgent save: a program may turn warnings into errors.
            if channel == FULL and (self._job is None or self._job.rank == 0):
                self._completeness.check({"model": model, **others}, extra, epoch, step)
            self._tell_of_others(channel)
        if wait:
            handle.wait()
        return handle

    def should_save(self, step: int) -> Channel | None:
        """Return the channel to save at a step by the rules of the constructor; None: not now.

        Call this once a step, as ``step`` does: a multiple that it has returned is not due again.
        After a signal that preempts the program, it is ``full`` until a full state was saved.
        """
        if self._is_urgent:
            return "full"
        if not self._cadence.has_rule and self._preemption is None:
            raise UsageError(
                "this SnapshotManager has no schedule",
                hint="Give interval, full_every, weights_every or preemption_grace, or call"
                " save_snapshot.",
            )
        due = self._cadence.due(arguments.checked_step(step), self._clock.monotonic_s())
        return None if due is None else "full" if due == FULL else "weights"

    def step(
        self, step: int, model: object, optimizer: object = None, epoch: object = None, **more: Any
    ) -> SaveHandle | None:
        """Save if it is due; call it after every step. Arguments: see ``save_snapshot``."""
        channel = self.should_save(step)
        if channel is None:
            return None
        return self.save_snapshot(model, optimizer, epoch, step=step, channel=channel, **more)

    def load_latest_snapshot(
        self,
        *,
        channel: Channel | None = None,
        model: object = None,
        optimizer: object = None,
        map_location: object = None,
        strict: bool = True,
        fill_layers: bool = False,
        join_optimizer: bool = False,
    ) -> LoadedState | None:
        """Load the newest undamaged snapshot of this run; every byte is checked.

        Large tensors are read straight to the memory of ``model`` and ``optimizer``, so those of
        the returned state are the objects' own.

        Args:
            channel: Only snapshots of this channel; None: those of ``full``, then of ``weights``.
            model: Also load the model's state into this object.
            optimizer: Also load the optimizer's state into this object.
            map_location: The device for tensors of torch; None: the CPU.
            strict: See ``torch.nn.Module.load_state_dict``.
            fill_layers: Take a damaged or missing layer from the newest older snapshot that has it.
                Incomplete snapshots then count as weights alone. ``layers`` of the state says where
                each layer is from. If the layers are of several steps, this warns.
            join_optimizer: Take the newest weights, also those of the channel ``weights``, and with
                them the optimizer, scheduler and scaler of an older full state, with a warning.

        Returns:
            The state; None if the store has no snapshot of this run.

        Raises:
            CorruptionError: There are snapshots, and all are damaged.
            CiuicError: An earlier save has failed, or the store cannot be read. After any error,
                ``model`` and ``optimizer`` may hold parts of a snapshot.
        """
        arguments.checked_channel(FULL if channel is None else channel)
        check_mixture(self._job, channel, fill_layers=fill_layers, join_optimizer=join_optimizer)
        options = self._loads.options(
            model, optimizer, map_location, strict=strict, fills=fill_layers
        )
        with self._lock, aiming(self._path):
            state = self._loads.newest(channel, options, joins=join_optimizer)
        if state is not None:
            self._completeness.loaded(state)
            fill(state, model, optimizer, strict=strict)
        return state

    def load_snapshot(
        self,
        ref: int | str,
        *,
        model: object = None,
        optimizer: object = None,
        map_location: object = None,
        strict: bool = True,
        fill_layers: bool = False,
    ) -> LoadedState:
        """Load the snapshot of a step, tag, ID, prefix of an ID, or time; every byte is checked.

        A step or tag means a snapshot of this run, and an ID or a time one of any run. The other
        arguments are those of ``load_latest_snapshot``. Only an ID means an incomplete snapshot;
        without ``fill_layers``, its state has the layers that it holds.

        Raises:
            SnapshotNotFoundError: There is none.
            CorruptionError: It is damaged.
        """
        check_mixture(self._job, None, fill_layers=fill_layers, join_optimizer=False)
        options = self._loads.options(
            model, optimizer, map_location, strict=strict, fills=fill_layers
        )
        with self._lock, aiming(self._path):
            state = self._loads.named(ref, options)
        fill(state, model, optimizer, strict=strict)
        return state

    def list(self) -> "list[SavedSnapshot]":
        """Return the snapshots of all runs in the store, incomplete ones too, newest first."""
        with self._lock, aiming(self._path), self._loads.reading() as store:
            return [SavedSnapshot.of(summary) for summary in begun_snapshots(store)]

    def verify(self, ref: int | str | None = None) -> dict[str, Any]:
        """Have the other process read and check every byte of a snapshot; None: of all.

        Returns:
            The document of ``ciuic verify --json``: ``ok`` says whether all is well.
        """
        with self._lock, aiming(self._path):
            snapshot_id = None if ref is None else self._loads.id_of(ref)
            answer = self._saves.ask({"do": "verify", "id": snapshot_id}).result()
        report: dict[str, Any] = answer["report"]
        return report

    def diff(self, before: int | str, after: int | str) -> tuple[dict[str, Any], ...]:
        """Compare two snapshots, tensor by tensor. Arguments: see ``load_snapshot``.

        Returns:
            What ``ciuic diff --tensors --quick --json`` prints: an element for each file that
            differs, with its changed tensors.

        Raises:
            SnapshotNotFoundError: There is no such snapshot.
            CorruptionError: A tree of it is damaged.
        """
        with self._lock, aiming(self._path), self._loads.reading() as store:
            old, new = [
                store.manifest(find_saved(store, ref, self._run).id) for ref in (before, after)
            ]
            return tuple(tensor_diff_json(store, old, new))

    def pin(self, ref: int | str, *, pinned: bool = True) -> SnapshotId:
        """Pin a snapshot, so that it is never removed, or remove its pin; returns its ID."""
        with self._lock, aiming(self._path):
            snapshot_id = self._loads.id_of(ref)
            self._saves.ask({"do": "pin", "id": snapshot_id, "pinned": bool(pinned)}).result()
        return snapshot_id

    def retention_plan(self, channel: Channel = "full") -> RetentionPlan:
        """Return which snapshots of a channel stay, are reduced or go. Nothing changes.

        Each save carries out the plan of its channel, with the new snapshot counted.
        """
        arguments.checked_channel(channel)
        with self._lock, aiming(self._path), self._loads.reading() as store:
            snapshots = newest_first(complete_ones(list_snapshots(store)))
            found = of_channel(snapshots, channel, self._run)
            return plan_retention(found, self._rules, self._clock.now_ns(), snapshots)

    def wait(self) -> SnapshotId | None:
        """Wait until the save that is under way is durable; returns its ID, or None without one.

        Raises:
            CiuicError: It failed.
        """
        with self._lock, aiming(self._path):
            return self._saves.settle()

    def close(self) -> None:
        """Wait for the save that is under way, and end the other process; harmless twice.

        Raises:
            CiuicError: The save failed.
        """
        with self._lock, aiming(self._path):
            if self._saves.is_over:
                return
            try:
                self._saves.settle()
            except KeyboardInterrupt:
                self._saves.close(timeout_s=0.0)  # the other process finishes by itself
                raise
            finally:
                if self._preemption is not None:
                    self._preemption.close()
                self._saves.close()
                if self._claims is not None:
                    self._claims.close()

    def _tell_of_others(self, channel: Channel) -> None:
        """Warn once of another process that saves this channel of this run."""
        other = None if self._claims is None else self._claims.other(channel)
        if other is not None:
            run = "without a name" if self._run is None else f"named {self._run}"
            what_to_do = (
                "make the manager of each rank with ranks='torchrun'"
                if "RANK" in os.environ
                else "give each training a name, such as run='a'"
            )
            warn_program(
                f"{other} saves to {self._path} as well, and its run is also the one {run}: each"
                " counts and removes the other's snapshots, and a start loads the newest state of"
                f" either; {what_to_do}"
            )

    @property
    def _is_urgent(self) -> bool:
        """The program is preempted, and its state has not been saved since."""
        return self._preemption is not None and self._preemption.needs_save

    def _begin(
        self,
        take: Callable[[], dict[str, object]],
        channel: str,
        tags: tuple[str, ...],
        step: int | None,
    ) -> SaveHandle:
        request = {
            "taken_ns": self._clock.now_ns(),
            "tags": tags,
            "channel": channel,
            "rules": self._rules.as_json(),
            "layers": as_json(self._layers),
            "label": [step, channel],
        }
        handle = self._saves.begin(take, request)
        if channel == FULL:
            self._cadence.saved_full(self._clock.monotonic_s())
        return handle


def _local(address: str) -> str:
    """Return the directory that this machine has of a store: itself, or that of a bucket."""
    return local_directory(address, os.environ)[0] if is_url(address) else address


def _close_loudly(manager: SnapshotManager) -> None:
    """Close a manager, and write its failure to stderr: there is no call left to raise it."""
    try:
        manager.close()
    except CiuicError as error:
        sys.stderr.write(f"ciuic: the last save failed: {error.message}\n")


@atexit.register
def _close_all() -> None:
    for manager in list(_managers):
        try:
            _close_loudly(manager)
        except KeyboardInterrupt:
            # Python would print a traceback, and the user has seen enough: the save is not lost.
            sys.stderr.write("ciuic: interrupted; the last save goes on in another process\n")
