"""The messages that a channel gets about faults that begin and end in any order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.guard.alerts.channels import Channel
from ciuic.guard.alerts.message import Message
from ciuicd.alerting import telling
from ciuicd.alerting.faults import Fault
from ciuicd.alerting.telling import Telling
from tests.kit.clock import ManualClock

CHANNEL = Channel("all", "command", "warning", {"command": "true"})
KEYS = "abcdef"
SEVERITIES = st.sampled_from(["warning", "critical"])
LOOKS = st.lists(st.dictionaries(st.sampled_from(KEYS), SEVERITIES), max_size=8)


def told_of(looks: list[dict[str, str]]) -> list[list[Message]]:
    """Return the messages of each check."""
    known: dict[str, str] = {}
    sent: list[Message] = []
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(telling, "send", lambda _channel, message: sent.append(message))
        for look in looks:
            faults = {key: Fault(key, severity, f"<{key}>") for key, severity in look.items()}  # type: ignore[arg-type]
            Telling(CHANNEL, known, "/store", ManualClock()).tell(faults)
            found.append(sent[:])
            sent.clear()
    return found


@given(LOOKS)
def test_a_channel_that_heard_all_messages_knows_what_is_wrong(looks: list[dict[str, str]]) -> None:
    open_texts: dict[str, str] = {}
    for look, messages in zip(looks, told_of(looks), strict=True):
        for message in messages:
            key = message.key.rpartition("/")[2]
            if message.event == "ended":
                assert key in open_texts, "each end has a beginning"
                del open_texts[key]
            else:
                open_texts[key] = f"{message.severity}: {message.text.partition('; no longer')[0]}"
        assert len(messages) <= len(KEYS) + 1
        listed = " ".join(open_texts.values())
        assert {key for key in KEYS if f"<{key}>" in listed} == set(look)
        for key, severity in look.items():
            alone = open_texts.get(key, open_texts.get("several", ""))
            assert severity == "warning" or alone.startswith("critical")


def test_up_to_three_faults_get_messages_of_their_own_and_more_share_one() -> None:
    few, many = dict.fromkeys("abc", "warning"), dict.fromkeys("abcd", "warning")
    assert [len(messages) for messages in told_of([few, {}])] == [3, 3]
    (began,), (ended,) = told_of([many, {}])
    assert (began.event, began.text) == ("began", "4 faults: <a>; <b>; <c>; <d>")
    assert (ended.event, ended.text) == ("ended", "no longer: <a>; <b>; <c>; <d>")
    assert began.key == ended.key


def test_a_fault_of_a_group_that_gets_worse_is_reported() -> None:
    many = dict.fromkeys("abcd", "warning")
    _, (worse,) = told_of([many, many | {"b": "critical"}])
    assert (worse.event, worse.severity) == ("began", "critical")
