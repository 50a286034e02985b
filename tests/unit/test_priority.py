"""Messages about disks and their schedulers, with made-up directories like sysfs."""

import os

import pytest

from ciuic.system.priority import describe_schedulers, lower_priority, schedulers_of


@pytest.fixture
def sysfs(tmp_path):
    """Return a function that makes block devices, and a directory in place of /sys/dev/block."""
    numbers = tmp_path / "dev-block"
    numbers.mkdir()

    def number_of(path):
        device = os.stat(path).st_dev
        return f"{os.major(device)}:{os.minor(device)}"

    def disk(name, scheduler):
        queue = tmp_path / "devices" / name / "queue"
        queue.mkdir(parents=True)
        (queue / "scheduler").write_text(scheduler)
        return queue.parent

    def show(node):
        (numbers / number_of(tmp_path)).symlink_to(node)
        return str(numbers)

    return disk, show


def test_a_disk_has_the_scheduler_in_brackets(sysfs, tmp_path):
    disk, show = sysfs
    assert schedulers_of(str(tmp_path), show(disk("sda", "none [bfq] kyber\n"))) == {"sda": "bfq"}


def test_a_partition_has_that_of_its_disk(sysfs, tmp_path):
    disk, show = sysfs
    partition = disk("nvme0n1", "[none] mq-deadline\n") / "nvme0n1p1"
    partition.mkdir()
    assert schedulers_of(str(tmp_path), show(partition)) == {"nvme0n1": "none"}


def test_a_logical_volume_has_those_of_the_disks_below_it(sysfs, tmp_path):
    disk, show = sysfs
    below = [disk("sda", "[bfq] none\n"), disk("sdb", "[none]\n")]
    volume = disk("dm-0", "none\n")
    (volume / "slaves").mkdir()
    for one in below:
        (volume / "slaves" / one.name).symlink_to(one)
    assert schedulers_of(str(tmp_path), show(volume)) == {"sda": "bfq", "sdb": "none"}


def test_a_device_without_a_queue_and_a_missing_path_have_no_scheduler(sysfs, tmp_path):
    _, show = sysfs
    bare = tmp_path / "devices" / "odd" / "odd1"
    bare.mkdir(parents=True)
    assert schedulers_of(str(tmp_path), show(bare)) == {}
    assert schedulers_of(str(tmp_path / "missing")) == {}
    assert schedulers_of("/proc") == {}


def test_the_description_tells_what_heeds_the_priority_from_what_does_not(monkeypatch):
    disks = {
        "/a": {"sda": "bfq", "sdb": "mq-deadline"},
        "/b": {"nvme0n1": "none", "nvme1n1": "kyber"},
        "/c": {},
    }
    monkeypatch.setattr("ciuic.system.priority.schedulers_of", disks.__getitem__)
    assert describe_schedulers(["/a", "/b", "/c"]) == (
        "honored by sda (bfq), sdb (mq-deadline); "
        "ignored by the I/O scheduler of nvme0n1 (none), nvme1n1 (kyber); "
        "scheduler unknown for /c"
    )


def test_no_priority_wanted_means_nothing_is_done():
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert lower_priority("none") is None
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
