"""The library: a training program saves its own state, and loads it again.

    manager      the calls of a user        state      what a snapshot holds, as values
    structure    Python values <-> JSON     arrays     tensors and arrays <-> bytes
    files        the files of a snapshot    staging    memory that both processes share
    client       the writer's process       writer     the program of that process

A save copies the state into shared memory and returns. Another process, which survives the
training program, stores the files and commits. torch is imported only where a value needs it.
"""
