"""Imported last in the process that others are forked from. What was imported until then is never garbage: collections
skip it, which saves a fifth of the time of capturing a model, and leave its memory shared."""

import atexit
import gc

gc.collect()
gc.freeze()
atexit.register(gc.unfreeze)  # libraries complain about objects left at exit
