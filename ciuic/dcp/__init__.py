"""A storage back end of ``torch.distributed.checkpoint``; importing it imports torch.

dcp.save(state, storage_writer=CiuicWriter('./snapshots'))
dcp.load(state, storage_reader=CiuicReader('./snapshots'))
"""

from ciuic.training.dcp.reader import CiuicReader
from ciuic.training.dcp.writer import CiuicWriter

__all__ = ["CiuicReader", "CiuicWriter"]
