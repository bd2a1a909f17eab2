"""What a run tells of its losses are those of its training_step, whatever the loop makes of them."""

from __future__ import annotations

import json

import pytest
from small import Net

LOSS = 3.0


class Same(Net):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * 0 + LOSS


class ByHand(Same):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.optimizers().zero_grad()
        self.manual_backward(loss)
        self.optimizers().step()
        return loss


@pytest.mark.parametrize(("net", "accumulate"), [(Same, 1), (Same, 3), (ByHand, 1)])
def test_losses_are_told_as_the_script_has_computed_them(fit, tmp_path, net, accumulate):
    fit(net=net(), accumulate_grad_batches=accumulate)
    (history,) = (tmp_path / "run").glob("*/history.json")
    told = json.loads(history.read_bytes())["losses"]
    assert told
    assert {loss for _, loss in told} == {LOSS}
