"""Where models run: a device that this machine lacks is refused before anything is loaded."""

from __future__ import annotations

from fusevlm import checks
from fusevlm.errors import InputError

CPU = "cpu"


def need_device(device: str, key: str = "device") -> str:
    """``device`` if torch can use it here, or InputError that names the setting ``key``."""
    if device == CPU:
        return device
    torch = checks.extra("torch", f"{key} = {device!r}", "torch")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise InputError(
            f"{key} is {device!r}; expected 'cpu', 'cuda', 'cuda:1', 'mps' or another device of "
            f"torch."
        ) from error
    try:
        if place.type == "meta":
            raise NotImplementedError("it holds no numbers")
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise InputError(
            f"{key} is {device!r}, which torch cannot use here ({reason}). Say 'cpu', or run "
            f"where there is one."
        ) from error
    return device


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, of the GPU or of this machine."""
    words = ("out of memory", "can't allocate memory", "not enough memory", "cannot allocate")
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(word in str(error).lower() for word in words)
