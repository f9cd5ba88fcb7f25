"""Calls every function of MKL's vector library once, on one thread, so that eager computes the same bits in every
process.

MKL chooses the kernel of such a function at its first call. If several threads make that call at once, one of them may
run a less accurate kernel for its part, in this one call (pytorch/pytorch#188792): about one fresh process of 5,000
then has a first step whose `tanh`, or whose AdamW's `sqrt`, differs from all others'. Processes forked from one that
has made the choice inherit it.
"""

import torch

FUNCTIONS = ("acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "floor", "lgamma",
             "log", "log10", "log1p", "log2", "reciprocal", "round", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan",
             "tanh", "trunc")

for dtype in (torch.float32, torch.float64):
    for function in FUNCTIONS:
        getattr(torch, function)(torch.full((1,), 0.5, dtype=dtype))
