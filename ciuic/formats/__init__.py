"""Headers of checkpoint formats -> where their tensors are and what they are called."""
