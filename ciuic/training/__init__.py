"""The library: a training program saves its own state, and loads it again.

    manager      the user's calls           saves      the save that is under way
    cadence      when a save is due         handle     what a user waits on
    preemption   SIGTERM and SIGUSR1        ranks      one snapshot of several processes
    objects      states of user's objects   loading    a snapshot -> values
    fitting      a model that has changed   values     Python values <-> JSON and plain arrays
    rng          random number generators   files      the files of a snapshot
    completeness warnings about what a training would lack
    staging      copies into shared memory  client     starts the writer's process, and asks it
    writer       the program of that process
    saving       a save in that process     reducing   a full state -> its weights alone
    layers       a save in parts            finding    snapshots by step or tag
    retention    which snapshots stay       dcp        torch.distributed.checkpoint

A save copies the state into shared memory and returns. Another process, which survives the
training program, stores the files and commits. torch is imported only where a value needs it.
"""
