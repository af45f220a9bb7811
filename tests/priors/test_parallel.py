"""Two processes give one process's bound and gradient."""

import warnings

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from adapter_worlds import make_decoder

from fusevlm.priors.gp.bound import alone, bound_and_gradient, rows
from fusevlm.priors.gp.parallel import Team

N, M, Q, D = 61, 9, 2, 4


def world():
    g = torch.Generator().manual_seed(0)
    X = torch.randn(N, Q, generator=g, dtype=torch.float64)
    return X, torch.randn(N, D, generator=g, dtype=torch.float64), make_decoder(M, Q, D)


def flat(X, Y, reduce=alone):
    found = bound_and_gradient(X, rows(Y, reduce), world()[2], reduce=reduce)
    return {"value": found.value, "X": found.d_X, **found.d_decoder.named()}


def member(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    team = Team(rank, 2)
    X, Y, _ = world()
    own = team.rows(N)
    found = flat(X[own], Y[own], team.sum)
    found["X"] = team.gather(found["X"], N)
    np.savez(f"{folder}/{rank}.npz", **{k: v.numpy() for k, v in found.items()})
    torch.distributed.destroy_process_group()


def test_bound_and_gradient(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mp.spawn(member, args=(str(tmp_path),), nprocs=2)
    X, Y, _ = world()
    one = flat(X, Y)
    for rank in range(2):
        two = np.load(tmp_path / f"{rank}.npz")
        for name, value in one.items():
            np.testing.assert_allclose(two[name], value.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_rows_are_dealt_out_once(size):
    parts = [list(range(20))[Team(rank, size).rows(20)] for rank in range(size)]
    assert [i for part in parts for i in part] == list(range(20))
