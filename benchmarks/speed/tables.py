"""Formats the results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from benchmarks.speed.workloads import BASELINE, CONTENDERS

LABELS = {
    "dqn-lambda": "lambda-replay dqn-lambda",
    "dqn-lambda-concurrent": "lambda-replay dqn-lambda, concurrent",
    "dqn": "lambda-replay dqn (3-step)",
    "sb3": "Stable-Baselines3 DQN",
    "sb3-3step": "Stable-Baselines3 DQN, n_steps=3",
    "tianshou": "Tianshou DQN",
    "torchrl": "TorchRL DQN",
}
NETWORKS = {"atari": "Atari network", "minatar": "MinAtar network", "cartpole": "CartPole MLP"}


def headline(workload: str, envs: int) -> str:
    return f"{NETWORKS.get(workload, workload)}, {envs} environment{'' if envs == 1 else 's'}"


def groups(rows: list[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Rows by workload and number of environments, in the order they were measured."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["workload"], row["envs"]), []).append(row)
    return found


def make_tables(results: dict[str, Any]) -> Iterator[Table]:
    """Speed, parts, estimators and memory sizes; omits what was not measured."""
    yield _speed(results)
    if results["parts"]:
        yield _parts(results)
    if results["estimators"] is not None:
        yield _estimators(results)
    if results["memory_sizes"]:
        yield _memory_sizes(results)


def _speed(results: dict[str, Any]) -> Table:
    peaks = ", ".join(
        f"{value / 1e9:,.0f} GFLOP/s with {threads} thread{'' if threads == '1' else 's'}"
        for threads, value in results["peak_flops_per_second"].items()
    )
    table = Table(title="Training speed at equal settings", caption=f"best sgemm of the run: {peaks}")
    for name in (
        "",
        "steps/s",
        "lowest to highest",
        "× SB3",
        "threads",
        "of the bound,\nbest sgemm",
        "of the bound,\nsgemm then",
        "memory",
        "replay\nper step",
    ):
        table.add_column(name, justify="left" if name == "" else "right")
    for (workload, envs), rows in groups(results["speed"]).items():
        table.add_section()
        table.add_row(f"[bold]{headline(workload, envs)}")
        for row in rows:
            table.add_row(
                f"  {LABELS[row['contender']]}",
                f"{row['steps_per_second']:,.0f}",
                f"{row['low']:,.0f} to {row['high']:,.0f}",
                "–" if row["ratio"] is None else f"{row['ratio']:.2f}",
                str(row["threads"]),
                f"{100 * row['share_of_bound']:.1f} %",
                f"{100 * row['share_of_bound_then']:.1f} %",
                f"{row['peak_bytes'] / 1e6:,.0f} MB",
                f"{row['replay_bytes_per_step']:,.0f} B",
                style="bold cyan"
                if CONTENDERS[row["contender"]].is_ours
                else ("dim" if row["contender"] != BASELINE else ""),
            )
    return table


def _parts(results: dict[str, Any]) -> Table:
    table = Table(title="Where dqn-lambda spends its time: µs per agent step, and share")
    table.add_column("part")
    for found in results["parts"]:
        table.add_column(f"{found['workload']}\n{found['envs']} env", justify="right")
    names = list(results["parts"][0]["seconds_per_step"])
    totals = [sum(found["seconds_per_step"].values()) for found in results["parts"]]
    for name in names:
        cells = [found["seconds_per_step"][name] for found in results["parts"]]
        table.add_row(name, *(_microseconds(cell, total) for cell, total in zip(cells, totals, strict=True)))
    table.add_section()
    table.add_row("all parts", *(f"{1e6 * total:,.1f}" for total in totals))
    table.add_row("measured step less parts", *(f"{1e6 * found['rest']:,.1f}" for found in results["parts"]))
    table.add_section()
    for name in results["parts"][0]["share_of_sgemm"]:
        cells = [f"{100 * found['share_of_sgemm'][name]:.1f} %" for found in results["parts"]]
        table.add_row(f"{name}, share of sgemm speed", *cells)
    return table


def _microseconds(seconds: float, total: float) -> str:
    return f"{1e6 * seconds:,.1f}  {100 * seconds / total:4.1f} %"


def _estimators(results: dict[str, Any]) -> Table:
    found = results["estimators"]
    forward = min((size["refresh_forward_seconds"] for size in results["memory_sizes"]), default=None)
    title = (
        f"Recursion, priorities and sampling of one refresh: {found['blocks']} blocks of {found['length']}, one core"
    )
    table = Table(title=title)
    table.add_column("")
    table.add_column("ms", justify="right")
    table.add_column("with priorities and sampling,\nshare of an Atari refresh's forward passes", justify="right")
    drawing = found["priorities_and_sampling_seconds"]
    for name, seconds in found["returns_seconds"].items():
        share = "–" if forward is None else f"{100 * (seconds + drawing) / forward:.2f} %"
        table.add_row(f"returns, {name}", f"{1e3 * seconds:.2f}", share)
    table.add_section()
    table.add_row("priorities", f"{1e3 * found['priorities_seconds']:.2f}", "")
    table.add_row(f"priorities and {found['updates']} minibatches drawn", f"{1e3 * drawing:.2f}", "")
    return table


def _memory_sizes(results: dict[str, Any]) -> Table:
    table = Table(title="One refresh of the paper's size, by size of the memory (Atari, one core)")
    for name in ("slots", "memory", "gathering", "forward passes", "gathering's share", "one minibatch"):
        table.add_column(name, justify="right")
    for size in results["memory_sizes"]:
        gathering, forward = size["refresh_gathering_seconds"], size["refresh_forward_seconds"]
        table.add_row(
            f"{size['slots']:,}",
            f"{size['memory_bytes'] / 1e9:.2f} GB",
            f"{gathering:.2f} s",
            f"{forward:.2f} s",
            f"{100 * gathering / (gathering + forward):.1f} %",
            f"{1e6 * size['minibatch_gathering_seconds']:,.0f} µs",
        )
    return table
