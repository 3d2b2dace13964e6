"""Q-networks: their sizes, what they make of pixels, planes and vectors, their own gradients, and where they start."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lambda_replay.config import NetworkConfig
from lambda_replay.errors import ConfigError
from lambda_replay.learning.fast_networks import accelerate
from lambda_replay.learning.networks import MLP, AtariNetwork, MinAtarNetwork, make_network

Kind = Any  # the choices of network.kind


def make(kind: Kind, state_shape: tuple[int, ...], num_actions: int = 3, seed: int = 0, **config: Any) -> nn.Module:
    return make_network(NetworkConfig(kind=kind, **config), state_shape, num_actions, seed)


def some_states(num_states: int, state_shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(num_states, *state_shape, generator=generator) < 0.3
    if dtype == torch.uint8:
        return torch.randint(256, (num_states, *state_shape), generator=generator, dtype=torch.uint8)
    return torch.randn(num_states, *state_shape, generator=generator)


def num_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def with_random_norms(network: nn.Module) -> nn.Module:
    """A LayerNorm starts with weight 1 and bias 0, which would hide a mistake."""
    generator = torch.Generator().manual_seed(2)
    for module in network.modules():
        if isinstance(module, nn.LayerNorm):
            with torch.no_grad():
                module.weight.copy_(0.5 + torch.rand(module.weight.shape, generator=generator))
                module.bias.copy_(torch.randn(module.bias.shape, generator=generator))
    return network


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


# --- golden -----------------------------------------------------------------------------------------------------------


def test_the_atari_network_has_the_size_of_its_source() -> None:
    """84×84×4 pixels, 6 actions (Mnih et al. 2015).

    8×8×4·32 + 32 = 8,224; 4×4×32·64 + 64 = 32,832; 3×3×64·64 + 64 = 36,928; the pictures shrink to 20, 9 and 7 pixels;
    7·7·64·512 + 512 = 1,606,144; 512·6 + 6 = 3,078; in all 1,687,206.
    """
    network = make("atari", (4, 84, 84), num_actions=6)
    assert isinstance(network, AtariNetwork)
    assert num_parameters(network) == 1_687_206


def test_the_minatar_network_has_the_size_of_its_source() -> None:
    """10×10×4 planes, 3 actions: 3·3·4·16 + 16 = 592; 8·8·16·128 + 128 = 131,200; 128·3 + 3 = 387; in all 132,179."""
    network = make("minatar", (1, 10, 10, 4), num_actions=3)
    assert isinstance(network, MinAtarNetwork)
    assert num_parameters(network) == 132_179


@pytest.mark.parametrize(("hidden", "size"), [((), 8 * 3 + 3), ((5,), 8 * 5 + 5 + 5 * 3 + 3), ((5, 2), 45 + 12 + 9)])
def test_the_mlp_has_its_hidden_layers(hidden: tuple[int, ...], size: int) -> None:
    network = make("mlp", (2, 4), num_actions=3, hidden=hidden)
    assert isinstance(network, MLP)
    assert num_parameters(network) == size


def test_layer_norm_adds_a_weight_and_a_bias_per_hidden_unit() -> None:
    """Atari 12,800 + 5,184 + 3,136 + 512 units, MinAtar 1,024 + 128, the mlp its hidden layers; off by default."""
    for kind, state_shape, units in (
        ("atari", (4, 84, 84), 20 * 20 * 32 + 9 * 9 * 64 + 7 * 7 * 64 + 512),
        ("minatar", (1, 10, 10, 4), 8 * 8 * 16 + 128),
        ("mlp", (2, 4), 128 + 128),
    ):
        plain, normed = make(kind, state_shape), make(kind, state_shape, layer_norm=True)
        assert num_parameters(normed) - num_parameters(plain) == 2 * units
        assert {name: value for name, value in normed.state_dict().items() if "norm" not in name}.keys() == (
            plain.state_dict().keys()
        )


def test_layer_norm_by_hand() -> None:
    """h = W₁x + b₁ = (5.5, −3.5) has mean 1 and deviation 4.5, so it becomes (1, −1) and relu makes it (1, 0)."""
    network = make("mlp", (1, 2), num_actions=2, hidden=(2,), layer_norm=True)
    with torch.no_grad():
        for parameter, values in zip(
            network.parameters(),
            ([[1.0, -2.0], [-1.0, 1.0]], [0.5, -0.5], [[2.0, 7.0], [-1.0, 7.0]], [0.25, 0.0], [1.0, 1.0], [0.0, 0.0]),
            strict=True,
        ):
            parameter.copy_(torch.tensor(values))
        torch.testing.assert_close(network(torch.tensor([[[1.0, -2.0]]])), torch.tensor([[2.25, -1.0]]))


def test_an_mlp_by_hand() -> None:
    """h = relu(W₁x + b₁), Q = W₂h + b₂ with x = (1, −2): h = relu(1 + 4 + 0.5, −1 − 2 − 0.5) = (5.5, 0)."""
    network = make("mlp", (1, 2), num_actions=2, hidden=(2,))
    with torch.no_grad():
        for parameter, values in zip(
            network.parameters(),
            ([[1.0, -2.0], [-1.0, 1.0]], [0.5, -0.5], [[2.0, 7.0], [-1.0, 7.0]], [0.25, 0.0]),
            strict=True,
        ):
            parameter.copy_(torch.tensor(values))
    assert network(torch.tensor([[[1.0, -2.0]]])).tolist() == [[11.25, -5.5]]


@pytest.mark.parametrize(
    ("state_shape", "kind"),
    [
        ((1, 4), MLP),
        ((4, 128), MLP),
        ((4, 84, 84), AtariNetwork),
        ((1, 96, 96, 3), AtariNetwork),
        ((2, 3, 96, 96), AtariNetwork),
        ((1, 4, 10, 10), MinAtarNetwork),
        ((1, 4, 12, 6), MinAtarNetwork),
        ((1, 36, 36), AtariNetwork),
        ((1, 36, 35), MinAtarNetwork),
        ((1, 10, 10, 7), MinAtarNetwork),
        ((2, 3, 3), MinAtarNetwork),
        ((1, 3, 2), MLP),
        ((1, 2, 10, 4), MLP),
        ((1, 4, 4, 4, 4), MLP),
    ],
)
def test_which_network_suits_a_state(state_shape: tuple[int, ...], kind: type) -> None:
    network = make("auto", state_shape)
    assert isinstance(network, kind)
    assert network(some_states(2, state_shape, torch.float32)).shape == (2, 3)


# --- identity ---------------------------------------------------------------------------------------------------------

SHAPES: list[tuple[Kind, tuple[int, ...]]] = [
    ("mlp", (1, 4)),
    ("mlp", (3, 5, 2)),
    ("minatar", (1, 10, 10, 4)),
    ("minatar", (2, 5, 7)),
    ("atari", (4, 84, 84)),
    ("atari", (2, 36, 40, 3)),
]


@pytest.mark.parametrize(("kind", "state_shape"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32])
@pytest.mark.parametrize("num_states", [1, 3])
def test_states_become_one_row_of_q_values_each(
    kind: Kind, state_shape: tuple[int, ...], dtype: torch.dtype, num_states: int
) -> None:
    network = make(kind, state_shape, num_actions=5)
    states = some_states(num_states, state_shape, dtype)
    q_values = network(states)
    assert (q_values.shape, q_values.dtype) == ((num_states, 5), torch.float32)
    alone = torch.cat([network(state[None]) for state in states])
    torch.testing.assert_close(q_values, alone, rtol=1e-4, atol=1e-5)  # no state sees another one


@pytest.mark.parametrize(("kind", "state_shape"), SHAPES)
def test_pixels_are_scaled_and_nothing_else_is(kind: Kind, state_shape: tuple[int, ...]) -> None:
    network = make(kind, state_shape)
    pixels = some_states(3, state_shape, torch.uint8)
    torch.testing.assert_close(network(pixels), network(pixels.float() / 255), rtol=1e-4, atol=1e-5)
    planes = some_states(3, state_shape, torch.bool)
    assert torch.equal(network(planes), network(planes.float()))
    assert not torch.allclose(network(planes), network(planes.float() / 255), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("kind", "side"), [("minatar", 10), ("atari", 40)])
def test_channels_and_history_are_one_axis_in_the_order_of_time(kind: Kind, side: int) -> None:
    """[F, H, W, C] is [F·C, H, W], the channels of the oldest frame first."""
    with_channels = make(kind, (2, side, side, 3))
    flat = make(kind, (6, side, side))
    flat.load_state_dict(with_channels.state_dict())
    states = some_states(2, (2, side, side, 3), torch.uint8)
    planes = torch.stack([states[:, frame, :, :, channel] for frame in range(2) for channel in range(3)], dim=1)
    torch.testing.assert_close(with_channels(states), flat(planes), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "side"), [("minatar", 10), ("atari", 40)])
def test_colours_may_come_before_the_pixels(kind: Kind, side: int) -> None:
    last, first = make(kind, (2, side, side, 3)), make(kind, (2, 3, side, side))
    assert same_weights(last, first)
    states = some_states(2, (2, side, side, 3), torch.uint8)
    torch.testing.assert_close(first(states.movedim(4, 2).contiguous()), last(states), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("grid", [(4, 12, 6), (3, 9, 10)])
def test_a_grid_of_few_rows_is_no_picture_with_its_colours_first(grid: tuple[int, int, int]) -> None:
    height, width, planes = grid
    states = some_states(2, (1, *grid), torch.bool)
    network, flat = make("minatar", (1, *grid)), make("minatar", (planes, height, width))
    flat.load_state_dict(network.state_dict())
    torch.testing.assert_close(network(states), flat(states[:, 0].movedim(3, 1)), rtol=1e-4, atol=1e-5)


def test_the_atari_networks_filters() -> None:
    """Mnih et al. (2015): 32 of 8×8 with stride 4, 64 of 4×4 with stride 2, 64 of 3×3 with stride 1."""
    filters = [layer for layer in make("atari", (4, 84, 84)).modules() if isinstance(layer, nn.Conv2d)]
    found = [(layer.out_channels, layer.kernel_size, layer.stride) for layer in filters]
    assert found == [(32, (8, 8), (4, 4)), (64, (4, 4), (2, 2)), (64, (3, 3), (1, 1))]


@pytest.mark.parametrize("state_shape", [(4, 84, 84), (2, 36, 40, 3), (1, 37, 43)])
def test_the_atari_network_is_its_layers_one_after_the_other(state_shape: tuple[int, ...]) -> None:
    """Cells of 4×4 pixels and layouts in memory are a way to compute, not another network."""
    network = make("atari", state_shape)
    assert isinstance(network, AtariNetwork)
    states = some_states(3, state_shape, torch.uint8)
    features = states.float() / 255
    if features.ndim == 5:
        features = torch.cat(list(features.permute(1, 0, 4, 2, 3)), dim=1)
    for convolution in network.convolutions:
        features = convolution(features).relu()
    hidden, output = network.head
    expected = output(hidden(features.permute(0, 2, 3, 1).flatten(1)).relu())
    torch.testing.assert_close(network(states), expected, rtol=1e-4, atol=1e-5)


def test_a_view_into_other_states_is_read_where_it_lies() -> None:
    network = make("minatar", (1, 10, 10, 4))
    states = some_states(5, (1, 10, 10, 4), torch.float32)
    torch.testing.assert_close(network(states[2:]), network(states)[2:], rtol=1e-4, atol=1e-5)


def summing_minatar_network() -> nn.Module:
    """One whose output is the plain sum of all outputs of its filters, so that the filters can be looked at."""
    network = make("minatar", (1, 12, 12, 2), num_actions=1)
    assert isinstance(network, MinAtarNetwork)
    with torch.no_grad():
        for layer, scale in ((network.hidden, 1.0), (network.output, 1 / 128)):
            layer.weight.fill_(scale)
            layer.bias.zero_()
    return network


def test_the_minatar_networks_filters_are_the_same_everywhere() -> None:
    """A pattern moved about away from the border, where every filter sees it whole, changes nothing in the sum."""
    network = summing_minatar_network()
    pattern = some_states(1, (2, 3, 2), torch.bool)[0].float()
    sums = []
    for row, column in ((2, 2), (2, 7), (8, 2), (5, 4)):
        state = torch.zeros(1, 1, 12, 12, 2)
        state[0, 0, row : row + 2, column : column + 3] = pattern
        sums.append(network(state).item())
    assert sums == pytest.approx([sums[0]] * 4, rel=1e-5)
    assert sums[0] != pytest.approx(network(torch.zeros(1, 1, 12, 12, 2)).item(), rel=1e-3)


@pytest.mark.parametrize(("distance", "is_seen_together"), [(1, True), (2, True), (3, False), (5, False)])
def test_the_minatar_networks_filters_span_three_pixels(distance: int, is_seen_together: bool) -> None:
    """Two pixels add up exactly if no filter sees both, and do not if one does."""
    network = summing_minatar_network()

    def effect(*pixels: tuple[int, int]) -> float:
        state = torch.zeros(1, 1, 12, 12, 2)
        for row, column in pixels:
            state[0, 0, row, column, 1] = 5.0  # far above the biases, so that relu bends
        return float((network(state) - network(torch.zeros(1, 1, 12, 12, 2))).item())

    here = (3, 3)
    for there in ((3 + distance, 3), (3, 3 + distance)):
        is_sum = effect(here, there) == pytest.approx(effect(here) + effect(there), rel=1e-4)
        assert is_sum != is_seen_together


GRADIENT_CASES: list[tuple[Kind, tuple[int, ...], dict[str, Any]]] = [
    ("mlp", (1, 4), {"hidden": (16, 8)}),
    ("mlp", (2, 3), {"hidden": ()}),
    ("mlp", (1, 4), {"hidden": (8,)}),
    ("minatar", (1, 10, 10, 4), {}),
    ("minatar", (2, 5, 7), {}),
    ("minatar", (3, 3, 3), {}),
    ("atari", (4, 84, 84), {}),
    ("atari", (2, 36, 40, 3), {}),
    ("atari", (1, 37, 43), {}),
]


@pytest.mark.parametrize(("kind", "state_shape", "config"), GRADIENT_CASES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32])
@pytest.mark.parametrize("num_states", [1, 7])
@pytest.mark.parametrize("layer_norm", [False, True], ids=["plain", "layer norm"])
def test_a_networks_own_gradients_are_those_of_autograd(
    kind: Kind,
    state_shape: tuple[int, ...],
    config: dict[str, Any],
    dtype: torch.dtype,
    num_states: int,
    *,
    layer_norm: bool,
) -> None:
    network = with_random_norms(make(kind, state_shape, layer_norm=layer_norm, **config))
    fast = accelerate(network)
    assert fast is not None
    states = some_states(num_states, state_shape, dtype)
    q_gradient = some_states(num_states, (3,), torch.float32, seed=1)
    expected = torch.autograd.grad(network(states), list(network.parameters()), q_gradient)
    with torch.no_grad():
        q_values, saved = fast.forward_saving(states)
        found = fast.gradients(saved, q_gradient)
    assert torch.equal(q_values, fast.forward(states))
    torch.testing.assert_close(q_values, network(states), rtol=1e-4, atol=1e-5)
    assert [gradient.shape for gradient in found] == [parameter.shape for parameter in network.parameters()]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "state_shape"), [case for case in SHAPES if case[0] != "atari"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32])
@pytest.mark.parametrize("num_states", [1, 8])
@pytest.mark.parametrize("layer_norm", [False, True], ids=["plain", "layer norm"])
def test_a_small_network_is_the_same_in_numpy(
    kind: Kind, state_shape: tuple[int, ...], dtype: torch.dtype, num_states: int, *, layer_norm: bool
) -> None:
    network = with_random_norms(make(kind, state_shape, layer_norm=layer_norm))
    fast = accelerate(network)
    assert fast is not None
    on_host = fast.on_host()
    assert on_host is not None
    states = some_states(num_states, state_shape, dtype)
    found = on_host(states.numpy())
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, network(states).detach().numpy(), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(0.5)  # as the optimizer does it: in place
    np.testing.assert_allclose(on_host(states.numpy()), network(states).detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(states.numpy(), some_states(num_states, state_shape, dtype).numpy())


def test_large_networks_and_others_act_in_torch() -> None:
    fast = accelerate(make("atari", (4, 84, 84)))
    assert fast is not None
    assert fast.on_host() is None
    assert accelerate(nn.Linear(2, 2)) is None


def test_a_unit_that_is_exactly_zero_has_no_gradient() -> None:
    """As in autograd: the slope of relu at 0 is 0."""
    network = make("mlp", (1, 2), hidden=(4,))
    fast = accelerate(network)
    assert fast is not None
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        list(network.parameters())[2].fill_(1.0)
        _, saved = fast.forward_saving(torch.ones(1, 1, 2))
        gradients = fast.gradients(saved, torch.ones(1, 3))
    assert not gradients[0].any()
    assert not gradients[1].any()


@pytest.mark.parametrize(("kind", "state_shape"), [("mlp", (1, 4)), ("minatar", (1, 5, 5, 2))])
def test_a_copied_network_computes_with_its_own_weights(kind: Kind, state_shape: tuple[int, ...]) -> None:
    network = make(kind, state_shape)
    states = some_states(2, state_shape, torch.float32)
    before = network(states)
    duplicate = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in duplicate.parameters():
            parameter.zero_()
    assert not duplicate(states).any()
    assert torch.equal(network(states), before)


# --- where the weights come from --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "state_shape"), SHAPES)
def test_weights_depend_on_the_seed_alone(kind: Kind, state_shape: tuple[int, ...]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        one = make(kind, state_shape, seed=7)
        torch.manual_seed(2)
        assert same_weights(one, make(kind, state_shape, seed=7))
        assert not same_weights(one, make(kind, state_shape, seed=8))


@pytest.mark.parametrize(("kind", "state_shape"), SHAPES)
def test_the_global_random_state_is_left_alone(kind: Kind, state_shape: tuple[int, ...]) -> None:
    before = torch.get_rng_state()
    make(kind, state_shape, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_large_seeds_are_different_seeds() -> None:
    assert not same_weights(make("mlp", (1, 2), seed=2**63 - 1), make("mlp", (1, 2), seed=2**62))


# --- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "state_shape", "words"),
    [
        ("atari", (1, 4), ["network.kind atari", "(1, 4)", "use mlp"]),
        ("minatar", (1, 4), ["network.kind minatar", "(1, 4)", "use mlp"]),
        ("atari", (4, 35, 84), ["network.kind atari", "36", "(4, 35, 84)", "minatar or mlp"]),
        ("atari", (1, 10, 10, 4), ["network.kind atari", "36"]),
        ("minatar", (1, 2, 10, 4), ["network.kind minatar", "3", "(1, 2, 10, 4)", "mlp"]),
        ("minatar", (1, 5, 5, 5, 5), ["network.kind minatar", "(1, 5, 5, 5, 5)", "mlp"]),
        ("atari", (1, 40, 40, 2, 2), ["network.kind atari", "(1, 40, 40, 2, 2)", "mlp"]),
    ],
)
def test_a_network_that_does_not_fit_is_one_sentence(
    kind: Kind, state_shape: tuple[int, ...], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        make(kind, state_shape)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
