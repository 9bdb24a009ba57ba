"""Mistakes in job scripts are found at their line; scripts that work are left alone."""

from pathlib import Path

import pytest

from scalescope.launch.slurm.lint import lint

_EXAMPLES = Path(__file__).parents[4] / "examples/slurm"
_GOOD = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1  # torchrun starts the ranks
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
export OMP_NUM_THREADS=8
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 12000))
srun --cpus-per-task=32 torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d \\
    --rdzv_endpoint="$head:$port" train.py
"""


def test_a_good_script_is_clean() -> None:
    assert lint(_GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ('"$head:$port"', "$SLURM_NODELIST:$port", 10, "list of nodes"),
        (
            'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "head=$SLURM_NODELIST",
            10,
            "list of",
        ),
        ("port=$", "export MASTER_ADDR=$SLURM_NODELIST\nport=$", 8, "list of nodes"),
        ("--ntasks-per-node=1  #", "--ntasks-per-node=4  #", 3, "4 tasks per node with torchrun"),
        ("--ntasks-per-node=1  #", "--ntasks=8  #", 3, "4 tasks per node with torchrun"),
        ("--ntasks-per-node=1  #", "-n 4  #", 3, "2 tasks per node with torchrun"),
        ("--ntasks-per-node=1  #", "--tasks-per-node=4  #", 3, "4 tasks per node with torchrun"),
        ("srun --cpus", "srun -n8 --cpus", 9, "4 tasks per node"),
        ("srun --cpus", "srun --mpi=pmix --cpus", 9, "PMIx"),
        ("--gpus-per-node=4", "--gpus-per-task=1", 4, "GPUs per task with torchrun"),
        ("export OMP_NUM_THREADS=8", "true", 9, "OMP_NUM_THREADS is not set"),
        ("port=$((20000 + SLURM_JOB_ID % 12000))", "export MASTER_PORT=29500", 8, "port 29500 is fixed"),
        ('"$head:$port"', '"$head:29500"', 10, "port 29500 is fixed"),
        ("port=$((20000 + SLURM_JOB_ID % 12000))", "port=29500", 8, "port 29500 is fixed"),
        ("port=$((20000 + SLURM_JOB_ID % 12000))", 'export port="${1:-29500}"', 8, "port 29500 is fixed"),
        ("$port", "${MASTER_PORT:-29500}", 10, "port 29500 is fixed"),
        (
            '--rdzv_backend=c10d \\\n    --rdzv_endpoint="$head:$port"',
            "\\\n    --node_rank=$SLURM_NODEID --master_addr=$head --master_port=$port",
            10,
            "it is 0 on every node",
        ),
        ("srun --cpus-per-task=32 ", "", 9, "runs only on the first node"),
        ("--nnodes=2", "--nnodes=4", 9, "--nnodes=4 on 2 nodes: it waits"),
        ("--nnodes=2", "--nnodes 3:8", 9, "--nnodes=3 on 2 nodes: it waits"),
        ("--nnodes=2", "--nnodes=1", 9, "--nnodes=1 on 2 nodes: the others"),
        ("--nodes=2", "-N 3", 9, "--nnodes=2 on 3 nodes: the others"),
        ("srun --cpus", "srun --nodes=1 --ntasks=1 --cpus", 9, "--nnodes=2 on 1 node: it waits"),
        ("--gpus-per-node=4", "-G a100:7", 9, "8 ranks in all (2 × 4) for 7 requested GPUs"),
        ("export OMP", "cd /scratch\n#SBATCH --mem=8G\nexport OMP", 7, "after the first command (line 6)"),
        ("train.py\n", "train.py\n  #SBATCH --time=10\n", 11, "after the first command"),
        ("#SBATCH --nodes", "\t#SBATCH --nodes", 2, "only at the start of a line"),
        ("#SBATCH --gpus", "# SBATCH --gpus", 4, "a space between # and SBATCH"),
        ("#SBATCH --cpus-per-task=32", "#\tSBATCH -c 32", 5, "a space between # and SBATCH"),
        ("#!/bin/bash\n", "# a job\n", 1, "no #! at the start"),
        ("#!/bin/bash\n", "\ufeff#!/bin/bash\n", 1, "byte order mark"),
        ("export OMP_NUM_THREADS=8\n", "export OMP_NUM_THREADS=8\r\n", 6, "DOS line break"),
    ],
)
def test_each_mistake_is_found_at_its_line(old: str, new: str, line: int, words: str) -> None:
    assert old in _GOOD
    (mistake,) = lint(_GOOD.replace(old, new))
    assert (mistake.line, words in mistake.what) == (line, True), mistake
    assert mistake.fix


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--nnodes=2", "--nnodes=1:4"),
        ("--nnodes=2", "--nnodes=$SLURM_NNODES"),
        ("--nnodes=2", "--nnodes=$NODES"),
        ("#SBATCH --nodes=2", "#SBATCH --nodes=2-4"),
        ("#SBATCH --nodes=2", "#SBATCH --ntasks=2"),
        ("--gpus-per-node=4", "--gpus=8"),
        ("--gpus-per-node=4", "--gpus-per-task=4"),
        ("--ntasks-per-node=1", "--ntasks=2"),
    ],
)
def test_numbers_of_nodes_and_gpus_that_may_agree_are_left_alone(old: str, new: str) -> None:
    assert old in _GOOD
    assert lint(_GOOD.replace(old, new)) == []


def test_a_torchrun_of_its_own_on_every_node_is_left_alone() -> None:
    alone = _GOOD.replace("--nnodes=2", "--nnodes=1").replace("--rdzv_backend=c10d", "--standalone")
    assert lint(alone.replace('\\\n    --rdzv_endpoint="$head:$port" ', "")) == []


def test_a_torchrun_without_srun_waits_for_nodes_that_the_job_lacks() -> None:
    script = _GOOD.replace("--nodes=2", "--nodes=1").replace("srun --cpus-per-task=32 ", "")
    (mistake,) = lint(script)
    assert (mistake.line, mistake.fix) == (9, "--nnodes=$SLURM_NNODES")
    assert lint(script.replace("#SBATCH --nodes=1", "#SBATCH --nodes=1 --array=0-1")) == []


def test_machines_of_accelerate_are_compared_with_nodes() -> None:
    script = _GOOD.replace("torchrun --nnodes=2 --nproc_per_node=4", "accelerate launch --num_machines=3")
    (mistake,) = lint(script)
    assert "accelerate --num_machines=3 on 2 nodes" in mistake.what


def test_missing_cores_are_found() -> None:
    script = _GOOD.replace("#SBATCH --cpus-per-task=32\n", "").replace(" --cpus-per-task=32", "")
    (mistake,) = lint(script)
    assert mistake.line == 4
    assert "no --cpus-per-task" in mistake.what


@pytest.mark.parametrize(
    ("job", "step", "tasks"),
    [  # as SLURM 22.05 was seen to place them
        ("--ntasks-per-node=4", "", 4),
        ("--ntasks-per-node=4", "--ntasks=2", 1),
        ("--ntasks-per-node=4", "--ntasks-per-node=1", 4),
        ("--ntasks=8", "--ntasks-per-node=1", 4),
        ("--ntasks=2", "--ntasks-per-node=4", 1),
        ("--ntasks=2 --ntasks-per-node=4", "", 1),
        ("--time=10", "--ntasks-per-node=4", 4),
        ("--ntasks-per-node=4", "--ntasks=$SLURM_NNODES", 1),
    ],
)
def test_tasks_are_counted_as_srun_does(job: str, step: str, tasks: int) -> None:
    script = _GOOD.replace("--ntasks-per-node=1 ", job).replace("srun --cpus", f"srun {step} --cpus")
    mistakes = lint(script)
    assert [f"{tasks} tasks per node" in mistake.what for mistake in mistakes] == [True] * (tasks > 1)


def test_tasks_that_srun_ignores_have_a_fix_of_their_own() -> None:
    script = _GOOD.replace("--ntasks-per-node=1 ", "--ntasks-per-node=4 ")
    (mistake,) = lint(script.replace("srun --cpus", "srun --ntasks-per-node=1 --cpus"))
    assert (mistake.line, "srun ignores" in mistake.what) == (9, True)
    assert lint(script.replace("srun --cpus", f"{mistake.fix} --cpus")) == []


@pytest.mark.parametrize(
    ("asked", "fixed"),
    [
        ("--gpus-per-node=2", "--gpus-per-node=4"),
        ("--gpus-per-node=a100:2", "--gpus-per-node=a100:4"),
        ("--gres=gpu:2", "--gres=gpu:4"),
        ("--gres gpu:a100:2", "--gres=gpu:a100:4"),
        ("--gres=gpu:a100:2(S:0-1)", "--gres=gpu:a100:4"),
        ("--gres=gpu:1g.10gb:2", None),
        ("--gres=gpu", "--gres=gpu:4"),
        ("--gres=gpu:a100", "--gres=gpu:a100:4"),
    ],
)
def test_more_ranks_than_gpus_are_found(asked: str, fixed: str | None) -> None:
    flag = {"--gres=gpu:2": "--nproc-per-node 4", "--gres=gpu": '--nproc_per_node="4"'}.get(
        asked, "--nproc_per_node=4"
    )
    script = _GOOD.replace("--gpus-per-node=4", asked).replace("--nproc_per_node=4 ", f"\\\n  {flag} ")
    mistakes = lint(script)
    if fixed is None:
        assert mistakes == []
        return
    (mistake,) = mistakes
    assert (mistake.line, mistake.what.startswith("4 ranks on a node with ")) == (10, True), mistake
    fewer, more = mistake.fix.split(", or ")
    assert more.startswith(f"{fixed} instead of ")
    assert lint(script.replace(asked, fixed)) == lint(script.replace(flag, fewer)) == []


def test_ranks_in_a_variable_are_found_where_they_are_started() -> None:
    script = _GOOD.replace("--gpus-per-node=4", "--gres=gpu:2").replace("node=4 ", "node=$ranks ")
    (mistake,) = lint(script.replace("port=$", "ranks=4\nport=$"))
    assert (mistake.line, mistake.what) == (10, "4 ranks on a node with 2 requested GPUs")


@pytest.mark.parametrize(
    ("asked", "ranks"),
    [
        ("--gres=gpu:2", "gpu"),
        ("--gres=gpu:2", "auto"),
        ("--gres=gpu:2", "$SLURM_GPUS_ON_NODE"),
        ("--gres=gpu:a100:8", "4"),
        ("--gres=gpu:a100:2,gpu:v100:2", "4"),
        ("--gres=gpu:0", "4"),
        ("--gres=nvme:1", "4"),
        ("--gpus-per-node=$GPUS", "4"),
        ("--gres=gpu:2 --exclusive", "4"),
    ],
)
def test_ranks_that_have_their_gpus_are_left_alone(asked: str, ranks: str) -> None:
    assert lint(_GOOD.replace("--gpus-per-node=4", asked).replace("node=4 ", f"node={ranks} ")) == []


def test_the_gpus_of_a_step_count_before_those_of_the_job() -> None:
    step = _GOOD.replace("srun --cpus", "srun --gres=gpu:2 --cpus")
    assert [(mistake.line, "2 requested GPUs" in mistake.what) for mistake in lint(step)] == [(9, True)]


def test_tasks_without_torchrun_are_ranks() -> None:
    script = _GOOD.replace("--ntasks-per-node=1", "--ntasks-per-node=4").replace("torchrun", "python")
    assert [mistake.what for mistake in lint(script) if "launcher" in mistake.what] == []


def test_a_script_that_people_copy_has_all_of_them() -> None:
    script = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks=8
#SBATCH --gpus-per-task=1
srun --mpi=pmix torchrun --nproc_per_node=4 --rdzv_endpoint=$SLURM_NODELIST:29500 train.py
"""
    lines_and_words = [(mistake.line, mistake.what.split(":")[0].split(" ")[0]) for mistake in lint(script)]
    assert [line for line, _ in lines_and_words] == [3, 4, 4, 5, 5, 5, 5]


def test_dos_line_breaks_are_one_mistake_and_hide_no_other() -> None:
    script = _GOOD.replace("srun --cpus", "srun --mpi=pmix --cpus").replace("\n", "\r\n")
    dos, pmix = lint(script)
    assert (dos.line, "DOS" in dos.what, pmix.line) == (1, True, 9)
    assert "sed -i" in dos.fix


def test_a_script_that_holds_itself_ends() -> None:
    doubling = "".join(f"a{n + 1}=$a{n}$a{n}\n" for n in range(200))
    assert lint(_GOOD.replace("export OMP", f"a0=$a200\n{doubling}b=$b$b\nexport OMP")) == []


def test_the_fix_of_a_commented_directive_works() -> None:
    line = "# SBATCH --time=10  # minutes"
    script = _GOOD.replace("export OMP", f"{line}\nexport OMP")
    (mistake,) = lint(script)
    assert (mistake.line, mistake.fix) == (6, "#SBATCH --time=10")
    assert lint(script.replace(line, mistake.fix)) == []


@pytest.mark.parametrize(
    "comment",
    [
        "# SBATCH reads the lines above",
        "## SBATCH --time=10",
        "##SBATCH --time=10",
        "# use #SBATCH --time=10",
        "# SBATCH --nodes=8",  # put aside for the other --nodes
    ],
)
def test_comments_about_directives_are_none(comment: str) -> None:
    assert lint(_GOOD.replace("export OMP", f"{comment}\nexport OMP")) == []


def test_comments_after_the_first_command_are_comments() -> None:
    assert lint(_GOOD + "# SBATCH --time=10\n# srun --mpi=pmix torchrun --master_port=29500\n") == []


@pytest.mark.parametrize("path", sorted(_EXAMPLES.glob("*.sbatch")), ids=lambda path: path.name)
def test_our_examples_are_clean(path: Path) -> None:
    assert lint(path.read_text()) == []


def test_a_missing_srun_does_not_hide_a_wrong_number_of_nodes() -> None:
    script = _GOOD.replace("srun --cpus-per-task=32 torchrun --nnodes=2", "torchrun --nnodes=4")
    texts = [mistake.what for mistake in lint(script)]
    assert any("without srun" in text for text in texts)
    assert any("--nnodes=4 on 2 nodes" in text for text in texts)
