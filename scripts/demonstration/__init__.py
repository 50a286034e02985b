"""The demonstration that ``scripts/demo`` runs: a training run that dies and comes back.

``__main__`` reads the arguments and cleans up, ``acts`` tells the story, ``stage`` runs and shows
commands, ``journal`` reads the training's log, ``train`` is the training program itself.

All but ``train`` need the standard library alone, because they run before ciuic is installed, and
they use ciuic as a person does: by its commands, never by its modules.
"""
