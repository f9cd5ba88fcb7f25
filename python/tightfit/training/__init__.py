"""Training loops that are the user's own, run by PyTorch within a budget of bytes.

Invariant: the loop stays PyTorch's; this package only changes what the two passes keep and recompute.
"""
