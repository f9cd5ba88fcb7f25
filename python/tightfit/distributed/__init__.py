"""Training on several devices: `plan` cuts a model into the stages of a pipeline under a budget for each device.

Invariant: importing this loads `torch`, and begins no process group.
"""

from .planning import StagePlan, plan
from .running import Pipeline

__all__ = ["Pipeline", "StagePlan", "plan"]
