"""The schedules of a configuration: what the daemon knows of each, and which is next.

automatic   the interval that costs least, for snapshot_interval = auto
due         when a snapshot is due: arithmetic only
namesakes   snapshots of another machine with the name and machine ID of this one
order       which snapshot begins next: of a schedule, or one that a user asked for
state       when one schedule is due, and how it went
turns       all of them: which one is next
"""
