"""Which schedule is next: the schedules of a configuration share one daemon.

It takes one snapshot of them at a time. Of the schedules that are due, the schedule whose last
attempt is the longest ago goes first, unless its snapshot may not begin yet: see ``order``. So a
schedule with a short interval never keeps another one out, however long its snapshots take.
"""

from collections.abc import Callable, Iterator

from ciuic.config.settings import Settings
from ciuic.system.clock import Clock
from ciuicd.followup import FollowUps
from ciuicd.schedules.state import ScheduleState

__all__ = ["Turns"]


class Turns:
    """The schedules of a configuration, in the order of the file.

    Any thread may call ``replace``; only the main thread may call the other methods that change
    something.
    """

    def __init__(self, settings: Settings, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._states: tuple[ScheduleState, ...] = ()
        self._gone: list[FollowUps] = []
        self.replace(settings)

    def __iter__(self) -> Iterator[ScheduleState]:
        """Return an iterator over the states."""
        return iter(self._states)

    @property
    def first(self) -> ScheduleState:
        """The first schedule, which snapshots without a schedule go by."""
        return self._states[0]

    @property
    def plan(self) -> str:
        """What is taken and how often, for the log; with their names if there are several."""
        if len(self._states) == 1:
            return self.first.plan
        return "; ".join([f"{state.name}: {state.plan}" for state in self._states])

    def find(self, name: str) -> ScheduleState | None:
        """Return the schedule of this name."""
        return next((state for state in self._states if state.name == name), None)

    def replace(self, settings: Settings) -> None:
        """Use another configuration. A schedule whose directories have changed starts over."""
        known = {state.name: state for state in self._states}
        states = []
        for schedule in settings.schedules:
            state = known.pop(schedule.schedule, None)
            if state is not None and state.settings.snapshot_paths == schedule.snapshot_paths:
                state.settings = schedule
            else:
                # The newest snapshot may lack the new roots: the next turn looks for it.
                if state is not None:
                    self._gone.append(state.follow_ups)
                state = ScheduleState(schedule, self._clock, self._wake)
            states.append(state)
        self._gone += [state.follow_ups for state in known.values()]
        self._states = tuple(states)

    def drop_gone(self) -> None:
        """End the waits of schedules that are no longer configured."""
        while self._gone:
            self._gone.pop().drop()

    def due(self) -> list[ScheduleState]:
        """Return the schedules whose snapshot should be taken now; the first one goes first."""
        due = [state for state in self._states if state.is_due]
        return sorted(due, key=lambda state: state.ended_s)

    def follow_up_due(self) -> ScheduleState | None:
        """Look at the files that are awaited; return a schedule whose follow-up is due."""
        return next((state for state in self._states if state.follow_ups.is_due()), None)

    def drop_follow_ups(self) -> None:
        """End every wait."""
        self.drop_gone()
        for state in self._states:
            state.follow_ups.drop()

    @property
    def next_due_ns(self) -> int:
        """When the next snapshot of any schedule is due."""
        return min(state.next_due_ns for state in self._states)

    @property
    def wait_s(self) -> float:
        """How long until a scheduled snapshot may be due."""
        return min(state.wait_s for state in self._states)

    @property
    def next_look_s(self) -> float | None:
        """When to ask ``follow_up_due`` again, on the monotonic clock; None: no file is awaited."""
        looks = [state.follow_ups.next_look_s for state in self._states]
        return min((look for look in looks if look is not None), default=None)
