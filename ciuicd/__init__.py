"""ciuicd: the daemon that takes a snapshot whenever one is due.

__main__       arguments, logging, signals, exit code
service        the main loop; owns everything below
program        whether the program on disk is still the one that runs
attempts       attempts at snapshots, and what is recorded of them
hold           the lock on the store, and the control socket in it
taking         taking a snapshot by the configuration
schedules      when each schedule is due, and which one is next
jobs           requests that wait; work in child processes
followup       another snapshot once files that were being written are closed
watch          events of these files
upkeep         forget, prune, scrub and drill between two snapshots
space          giving up reflink copies when their disk runs short of space
alerting       alerts about what is missing or damaged, from a unit of its own
copying        the configured copies, from a unit of its own
metrics        figures for Prometheus
served_stores  which store a path holds, so that none is made below a lost mount
control        the server of the control socket
notify         messages to systemd
attempt        how failures are handled
logs           the log, as text or as JSON
"""
