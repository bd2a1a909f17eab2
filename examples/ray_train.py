"""Handwritten digits under Ray Train, whose workers are started again when one of them, or its machine, is lost.

    python examples/ray_train.py /shared/digits-run --workers 2

The directory must be one that all machines see, or s3://bucket/run. Ray Train keeps no checkpoints here, and none are
reported to it: what it starts again goes on from the directory by itself.
"""

import argparse
from pathlib import Path


def train(config):
    """On each worker, in a thread of it, so that no signal can be watched (a warning says so)."""
    import accelerate_digits

    accelerate_digits.train(**config)


def parser():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", help="a folder that all machines see, or s3://bucket/run")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpu", action="store_true")
    return parser


def main(directory, epochs, workers, gpu):
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    if "://" not in directory:
        directory = str(Path(directory).resolve())  # workers have another working directory
    ray.init(runtime_env={"working_dir": str(Path(__file__).parent)})  # accelerate_digits.py goes to all machines
    trainer = TorchTrainer(
        train,
        train_loop_config={"directory": directory, "epochs": epochs},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpu),
        # Whatever ends a worker's function counts as a failure: an error, a lost process, and Preempted (a SystemExit),
        # by which a run leaves. So this is how often the run may leave, too; -1 is without end. A machine that Ray
        # knows to be preempted has a count of its own, which is without end unless you say otherwise.
        run_config=RunConfig(failure_config=FailureConfig(max_failures=10)),
    )
    trainer.fit()


if __name__ == "__main__":
    main(**vars(parser().parse_args()))
