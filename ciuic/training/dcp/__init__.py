"""A storage back end of ``torch.distributed.checkpoint``: its checkpoints as snapshots of a store.

    writer      ``CiuicWriter``                 reader      ``CiuicReader``
    document    the metadata <-> JSON           shards      the items of one rank as one file
    handover    how the ranks of a machine hand their shards to the one that commits

Each rank copies its items into shared memory and hands this to the coordinator, which stores all of
them as one snapshot.
"""
