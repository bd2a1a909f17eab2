import pytest
import torch

from resume_core.capture.gradients import apply_gradients, capture_gradients


def make():
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 2), torch.nn.Flatten(), torch.nn.Linear(12, 1))
    return net.to(memory_format=torch.channels_last)


def backward(net, seed):
    images = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(seed))
    net(images.to(memory_format=torch.channels_last)).pow(2).mean().backward()


def named(net):
    return dict(net.named_parameters())


def copied(gradients):
    return {name: gradient.clone() for name, gradient in gradients.items()}


def test_a_half_filled_window_is_finished_as_if_it_had_not_been_interrupted():
    whole, resumed = make(), make()
    backward(whole, 1)
    saved = copied(capture_gradients(named(whole)))
    backward(whole, 2)
    apply_gradients(named(resumed), saved)
    backward(resumed, 2)
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
        assert one.grad.stride() == other.grad.stride()


def test_the_captured_gradients_are_the_live_ones():
    net = make()
    backward(net, 1)
    assert all(gradient is named(net)[name].grad for name, gradient in capture_gradients(named(net)).items())


def test_parameters_without_a_gradient_are_left_out_and_end_up_without():
    net = make()
    backward(net, 1)
    saved = copied(capture_gradients(named(net)))
    del saved["0.bias"]
    backward(net, 2)
    apply_gradients(named(net), saved)
    assert net[0].bias.grad is None
    assert torch.equal(net[0].weight.grad, saved["0.weight"])
    assert capture_gradients(named(net)).keys() == saved.keys()


def test_without_saved_gradients_none_are_left():
    net = make()
    backward(net, 1)
    apply_gradients(named(net), {})
    assert capture_gradients(named(net)) == {}


def test_a_gradient_of_another_shape_is_refused():
    with pytest.raises(RuntimeError, match="size"):
        apply_gradients(named(make()), {"0.bias": torch.zeros(7)})
