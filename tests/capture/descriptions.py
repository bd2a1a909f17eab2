"""Objects to describe, and what is found in their descriptions."""

import json

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from resume_core.capture.runconfig import diff, from_json, to_json


def model():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


def adamw(lr=0.1, **settings):
    return torch.optim.AdamW(model().parameters(), lr=lr, **settings)


def sgd(lr=0.1):
    return torch.optim.SGD(model().parameters(), lr=lr, momentum=0.9)


def changed(before, after):
    return {difference.name: (difference.saved, difference.current) for difference in diff(before, after)}


def through_json(facts):
    return from_json(json.loads(json.dumps(to_json(facts))))


def sequential(horizon=10):
    optimizer = sgd()
    parts = [LinearLR(optimizer, total_iters=3), CosineAnnealingLR(optimizer, horizon)]
    return SequentialLR(optimizer, parts, [3])
