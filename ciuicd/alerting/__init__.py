"""Alerts about what is missing or damaged, from a process of its own: the daemon has no network.

It looks at the store, so it also notices a daemon that is stopped, hangs or was never started.

faults    what is wrong, as the store and the machine show it
notices   a message when a fault begins, and another when it ends
"""
