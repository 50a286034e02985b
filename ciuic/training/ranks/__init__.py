"""Several ranks with one state: each hands its part over, and the writer of rank 0 commits all.

    job        which rank this is        wire    messages with descriptors
    client     the side of a rank        server  the side of the writer
    agreement  the snapshot that all ranks load

A part is not copied: a rank sends the descriptor of its shared memory. The protocol does not use
the training's process group, so a rank that fails blocks no collective operation of the training.
"""
