"""Rules over the steps that a training program logs.

language     text -> conditions
conditions   what a condition remembers from step to step
quiet        which of many steps need no look
state        a rule and its conditions: step by step, or over many steps at once
rows         many lines -> the steps that they begin, with their fields
steps        lines of several files and ranks -> steps in order
watching     all rules over all logs: which of them fire, and which step to go back to
replay       rules over complete logs

A rule is a section of the configuration::

    [rule divergence]
    when = loss rises more than 15% for 3 steps and gpu_util < 40 for 3 steps
    then = pause
"""
