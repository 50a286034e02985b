"""Waits for the sessions that may rely on condemned packs, or revokes them.

Each condemnation waits for its own leases, those that were there when this machine first saw it.
A session at work changes its lease every minute. This machine remembers since when each lease has
its present content, by its own clock: no clocks of two machines are compared. If that clock is
wrong, a session may be revoked too early, which costs its snapshot and nothing else.
"""

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from ciuic.errors import LostRaceError
from ciuic.ids import SessionId
from ciuic.store.place.bucket import StoreInBucket
from ciuic.store.place.sessions.awaited import AwaitedLeases
from ciuic.store.place.sessions.leases import (
    Lease,
    dismiss,
    is_decided,
    list_leases,
    revoke,
)
from ciuic.store.place.sessions.seen import SeenLeases
from ciuic.system.clock import Clock

__all__ = ["REVOKE_AFTER_S", "Patience", "Waiting"]

REVOKE_AFTER_S: Final = 3600.0
_POLL_S: Final = 1.0
_NS: Final = 1_000_000_000


class Patience(NamedTuple):
    """How long to wait for other sessions.

    Attributes:
        wait_s: How long this prune waits; the next prune goes on.
        revoke_after_s: A session whose lease has not changed for this long is revoked.
    """

    wait_s: float = 0.0
    revoke_after_s: float = REVOKE_AFTER_S


class Waiting:
    """Waits for sessions of one store.

    Args:
        bucket: The store.
        patience: How long to wait.
        clock: Measures.
        check: Called often; raises to end the wait.

    Attributes:
        revoked: The leases of sessions that this prune revoked.
    """

    def __init__(
        self,
        bucket: StoreInBucket,
        patience: Patience,
        clock: Clock,
        *,
        check: Callable[[], None],
    ) -> None:
        self._bucket = bucket
        self._patience = patience
        self._clock = clock
        self._check = check
        self._seen = SeenLeases(bucket.path)
        self._awaited = AwaitedLeases(bucket.path)
        self._until_s = clock.monotonic_s() + patience.wait_s
        self._left: dict[SessionId, list[Lease]] = {}
        self.revoked: list[Lease] = []

    @property
    def left(self) -> list[Lease]:
        """The leases of sessions that have not ended, and that some condemnation waits for."""
        every = {lease.key: lease for leases in self._left.values() for lease in leases}
        return [every[key] for key in sorted(every)]

    def keep(self, condemned_by: Collection[SessionId]) -> None:
        """Forget for which leases other condemnations waited: they are gone.

        Args:
            condemned_by: The sessions of the condemnations that are there.
        """
        self._awaited.keep(condemned_by)

    def finish(self, condemned_by: SessionId, own_key: str) -> bool:
        """Wait for each session that may not heed a condemnation; returns whether all have ended.

        Args:
            condemned_by: The session of the condemnation, which the caller has read or created. A
                session whose lease comes later heeds it.
            own_key: The lease of this prune.
        """
        leases = list_leases(self._bucket.place)
        present = {lease.key for lease in leases}
        self._seen.keep(present)
        wanted = self._awaited.of(condemned_by, present - {own_key})
        return self._wait(condemned_by, own_key, leases, wanted)

    def finish_readers(self, condemned_by: SessionId, own_key: str) -> bool:
        """Wait for each session that may read a pack of a verdict; returns whether all have ended.

        Such a session had its lease before the verdict. Deleting the pack could take the only sound
        copy of a chunk from it.

        Args:
            condemned_by: The session of the condemnation, which has a verdict.
            own_key: The lease of this prune.
        """
        leases = list_leases(self._bucket.place, only_readers=True)
        return self._wait(condemned_by, own_key, leases, None)

    def _wait(
        self, condemned_by: SessionId, own_key: str, leases: list[Lease], wanted: set[str] | None
    ) -> bool:
        """Wait for leases.

        Args:
            condemned_by: See ``finish``.
            own_key: See ``finish``.
            leases: Those that are there.
            wanted: Those to wait for, beside all with ``may_read_condemned``. These are rare, so
                they do not keep a condemnation for ever. None: there are no others.
        """
        while True:
            self._check()
            left = [
                lease
                for lease in leases
                if lease.key != own_key
                and (lease.may_read_condemned or (wanted and lease.key in wanted))
                and not self._has_ended(lease)
            ]
            self._left[condemned_by] = left
            if not left:
                return True
            if self._clock.monotonic_s() >= self._until_s:
                return False
            self._clock.sleep(_POLL_S)
            leases = list_leases(self._bucket.place, only_readers=wanted is None)

    def _has_ended(self, lease: Lease) -> bool:
        if not is_decided(self._bucket.place, lease):
            if not self._is_dead(lease):
                return False
            try:
                if not revoke(self._bucket.place, lease):
                    return is_decided(self._bucket.place, lease) and self._dismiss(lease)
            except LostRaceError:
                return False  # it is asked again
            self.revoked.append(lease)
        return self._dismiss(lease)

    def _dismiss(self, lease: Lease) -> bool:
        # A decided session needs no lease. Its process may have been killed before it deleted it.
        dismiss(self._bucket.place, lease)
        return True

    def _is_dead(self, lease: Lease) -> bool:
        """Return whether a lease has not changed for long; remember its content."""
        unchanged_ns = self._seen.unchanged_ns(lease, self._clock.now_ns())
        return unchanged_ns >= self._patience.revoke_after_s * _NS
