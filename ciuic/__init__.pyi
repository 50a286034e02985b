from ciuic.training.manager import SnapshotManager as SnapshotManager

__version__: str
