"""A training program as a job: its processes, its cgroup, and what happens to it.

cgroup       a cgroup (version 2) of the job's own
processes    the processes below another one; stopping and continuing them
command      starting a command, passing signals on, pausing it
logs         the job's logs while they grow
release      a process that lets a paused job go on if ciuic is killed
idle         whether the job stands still
gpus         whether a GPU works for it
guarding     waiting for the end of a job while rules watch its logs
"""
