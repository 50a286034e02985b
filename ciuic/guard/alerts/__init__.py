"""Alerts: one message when a fault begins, another when it ends.

message    what an alert says, in the forms that services take
channels   ``[alert NAME]`` sections -> where messages go
grouping   rules that fire at once -> one message
send       one attempt to hand a message over
deliver    attempts with back-off, in a process of its own that outlives the guard
"""
