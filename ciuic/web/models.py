"""The JSON documents of the HTTP API. ``openapi`` describes them from here.

``works`` has those that start jobs, and says how bytes that are not UTF-8 are sent.
"""

from typing import Final, Literal

from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from ciuic.web.works import Text, Work

__all__ = [
    "Change",
    "ChangePage",
    "ChangedFiles",
    "ComparedRun",
    "ComparedSnapshot",
    "Configuration",
    "Copy",
    "Drill",
    "Error",
    "ErrorAnswer",
    "Finding",
    "Follow",
    "Job",
    "JobList",
    "Marker",
    "Metric",
    "Overview",
    "Progress",
    "RootState",
    "RunComparison",
    "RunList",
    "Snapshot",
    "SnapshotComparison",
    "SnapshotDetail",
    "SnapshotPage",
    "StoreSpace",
    "TimelineAnswer",
    "TreeEntry",
    "TreePage",
    "Trouble",
    "schemas",
]


class Error(BaseModel):
    """What went wrong, and what to do."""

    kind: str
    message: Text
    hint: Text


class ErrorAnswer(BaseModel):
    """The answer to a request that failed."""

    error: Error


class Follow(BaseModel):
    """What had been restored before a snapshot, and the snapshot that it came from."""

    path: Text
    snapshot: str


class Snapshot(BaseModel):
    """A snapshot, with the fields of ``ciuic list --json``."""

    id: str
    kind: str
    parent: str | None
    follows: list[Follow]
    taken: str
    files: int
    logical_bytes: int
    new_bytes: int
    stored_bytes: int
    tags: list[Text]
    pinned: bool
    note: Text
    trouble_count: int
    flux_count: int
    roots: list[Text]
    host: Text
    machine: str
    origin: str
    schedule: Text
    complete: bool
    chain_length: int
    chain_complete: bool
    copies: list[Text] = Field(description="the copies that have or had it")


class SnapshotPage(BaseModel):
    """A part of the list, newest first. ``next`` is the ``after`` of the next part, or null."""

    snapshots: list[Snapshot]
    total: int
    next: str | None


class StoreSpace(BaseModel):
    """What the snapshots of the store take together, as their manifests say."""

    store: Text
    snapshots: int
    logical_bytes: int
    stored_bytes: int
    newest: Snapshot | None


class RootState(BaseModel):
    """A root of a snapshot; ``missing`` says why it could not be read."""

    path: Text
    tree: str = Field(description="the ID of its tree; empty: it could not be read")
    missing: Text
    capture: str


class Trouble(BaseModel):
    """A path that the snapshot could not store as it should."""

    path: Text
    what: Text


class SnapshotDetail(BaseModel):
    """A snapshot with what its manifest says, as ``ciuic show --json``."""

    snapshot: Snapshot
    writer: Text
    read_bytes: int
    freeze_s: float
    exclude: list[Text]
    exclude_larger_than_bytes: int = Field(description="0: no limit")
    exclude_caches: bool
    exclude_if_present: list[Text]
    roots: list[RootState]
    trouble: list[Trouble]
    before: str | None = Field(description="the snapshot before it of the same directories")


class TreeEntry(BaseModel):
    """An entry, with the fields of ``ciuic ls --json``."""

    path: Text
    type: str
    mode: str
    uid: int
    gid: int
    size_bytes: int
    mtime: str
    state: str
    target: Text | None


class TreePage(BaseModel):
    """An entry, and a part of what is in it; ``next`` is the ``after`` of the next part."""

    snapshot: str
    entry: TreeEntry | None = Field(description="null above the roots")
    entries: list[TreeEntry]
    next: Text | None


class Change(BaseModel):
    """A change, with the fields of ``ciuic diff --json``."""

    change: str
    path: Text
    size_before_bytes: int | None
    size_after_bytes: int | None
    difference_bytes: int | None


class ChangePage(BaseModel):
    """A part of the changes from one snapshot to another; ``more``: there are further ones."""

    before: str
    after: str
    skip: int
    changes: list[Change]
    more: bool


class Finding(BaseModel):
    """One line of ``ciuic doctor``."""

    level: Literal["ok", "note", "warning", "problem"]
    about: Text
    what: Text
    advice: Text


class Drill(BaseModel):
    """The last recovery that was practiced; ``outcome`` is empty if it went well."""

    ended: str
    files: int
    restored_bytes: int
    outcome: Text


class Copy(BaseModel):
    """How far a copy is behind, with the fields of ``ciuic status --json``."""

    name: Text
    address: Text
    missing: int
    behind_s: float
    tried: str | None
    done: str | None
    problem: Text | None
    damaged: int = Field(description="snapshots of the copy that stay damaged, as it last found")
    differences: list[Text] = Field(description="how it is ahead of the store, or has diverged")


class Overview(BaseModel):
    """Whether all is well. Times are seconds; null: not known."""

    level: Literal["ok", "warning", "problem"]
    headline: str
    store: Text
    snapshots: int
    newest: Snapshot | None
    newest_age_s: float | None
    next: str | None
    doing: Text | None
    free_bytes: int | None
    total_bytes: int | None
    full_in_s: float | None = Field(description="at the pace of the last seven days")
    packs: int | None = Field(description="of a bucket, those that this machine knows")
    checked_packs: int | None = Field(description="read in full since they were written, and sound")
    copies: list[Copy] = Field(description="the copies that the configuration names")
    last_drill: Drill | None
    examined_s: float = Field(description="how long ago the findings were found")
    findings: list[Finding]


class Marker(BaseModel):
    """A snapshot on a timeline, with the fields of ``ciuic timeline --json``."""

    id: str
    taken: str
    state: str = Field(description="whole, in flux, suspect or damaged")
    pinned: bool
    tags: list[Text]
    logical_bytes: int
    step: int | None
    value: float | None
    placed_by: str | None


class TimelineAnswer(BaseModel):
    """The values of a field over the steps, and all snapshots, newest first."""

    field: Text | None = Field(description="null: nothing has been logged")
    fields: list[Text] = Field(description="the fields of the logs that hold numbers")
    curves: list[list[tuple[int, float]]] = Field(
        description="step and value; one array for each stretch in which steps do not go down"
    )
    left_out_curves: int
    not_finite: int
    unchecked_packs: int | None = Field(
        description="not read since written: no damage of them is known; null: this machine has no"
        " index of the bucket"
    )
    markers: list[Marker]


class Metric(BaseModel):
    """A value that was logged; null: it is not finite."""

    name: Text
    value: float | None


class ChangedFiles(BaseModel):
    """How many paths differ from the first snapshot."""

    added: int
    removed: int
    changed: int
    metadata: int


class Configuration(BaseModel):
    """A configuration file that differs: a unified diff, or why there is none."""

    path: Text
    diff: list[Text]
    what: Text


class ComparedSnapshot(BaseModel):
    """A snapshot in a comparison. The first is what the others are compared with."""

    snapshot: Snapshot
    step: int | None
    epoch: float | None
    metrics: list[Metric]
    changed_files: ChangedFiles | None
    configuration: list[Configuration]


class SnapshotComparison(BaseModel):
    """Snapshots beside each other, as ``ciuic compare --quick --json`` shows them."""

    snapshots: list[ComparedSnapshot]


class RunList(BaseModel):
    """The runs that the store knows by a name or by their directory; others have a tag."""

    runs: list[Text]


class ComparedRun(BaseModel):
    """A run in a comparison, with its last or its best snapshot."""

    run: Text
    label: Text = Field(description="a short name that tells it apart from the others")
    directories: list[Text]
    snapshots: int
    first: str
    last: str
    last_step: int | None
    logs: list[Text] = Field(description="in the last snapshot; none: the snapshots have metrics")
    curve: list[tuple[int, float]] = Field(description="the field by step")
    not_finite_from: int | None = Field(
        description="the step from which on no value of the field is finite"
    )
    chosen: ComparedSnapshot


class RunComparison(BaseModel):
    """Runs beside each other, as ``ciuic compare --runs --quick --json`` shows them."""

    runs: list[ComparedRun]
    fields: list[Text]
    field: Text | None = Field(description="null: nothing has been logged")
    steps: list[int]
    values: list[list[float | None]] = Field(description="for each step, one for each run")


class Progress(BaseModel):
    """How far a job is; a total of 0 is not known."""

    files: int = 0
    done_bytes: int = 0
    total_bytes: int = 0
    path: Text = b""


class Job(BaseModel):
    """A job. ``report`` is the document that the command prints with ``--json``."""

    id: str
    state: Literal["running", "done", "failed", "cancelled"]
    began: str
    ended: str | None
    work: Work
    command: str = Field(description="the command line that does the same")
    progress: Progress
    report: dict[str, object] | None
    error: Error | None


class JobList(BaseModel):
    """The jobs of this server, newest first."""

    jobs: list[Job]


def schemas() -> dict[str, object]:
    """Return the JSON schema of each document by its name."""
    found = models_json_schema(
        [(model, "serialization") for model in _DOCUMENTS],
        ref_template="#/components/schemas/{model}",
    )[1]
    return dict(found["$defs"])


_DOCUMENTS: Final = (
    ChangePage,
    ErrorAnswer,
    Job,
    JobList,
    Overview,
    RunComparison,
    RunList,
    SnapshotComparison,
    SnapshotDetail,
    SnapshotPage,
    StoreSpace,
    TimelineAnswer,
    TreePage,
)
