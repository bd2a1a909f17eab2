import copy

import pytest
import torch

from resume_core.capture.optimizer import place_optimizer_state

KINDS = {
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "foreach AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True, momentum=0.1),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
}


def conv(dtype=torch.float32):
    torch.manual_seed(1)
    return torch.nn.Conv2d(3, 4, 3).to(dtype).to(memory_format=torch.channels_last)


def step(net, optimizer, seed):
    optimizer.zero_grad()
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    images = images.to(net.weight.dtype).to(memory_format=torch.channels_last)
    net(images).float().pow(2).mean().backward()
    optimizer.step()


def trained(kind, net, steps=3):
    optimizer = KINDS[kind](net.parameters())
    for seed in range(steps):
        step(net, optimizer, seed)
    return optimizer


def restored(kind, net, saved, weights):
    net.load_state_dict(weights)
    optimizer = KINDS[kind](net.parameters())
    optimizer.load_state_dict(copy.deepcopy(saved))
    place_optimizer_state(optimizer, saved)
    return optimizer


def tensors(optimizer):
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_next_step_is_equal_to_the_bit(kind, dtype):
    net = conv(dtype)
    optimizer = trained(kind, net)
    saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(net.state_dict())
    other = conv(dtype)
    other_optimizer = restored(kind, other, saved, weights)
    for seed in (10, 11):
        step(net, optimizer, seed)
        step(other, other_optimizer, seed)
        assert all(torch.equal(one, two) for one, two in zip(net.parameters(), other.parameters(), strict=True))
        for one, two in zip(tensors(optimizer), tensors(other_optimizer), strict=True):
            assert torch.equal(one, two)
            assert one.stride() == two.stride()


def with_master_state(net):
    """An optimizer that keeps fp32 moments of bf16 parameters."""
    optimizer = trained("SGD", net)
    for state in optimizer.state.values():
        state["momentum_buffer"] = state["momentum_buffer"].float() + 1e-4
        state["nested"] = {"list": [torch.full((3,), 1 + 2**-20)], "count": 3}
    return optimizer


def test_fp32_state_of_bf16_parameters_is_kept():
    net = conv(torch.bfloat16)
    saved = copy.deepcopy(with_master_state(net).state_dict())
    optimizer = restored("SGD", conv(torch.bfloat16), saved, net.state_dict())
    for place, state in enumerate(optimizer.state.values()):
        expected = saved["state"][place]
        assert torch.equal(state["momentum_buffer"], expected["momentum_buffer"])
        assert state["momentum_buffer"].dtype == torch.float32
        assert torch.equal(state["nested"]["list"][0], expected["nested"]["list"][0])
        assert state["nested"]["count"] == 3


def test_strides_of_the_moments_are_those_that_were_saved():
    net = conv()
    optimizer = trained("fused AdamW", net)
    saved = copy.deepcopy(optimizer.state_dict())
    other = KINDS["fused AdamW"](conv().parameters())
    contiguous = copy.deepcopy(saved)
    contiguous["state"][0]["exp_avg"] = saved["state"][0]["exp_avg"].contiguous()  # as some formats hand it back
    other.load_state_dict(contiguous)
    place_optimizer_state(other, saved)
    [exp_avg, *_] = [state["exp_avg"] for state in other.state.values()]
    assert exp_avg.stride() == saved["state"][0]["exp_avg"].stride() != contiguous["state"][0]["exp_avg"].stride()
    assert torch.equal(exp_avg, saved["state"][0]["exp_avg"])


def test_the_saved_state_does_not_move_with_the_optimizer():
    net = conv(torch.bfloat16)
    saved = copy.deepcopy(with_master_state(net).state_dict())
    before = saved["state"][0]["momentum_buffer"].clone()
    optimizer = restored("SGD", conv(torch.bfloat16), saved, net.state_dict())
    next(iter(optimizer.state.values()))["momentum_buffer"].zero_()
    assert torch.equal(saved["state"][0]["momentum_buffer"], before)


def test_what_is_like_the_saved_already_is_not_copied_again():
    net = conv()
    saved = trained("SGD", net).state_dict()
    optimizer = KINDS["SGD"](conv().parameters())
    optimizer.load_state_dict(saved)
    before = [id(value) for value in tensors(optimizer)]
    place_optimizer_state(optimizer, saved)
    assert [id(value) for value in tensors(optimizer)] == before


def test_state_of_parameters_in_several_groups_is_placed_by_their_order():
    def groups(net):
        return torch.optim.SGD([{"params": [net.bias]}, {"params": [net.weight]}], lr=0.1, momentum=0.9)

    net = conv(torch.bfloat16)
    optimizer = groups(net)
    step(net, optimizer, 1)
    optimizer.state[net.weight]["momentum_buffer"] = optimizer.state[net.weight]["momentum_buffer"].float() + 1e-4
    saved = copy.deepcopy(optimizer.state_dict())
    other = conv(torch.bfloat16)
    other_optimizer = groups(other)
    other_optimizer.load_state_dict(copy.deepcopy(saved))
    place_optimizer_state(other_optimizer, saved)
    assert torch.equal(
        other_optimizer.state[other.weight]["momentum_buffer"], optimizer.state[net.weight]["momentum_buffer"]
    )
    assert other_optimizer.state[other.bias]["momentum_buffer"].dtype == torch.bfloat16


def test_state_of_parameters_that_are_gone_is_passed_over():
    saved = trained("SGD", conv()).state_dict()
    optimizer = torch.optim.SGD([conv().weight], lr=0.1, momentum=0.9)
    place_optimizer_state(optimizer, saved)
    assert not optimizer.state
