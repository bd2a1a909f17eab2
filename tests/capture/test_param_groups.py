import pytest
import torch

from resume_core.capture.param_groups import apply_groups, capture_groups, group_sizes
from resume_core.errors import UnsupportedStateError


def net():
    return torch.nn.ModuleDict({"first": torch.nn.Linear(2, 2), "late": torch.nn.Linear(2, 1)})


def optimizer_of(module, *, is_named=False):
    layer = module["first"]
    return torch.optim.AdamW(layer.named_parameters() if is_named else layer.parameters(), lr=0.1)


def parameters(module):
    return dict(module.named_parameters())


def names(optimizer, module):
    found = {id(parameter): name for name, parameter in module.named_parameters()}
    return [[found[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


@pytest.mark.parametrize("is_named", [False, True])
def test_a_new_optimizer_gets_the_groups_that_training_had_added_and_loads_their_settings(is_named):
    module, other = net(), net()
    optimizer, again = optimizer_of(module, is_named=is_named), optimizer_of(other, is_named=is_named)
    before = group_sizes([optimizer])
    assert capture_groups([optimizer], parameters(module), before) == {}
    late = module["late"].named_parameters() if is_named else module["late"].parameters()
    optimizer.add_param_group({"params": list(late), "lr": 0.03})
    saved = capture_groups([optimizer], parameters(module), before)
    apply_groups([again], parameters(other), saved)
    again.load_state_dict(optimizer.state_dict())
    assert names(again, other) == [["first.weight", "first.bias"], ["late.weight", "late.bias"]]
    assert [group["lr"] for group in again.param_groups] == [0.1, 0.03]
    apply_groups([again], parameters(other), saved)  # a callback may have built them
    assert len(again.param_groups) == 2


def test_parameters_that_moved_between_groups_and_groups_that_went_are_found_again():
    module, other = net(), net()
    optimizer, again = optimizer_of(module), optimizer_of(other)
    for made in (optimizer, again):
        owner = module if made is optimizer else other
        made.add_param_group({"params": list(owner["late"].parameters())})
    before = group_sizes([optimizer])
    optimizer.param_groups[0]["params"] = [module["late"].bias, *module["first"].parameters()]
    del optimizer.param_groups[1]
    apply_groups([again], parameters(other), capture_groups([optimizer], parameters(module), before))
    assert names(again, other) == [["late.bias", "first.weight", "first.bias"]]


def test_a_group_of_parameters_that_nobody_saves_is_refused():
    module = net()
    optimizer = optimizer_of(module)
    before = group_sizes([optimizer])
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    with pytest.raises(UnsupportedStateError, match="optimizer 0 was given a parameter group during training"):
        capture_groups([optimizer], parameters(module), before)
