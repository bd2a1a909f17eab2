"""Methods shadowed on instances, and given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Shadows"]


class Shadows:
    """What stands in place of methods of some objects until `remove`."""

    def __init__(self) -> None:
        self._shadowed: list[tuple[Any, str]] = []

    def around(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """``wrapper`` is called with the plain method and its arguments."""
        plain = getattr(owner, name)

        def shadow(*args: Any, **kwargs: Any) -> Any:
            return wrapper(plain, *args, **kwargs)

        setattr(owner, name, shadow)
        self._shadowed.append((owner, name))

    def after(self, owner: Any, name: str, then: Callable[[], None]) -> None:
        """``then`` is called whenever the method has returned."""

        def wrapper(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            result = plain(*args, **kwargs)
            then()
            return result

        self.around(owner, name, wrapper)

    def remove(self) -> None:
        """Give the methods back."""
        for owner, name in self._shadowed:
            owner.__dict__.pop(name, None)
        self._shadowed.clear()
