"""ciuicd: the daemon that takes a snapshot whenever one is due.

__main__   arguments, logging, signals, exit code
service    what it does, and everything that it is made of
schedule   when a snapshot is due: arithmetic only
followup   one more snapshot, once files in flux have been closed
watch      events of such files
upkeep     forget, prune and scrub, between two snapshots
space      frozen copies given up where a disk runs full
control    the control socket: requests in, replies out
notify     what systemd is told
"""
