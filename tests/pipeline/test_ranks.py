"""Ranks from the environment variables of launchers."""

import sys
from types import SimpleNamespace

import pytest

from unified_prof.errors import UsageError
from unified_prof.pipeline.outputs import ALL, parse_ranks, rank_here, rank_of

OF_EIGHT = {"RANK": "5", "LOCAL_RANK": "1", "SIZE": "8"}


@pytest.mark.parametrize(
    ("launcher", "environment"),
    [
        ("torchrun", {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}),
        ("slurm", {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}),
        ("openmpi", {f"OMPI_COMM_WORLD_{name}": value for name, value in OF_EIGHT.items()}),
        ("mpich", {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1"}),
        ("mvapich", {f"MV2_COMM_WORLD_{name}": value for name, value in OF_EIGHT.items()}),
        ("pals", {"PALS_RANKID": "5", "PALS_LOCAL_RANKID": "1", "PMI_SIZE": "8"}),
        ("jsm", {f"JSM_NAMESPACE_{name}": value for name, value in OF_EIGHT.items()}),
        ("flux", {"FLUX_TASK_RANK": "5", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_SIZE": "8"}),
    ],
)
def test_variables_of_every_launcher_are_read(launcher: str, environment: dict[str, str]) -> None:
    rank = rank_of(environment)
    assert (rank.rank, rank.local_rank, rank.world_size) == (5, 1, 8)
    assert (rank.launcher, rank.suffix, rank.is_distributed) == (launcher, "_rank5", True)


def test_mpirun_and_torchrun_within_slurm_take_precedence() -> None:
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}
    mpirun = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
    assert rank_of(slurm | mpirun).rank == 3
    torchrun = {"RANK": "9", "WORLD_SIZE": "16"}
    assert rank_of(slurm | torchrun).rank == 9


@pytest.mark.parametrize(
    "environment",
    [
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "ENVIRONMENT": "BATCH"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
        {"OMPI_COMM_WORLD_RANK": "2"},
        {"PMI_RANK": "two", "PMI_SIZE": "4"},
    ],
    ids=["batch script", "interactive step", "one task", "one process", "no size", "no number"],
)
def test_single_process_has_no_rank(environment: dict[str, str]) -> None:
    assert rank_of(environment).suffix == ""


def test_srun_task_of_a_batch_script_is_a_rank() -> None:
    task = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}
    job = {"ENVIRONMENT": "BATCH", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "1234"}
    found = rank_of({**job, **task})
    assert (found.rank, found.job) == (3, "slurm1234.0")


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({"TORCHELASTIC_RUN_ID": "my/job"}, "torchrunmy-job"),
        (
            {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"},
            "10-0-0-1.29500",
        ),
        ({"TORCHELASTIC_RUN_ID": "none"}, None),
    ],
)
def test_job_name_is_equal_on_all_hosts(environment: dict[str, str], job: str | None) -> None:
    assert rank_of({"RANK": "0", "WORLD_SIZE": "2", **environment}).job == job


def test_local_world_size_tells_if_all_ranks_are_on_one_host() -> None:
    torchrun = {"RANK": "0", "WORLD_SIZE": "8"}
    assert rank_of(torchrun | {"LOCAL_WORLD_SIZE": "8"}).one_host
    assert not rank_of(torchrun | {"LOCAL_WORLD_SIZE": "4"}).one_host


@pytest.mark.parametrize(
    ("environment", "has_group", "size", "rank"),
    [
        ({}, True, 4, 3),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "4"}, True, 4, 3),
        ({"RANK": "2", "WORLD_SIZE": "4"}, True, 4, 2),
        ({}, False, 4, None),
        ({}, True, 1, None),
    ],
    ids=["spawned", "only the local rank", "a launcher", "no group yet", "a group of one"],
)
def test_process_group_gives_the_rank_without_launcher_variables(
    environment: dict[str, str],
    has_group: bool,
    size: int,
    rank: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    group = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: has_group,
        get_rank=lambda: 3,
        get_world_size=lambda: size,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    found = rank_here()
    assert found.rank == rank
    assert found.is_distributed == (rank is not None)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("all", [*range(20)]),
        ("0", [0]),
        ("0,8-11", [0, 8, 9, 10, 11]),
        (" 3 , 1 ", [1, 3]),
        ("every:8", [0, 8, 16]),
        ("18-400", [18, 19]),
    ],
)
def test_ranks_to_profile_are_parsed(text: str, ranks: list[int]) -> None:
    chosen = parse_ranks(text)
    assert (chosen == ALL) == (text == "all")
    assert chosen.selected_from(20) == ranks
    assert [rank for rank in range(20) if rank in chosen] == ranks


@pytest.mark.parametrize("text", ["", "0,", "8-3", "-1", "every:0", "every:x", "1.5", "٣"])
def test_invalid_list_of_ranks_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="is not a rank or a range"):
        parse_ranks(text)
