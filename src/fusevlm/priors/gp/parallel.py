"""Several processes as one: what each rank adds up with the others (torchrun, gloo on CPU)."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Team:
    """The processes that train together; alone by default."""

    rank: int = 0
    size: int = 1

    def sum(self, value: Tensor) -> Tensor:
        """Σ over ranks, the same tensor on each."""
        if self.size == 1:
            return value
        total = value.clone()
        torch.distributed.all_reduce(total)
        return total

    def from_first(self, value: Tensor) -> Tensor:
        """Rank 0's value on every rank, so that rounding cannot make ranks drift apart."""
        if self.size == 1:
            return value
        shared = value.clone()
        torch.distributed.broadcast(shared, src=0)
        return shared

    def rows(self, n: int) -> slice:
        """The part of n consecutive rows that is this rank's."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def gather(self, own: Tensor, n: int) -> Tensor:
        """All n rows on every rank, from each rank's own."""
        if self.size == 1:
            return own
        whole = torch.zeros(n, *own.shape[1:], dtype=own.dtype, device=own.device)
        whole[self.rows(n)] = own
        return self.sum(whole)


def join_team() -> Team:
    """The team that torchrun describes in the environment; a team of one without it."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Team()
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    return Team(torch.distributed.get_rank(), torch.distributed.get_world_size())


def leave_team(team: Team) -> None:
    """Wait for the others and close the connection."""
    if team.size > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
