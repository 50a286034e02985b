"""``ciuic doctor``: checks whether a recovery would work on this machine. Changes nothing."""
