"""Which accepted changes are not applied."""

from __future__ import annotations

import pytest

from resume_core.capture.as_saved import goes_on_as_saved


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        ("seed", True),
        ("optimizer.0.lr", True),
        ("scheduler.0.T_max", True),
        ("scheduler.0.schedulers.1.gamma", True),
        ("scheduler.0.lr_lambdas.0.num_warmup_steps", False),
        ("scheduler.0.scale_fn_custom.0.power", False),
        ("data.0.batch_size", False),
        ("seeds.mine", False),
        ("hparams.optimizer", False),
        ("origin", False),
    ],
)
def test_what_a_checkpoint_restores_goes_on_as_it_was_saved(name, is_kept):
    assert goes_on_as_saved(name) == is_kept
