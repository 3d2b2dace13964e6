"""What functions of other libraries return for the cases of ``lambda_replay.testing``; writes the tables of a page.

    pip install rlax torchrl tianshou stable_baselines3
    python -m benchmarks.peers_returns

calls them, records every number in benchmarks/results/peers_returns.json and renews the tables in docs/testing.md.
``--tables`` renews only the tables, from the recorded numbers, and needs none of the libraries.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from lambda_replay import testing
from lambda_replay.testing.traps import TRAPS

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "benchmarks" / "results" / "peers_returns.json"
PAGE = ROOT / "docs" / "testing.md"
PACKAGES = ("rlax", "torchrl", "tianshou", "stable_baselines3", "jax", "torch", "numpy")
TITLES = {
    "peng": "λ-returns (`peng`)",
    "nstep": "n-step returns (`nstep`)",
    "soft": "λ-returns with entropy, as for SAC (`soft`)",
    "soft-nstep": "n-step returns with entropy (`soft-nstep`)",
    "watkins": "Watkins's Q(λ) (`watkins`)",
    "retrace": "Retrace (`retrace`)",
    "tree": "Tree Backup (`tree`)",
    "qstar": "Q*(λ) (`qstar`)",
}

BAR = r"\|"  # in a cell of Markdown
Array = NDArray[Any]
Function = Callable[[testing.Case], Array]


class Peer(NamedTuple):
    """A function of another library, and how it is called."""

    package: str
    call: str
    estimator: str
    layout: str
    function: Function


# rlax: a discount and a λ for every step. λ is 0 where an episode ends.


def rlax_lambda_returns(case: testing.Case, lambdas: Any) -> Array:
    returns = import_module("rlax").lambda_returns(
        *_jax(case.rewards, case.discounts, case.next_values), lambda_=_jax(lambdas)[0]
    )
    return np.asarray(returns)


def rlax_watkins(case: testing.Case) -> Array:
    is_greedy = case.next_action_values == case.next_q_values.max(axis=-1)
    return rlax_lambda_returns(case, case.lambdas * is_greedy)


def rlax_nstep(case: testing.Case) -> Array:
    arrays = _jax(case.rewards, case.discounts, case.next_values)
    (continues,) = _jax(case.continues.astype(np.float32))
    return np.asarray(import_module("rlax").n_step_bootstrapped_returns(*arrays, case.n, lambda_t=continues))


def rlax_off_policy(case: testing.Case, traces: Array) -> Array:
    q, r, d, c, pi = _jax(case.next_q_values, case.rewards, case.discounts, traces, case.next_policy)
    (actions,) = _jax(case.next_actions.astype(np.int32))
    return np.asarray(import_module("rlax").general_off_policy_returns_from_action_values(q, actions, r, d, c, pi))


def rlax_retrace(case: testing.Case, lambdas: Any) -> Array:
    """``rlax.retrace`` gives TD errors; its targets are those plus Q(s_t, a_t)."""
    q, next_q, r, d, pi, mu = _jax(
        case.q_values, case.next_q_values, case.rewards, case.discounts, case.next_policy, case.next_behaviour_probs
    )
    actions, next_actions = _jax(case.actions.astype(np.int32), case.next_actions.astype(np.int32))
    errors = import_module("rlax").retrace(q, next_q, actions, next_actions, r, d, pi, mu, _jax(lambdas)[0], eps=0.0)
    return np.asarray(errors) + case.q_values[np.arange(len(case.actions)), case.actions]


def rlax_soft(case: testing.Case) -> Array:
    q, v, r, d, c = _jax(case.next_baselines[:-1], case.next_values, case.rewards, case.discounts, case.lambdas[:-1])
    return np.asarray(import_module("rlax").general_off_policy_returns_from_q_and_v(q, v, r, d, c))


def _jax(*arrays: Any) -> list[Any]:
    return [import_module("jax.numpy").asarray(array) for array in arrays]


# TorchRL: tensors [T, 1], with ``done`` and ``terminated`` apart.


def torchrl_td_lambda(case: testing.Case, name: str) -> Array:
    functional = import_module("torchrl.objectives.value.functional")
    values, rewards, done, terminated = (
        torch.from_numpy(array)[:, None] for array in (case.next_values, case.rewards, ~case.continues, case.terminated)
    )
    return getattr(functional, name)(case.gamma, case.lambda_, values, rewards, done, terminated).numpy()[:, 0]


def torchrl_multi_step(case: testing.Case) -> Array:
    """The observation is its own value; the target is that of the TD(0) estimator, as for DQN, DDPG and SAC."""
    tensordict, postprocs = import_module("tensordict"), import_module("torchrl.data.postprocs")
    estimators = import_module("torchrl.objectives.value")
    following = {
        "value": case.next_values,
        "reward": case.rewards,
        "done": ~case.continues,
        "terminated": case.terminated,
        "truncated": case.truncated,
    }
    tensors = {name: torch.from_numpy(array)[None, :, None] for name, array in following.items()}
    shape = [1, len(case.rewards)]
    steps = tensordict.TensorDict({"next": tensordict.TensorDict(tensors, shape)}, shape)
    steps = postprocs.MultiStep(case.gamma, case.n)(steps)
    estimator = estimators.TD0Estimator(gamma=case.gamma, value_network=None)
    targets: Array = estimator.value_estimate(steps, next_value=steps["next", "value"]).numpy()
    return targets[0, :, 0]


# Buffers: the steps of a case lie in a ring; an observation is its own value.


def slots_as_written(case: testing.Case) -> Iterator[int]:
    """Every slot in the order in which a buffer that starts empty is filled; some are overwritten later."""
    size = len(case.rewards)
    oldest = (int(case.slots[-1]) + 1) % size
    yield from range(oldest)
    for i in range(size):
        yield (oldest + i) % size


def tianshou_buffer(case: testing.Case) -> Any:
    data = import_module("tianshou.data")
    buffer = data.ReplayBuffer(size=len(case.rewards))
    for slot in slots_as_written(case):
        terminated, truncated = bool(case.terminated[slot]), bool(case.truncated[slot])
        buffer.add(
            data.Batch(
                obs=case.values[slot : slot + 1],
                act=int(case.actions[slot]),
                rew=float(case.rewards[slot]),
                terminated=terminated,
                truncated=truncated,
                done=terminated or truncated,
                obs_next=case.next_values[slot : slot + 1],
                info={},
            )
        )
    return buffer


def tianshou_nstep(case: testing.Case) -> Array:
    algorithm = import_module("tianshou.algorithm.algorithm_base").Algorithm
    buffer = tianshou_buffer(case)
    batch = algorithm.compute_nstep_return(
        buffer[case.slots],
        buffer,
        case.slots,
        target_q_fn=lambda buffer, indices: torch.as_tensor(buffer.obs_next[indices]),
        gamma=case.gamma,
        n_step=case.n,
    )
    return batch.returns.numpy()[:, 0]


def tianshou_episodic(case: testing.Case) -> Array:
    algorithm = import_module("tianshou.algorithm.algorithm_base").Algorithm
    buffer = tianshou_buffer(case)
    returns, _ = algorithm.compute_episodic_return(
        buffer[case.slots],
        buffer,
        case.slots,
        v_s_=case.next_values[case.slots],
        v_s=case.values[case.slots],
        gamma=case.gamma,
        gae_lambda=case.lambda_,
    )
    return returns


def sb3_nstep(case: testing.Case) -> Array:
    """The target of ``DQN.train`` and ``SAC.train``: rewards + (1 − dones) · discounts · next values."""
    buffers = import_module("stable_baselines3.common.buffers")
    box = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    buffer = buffers.NStepReplayBuffer(
        len(case.rewards), box, spaces.Discrete(2), device="cpu", n_steps=case.n, gamma=case.gamma
    )
    for slot in slots_as_written(case):
        row = slice(slot, slot + 1)
        limit = bool(case.truncated[slot] and not case.terminated[slot])  # as its vector environments report it
        buffer.add(
            case.values[row],
            case.next_values[row],
            case.actions[row],
            case.rewards[row],
            ~case.continues[row],
            [{"TimeLimit.truncated": limit}],
        )
    data = buffer._get_samples(case.slots)
    targets = data.rewards + (1 - data.dones) * data.discounts * data.next_observations
    return targets.numpy()[:, 0]


def sb3_rollout(case: testing.Case) -> Array:
    """``collect_rollouts`` adds γ·V(final observation) to the reward of a step that the time limit ends."""
    buffers = import_module("stable_baselines3.common.buffers")
    box = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    length = len(case.rewards)
    buffer = buffers.RolloutBuffer(length, box, spaces.Discrete(2), "cpu", gae_lambda=case.lambda_, gamma=case.gamma)
    ends = ~case.continues
    limits = case.truncated & ~case.terminated
    rewards = case.rewards + case.gamma * limits * case.next_values
    for t in range(length):
        starts = ends[t - 1 : t] if t else np.array([True])
        value = torch.from_numpy(case.values[t : t + 1])
        buffer.add(case.values[t : t + 1], case.actions[t : t + 1], rewards[t : t + 1], starts, value, value)
    buffer.compute_returns_and_advantage(torch.from_numpy(case.next_values[-1:]), ends[-1:])
    return buffer.returns[:, 0]


PEERS: tuple[Peer, ...] = (
    Peer("rlax", "`lambda_returns`, λ = 0 at ends", "peng", "sequence", lambda c: rlax_lambda_returns(c, c.lambdas)),
    Peer("rlax", "`lambda_returns`, one λ", "peng", "sequence", lambda c: rlax_lambda_returns(c, c.lambda_)),
    Peer(
        "torchrl",
        "`td_lambda_return_estimate`",
        "peng",
        "sequence",
        lambda c: torchrl_td_lambda(c, "td_lambda_return_estimate"),
    ),
    Peer(
        "torchrl",
        "`vec_td_lambda_return_estimate`",
        "peng",
        "sequence",
        lambda c: torchrl_td_lambda(c, "vec_td_lambda_return_estimate"),
    ),
    Peer("tianshou", "`compute_episodic_return`", "peng", "ring", tianshou_episodic),
    Peer("stable_baselines3", "`RolloutBuffer`", "peng", "sequence", sb3_rollout),
    Peer("rlax", "`n_step_bootstrapped_returns`, λ = 0 at ends", "nstep", "sequence", rlax_nstep),
    Peer("torchrl", "`MultiStep` and `TD0Estimator`", "nstep", "sequence", torchrl_multi_step),
    Peer("tianshou", "`compute_nstep_return`", "nstep", "ring", tianshou_nstep),
    Peer("stable_baselines3", "`NStepReplayBuffer`", "nstep", "ring", sb3_nstep),
    Peer("rlax", "`general_off_policy_returns_from_q_and_v`", "soft", "sequence", rlax_soft),
    Peer(
        "torchrl",
        "`td_lambda_return_estimate` of soft values",
        "soft",
        "sequence",
        lambda c: torchrl_td_lambda(c, "td_lambda_return_estimate"),
    ),
    Peer("torchrl", "`MultiStep` and `TD0Estimator`", "soft-nstep", "sequence", torchrl_multi_step),
    Peer("tianshou", "`compute_nstep_return`", "soft-nstep", "ring", tianshou_nstep),
    Peer("stable_baselines3", "`NStepReplayBuffer`", "soft-nstep", "ring", sb3_nstep),
    Peer("rlax", "`lambda_returns`, λ = 0 at cuts and ends", "watkins", "sequence", rlax_watkins),
    Peer("rlax", "`retrace`, λ = 0 at ends", "retrace", "sequence", lambda c: rlax_retrace(c, c.lambdas)),
    Peer("rlax", "`retrace`, one λ", "retrace", "sequence", lambda c: rlax_retrace(c, np.float32(c.lambda_))),
    Peer(
        "rlax",
        "`general_off_policy_returns_from_action_values`",
        "tree",
        "sequence",
        lambda c: rlax_off_policy(c, c.lambdas * c.next_probs),
    ),
    Peer(
        "rlax",
        "`general_off_policy_returns_from_action_values`",
        "qstar",
        "sequence",
        lambda c: rlax_off_policy(c, c.lambdas),
    ),
)


def record(peer: Peer) -> dict[str, Any]:
    """Every number that a peer's function gives, or the error that it raises."""
    answers: dict[str, Any] = {}
    for case in testing.cases(peer.estimator, layout=peer.layout):
        try:
            answers[case.name] = {"returns": np.asarray(peer.function(case), dtype=np.float64).tolist()}
        except (AssertionError, ValueError, RuntimeError, IndexError) as error:
            answers[case.name] = {"raised": f"{type(error).__name__}: {error}".split("\n")[0]}
    described = {name: getattr(peer, name) for name in ("package", "call", "estimator", "layout")}
    return {**described, "cases": answers}


def verdicts(recorded: dict[str, Any]) -> dict[str, str]:
    """By case: right, the name of the mistake, wrong if it is not a known one, or the error."""
    answers = recorded["cases"]
    words = {
        name: f"raises {answer['raised'].partition(':')[0]}" for name, answer in answers.items() if "raised" in answer
    }
    examined = testing.examine(
        lambda case: answers[case.name]["returns"], recorded["estimator"], layout=recorded["layout"], skip=list(words)
    )
    for verdict in examined:
        mistake = "wrong" if verdict.mistake is None else verdict.mistake.name
        words[verdict.case.name] = "right" if verdict.is_right else mistake
    return words


def table(*rows: tuple[str, ...] | list[str]) -> str:
    """Markdown; the first row is the head."""
    head, *rest = [f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *rest])


def peers_tables(record: dict[str, Any]) -> str:
    """One table per estimator: a row per case, a column per function."""
    parts = ["Versions: " + ", ".join(f"{name} {version}" for name, version in record["versions"].items()) + "."]
    for estimator, title in TITLES.items():
        peers = [peer for peer in record["peers"] if peer["estimator"] == estimator]
        columns = [verdicts(peer) for peer in peers]
        rows = [
            [case.name, *(column[case.name].replace("right", "✓") for column in columns)]
            for case in testing.cases(estimator)
        ]
        heads = [f"{peer['package']}: {peer['call']}" for peer in peers]
        parts.append(f"### {title}\n\n{table(['case', *heads], *rows)}")
    return "\n\n".join(parts)


def cases_table() -> str:
    """Every case once, with the estimators that have it."""
    about: dict[str, str] = {}
    having: dict[str, list[str]] = {}
    for estimator in testing.ESTIMATORS:
        for case in testing.cases(estimator):
            about[case.name] = case.about
            having.setdefault(case.name, []).append(estimator)
    rows = [(name, words, _names(having[name])) for name, words in about.items()]
    return table(("case", "what is special", "estimators"), *rows)


def traps_table() -> str:
    """Every mistake that is recognised."""
    rows = [(trap.name, trap.sentence, _names(sorted(trap.estimators))) for trap in TRAPS]
    return table(("mistake", "a function that makes it", "estimators"), *rows)


def _names(estimators: list[str]) -> str:
    return "all" if len(estimators) == len(testing.ESTIMATORS) else ", ".join(estimators)


def renewed(page: str, record: dict[str, Any]) -> str:
    """The page with its tables made anew."""
    for name, text in {"cases": cases_table(), "traps": traps_table(), "peers": peers_tables(record)}.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


def as_text(results: dict[str, Any]) -> str:
    """JSON with one line per function."""
    lines = ",\n".join(json.dumps(peer, ensure_ascii=False) for peer in results["peers"])
    return f'{{"versions": {json.dumps(results["versions"])},\n"peers": [\n{lines}\n]}}\n'


def main(arguments: list[str]) -> None:
    if arguments != ["--tables"]:
        results = {
            "versions": {name: metadata.version(name) for name in PACKAGES},
            "peers": [record(peer) for peer in PEERS],
        }
        RECORDED.write_text(as_text(results), encoding="utf-8")
    results = json.loads(RECORDED.read_text(encoding="utf-8"))
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    for peer in results["peers"]:
        found = sorted({word for word in verdicts(peer).values() if word != "right"})
        print(f"{peer['estimator']:10} {peer['package']:18} {peer['call']:50} {', '.join(found) or 'all right'}")


if __name__ == "__main__":
    main(sys.argv[1:])
