"""Which snapshot begins next: an emergency, then what is due, then what was asked for.

A snapshot that may not be taken beside those under way is passed over: see ``at_once``. But while
an emergency waits, nothing else begins, and while the first of the scheduled snapshots waits for
those that users asked for, no request begins that would delay it further. Requests begin while the
daemon takes a snapshot of its own, though, and have the first turn after it.
"""

from collections.abc import Callable

from ciuic.errors import CiuicError
from ciuicd.attempts import Attempt, Attempts
from ciuicd.jobs.inbox import Inbox
from ciuicd.jobs.job import Job
from ciuicd.schedules.turns import Turns

__all__ = ["Order"]


class Order:
    """Begins snapshots in their order. The main thread alone calls it.

    Args:
        attempts: What is under way.
        turns: The schedules.
        inbox: The requests that wait.
        is_paused: Whether nothing is due until further notice.
        is_replaced: Whether the program was replaced on disk. It is asked if others are under way:
            before the first one, the caller has asked.
    """

    def __init__(
        self,
        attempts: Attempts,
        turns: Turns,
        inbox: Inbox,
        *,
        is_paused: Callable[[], bool],
        is_replaced: Callable[[], bool],
    ) -> None:
        self._attempts = attempts
        self._turns = turns
        self._inbox = inbox
        self._is_paused = is_paused
        self._is_replaced = is_replaced
        self._was_own = False

    def begin_next(self) -> bool:
        """Begin the snapshot whose turn it is, if there is one; return whether one has begun."""
        urgent = self._inbox.first_urgent()
        if urgent is not None:
            # A snapshot of the daemon's own is being cancelled for it.
            planned = None if self._attempts.has_own else self._requested(urgent)
            return planned is not None and self._begin_if_it_fits(planned)
        due = self._own_due()
        # Several schedules may be due all the time: a request has every second turn.
        if self._was_own and self._begin_requested():
            return True
        has_begun = any(self._begin_if_it_fits(own) for own in due)
        return has_begun or self._begin_requested(*due[:1])

    def _own_due(self) -> list[Attempt]:
        """Return the attempts that the daemon owes its schedules; one of them may begin."""
        if self._is_paused():
            self._turns.drop_follow_ups()
        elif not self._attempts.has_own:
            if states := self._turns.due():
                return [self._attempts.scheduled(state) for state in states]
            # Asked again and again while others go on, it would look at the files each time.
            is_alone = not self._attempts.under_way
            if is_alone and (state := self._turns.follow_up_due()) is not None:
                return [self._attempts.follow_up(state)]
        return []

    def _begin_requested(self, *due: Attempt) -> bool:
        """Begin the request that has waited longest of those that fit beside all others.

        Args:
            due: What has its turn, but may not begin now. No request may delay it further.
        """

        def fits(job: Job) -> bool:
            planned = self._requested(job)
            return planned is not None and self._attempts.fits(planned, *due)

        job = self._inbox.first(fits)
        planned = None if job is None else self._requested(job)
        return planned is not None and self._begin_if_it_fits(planned)

    def _requested(self, job: Job) -> Attempt | None:
        """Return the attempt for a request; None: it was refused."""
        try:
            return self._attempts.requested(job)
        except CiuicError as error:
            self._inbox.take_out(job)
            job.finish(error)
            return None

    def _begin_if_it_fits(self, planned: Attempt) -> bool:
        if not self._attempts.fits(planned):
            return False
        if self._attempts.under_way and self._is_replaced():
            return False
        self._inbox.take_out(planned.job)
        self._was_own = planned.is_own
        self._attempts.begin(planned)
        return True
