"""Layers: parameters in groups, the important groups first.

groups    which parameter belongs to which group
sessions  the store, opened again for each commit where a session has only one
commits   the writer's side: a save that commits group after group
"""
