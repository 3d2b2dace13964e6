"""λ-returns for Stable-Baselines3: a replay buffer for its DQN, DDPG, TD3 and SAC, whose code stays unchanged."""

from lambda_replay.extras import needed_for

with needed_for("lambda_replay.sb3"):
    import stable_baselines3  # noqa: F401 - before torch: its extra is the one to name if both are missing

    from lambda_replay.sb3.buffer import AttachCallback, LambdaReplayBuffer

__all__ = ["AttachCallback", "LambdaReplayBuffer"]
