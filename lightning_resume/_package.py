"""``lightning.pytorch`` and ``pytorch_lightning`` hold the same code as different classes: which one is in use.

What is needed of either is named here once, and imported when it is first asked for, from the package that the Trainer
at hand comes from. The other one is never imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from typing import Any

__all__ = ["Package", "callback_base", "is_a", "package_of"]

_ROOTS = ("lightning.pytorch", "pytorch_lightning")
_HOMES = {
    "Callback": "callbacks",
    "BatchSizeFinder": "callbacks",
    "Checkpoint": "callbacks",
    "EarlyStopping": "callbacks",
    "LearningRateFinder": "callbacks",
    "ModelCheckpoint": "callbacks",
    "ModelPruning": "callbacks",
    "Timer": "callbacks",
    "LightningDataModule": "core.datamodule",
    "LightningModule": "core.module",
    "_Loop": "loops.loop",
    "_DataLoaderSource": "trainer.connectors.data_connector",
    "_request_dataloader": "trainer.connectors.data_connector",
    "_Metadata": "trainer.connectors.logger_connector.result",
    "_ResultMetric": "trainer.connectors.logger_connector.result",
    "_Sync": "trainer.connectors.logger_connector.result",
    "CombinedLoader": "utilities.combined_loader",
    "_SUPPORTED_MODES": "utilities.combined_loader",
    "is_overridden": "utilities.model_helpers",
    "Trainer": "trainer.trainer",
    "Logger": "loggers.logger",
    "DummyLogger": "loggers.logger",
    "Strategy": "strategies.strategy",
    "_determine_lr_attr_name": "tuner.lr_finder",
    "_LRFinder": "tuner.lr_finder",
    "_TunerExitException": "utilities.exceptions",
    "SIGTERMException": "utilities.exceptions",
    "move_data_to_device": "utilities",
    "_call_callback_hooks": "trainer.call",
    "_call_lightning_module_hook": "trainer.call",
    "_call_lightning_datamodule_hook": "trainer.call",
    "_call_strategy_hook": "trainer.call",
    "lightning_getattr": "utilities.parsing",
    "lightning_setattr": "utilities.parsing",
}


class Package:
    """One of the two packages; its attributes are the names above.

    Args:
        root: ``"lightning.pytorch"`` or ``"pytorch_lightning"``.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def __getattr__(self, name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(name)
        value = getattr(importlib.import_module(f"{self.root}.{_HOMES[name]}"), name)
        self.__dict__[name] = value
        return value

    @property
    def version(self) -> str:
        """Name and version, for messages."""
        name = self.root.split(".")[0]
        return f"{name} {importlib.import_module(name).__version__}"

    def missing(self) -> list[str]:
        """Names that this version of the package lacks."""
        return [f"{self.root}.{home}.{name}" for name, home in _HOMES.items() if not self._has(name)]

    def _has(self, name: str) -> bool:
        try:
            getattr(self, name)
        except (ImportError, AttributeError):
            return False
        return True


_package = functools.lru_cache(Package)


def package_of(thing: object) -> Package:
    """The package that a Trainer, or anything else of Lightning's, is an object of; subclasses count.

    Raises:
        TypeError: of neither.
    """
    for cls in type(thing).__mro__:
        for root in _ROOTS:
            if cls.__module__.startswith(f"{root}."):
                return _package(root)
    raise TypeError(f"a {type(thing).__name__} is of neither {' nor '.join(_ROOTS)}")


def is_a(thing: object, *names: str) -> bool:
    """Whether a thing is of one of these classes of either package; imports nothing."""
    return any(cls.__name__ in names and cls.__module__.startswith(_ROOTS) for cls in type(thing).__mro__)


def callback_base() -> type:
    """What a callback has to derive from: the class of each package that is imported, or else of one installed.

    Raises:
        ImportError: neither is installed.
    """
    imported = [root for root in _ROOTS if root in sys.modules]
    roots = imported or [root for root in _ROOTS if importlib.util.find_spec(root.split(".")[0]) is not None][:1]
    if not roots:
        raise ImportError(
            "lightning_resume needs lightning or pytorch_lightning: pip install 'exact-resume[lightning]'"
        )
    bases = tuple(_package(root).Callback for root in roots)
    return bases[0] if len(bases) == 1 else type("Callback", bases, {"__module__": __name__})
