"""Training loops that are the user's own, run by PyTorch within a budget of bytes.

Invariant: the loop stays PyTorch's; what this package adds is what a forward and a backward pass keep and compute again.
"""
