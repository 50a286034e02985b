"""What the daemon does for the store between two snapshots.

upkeep       when forget, prune, scrub and drill run, and what stops them
forgetting   forget, by the retention policy
pruning      prune: when it is due, and plans that are interrupted
scrubbing    scrub, within the budget of the day
practice     drills
damage_log   log lines for damage that scrub finds
outcomes     what each task did last, for the daemon's status
"""
