"""SLURM jobs: options that could leave their line, templates that would run nothing, scripts to lint."""

from tests.bad_input.case import Case, Content, Folder, of_command

_JOB = ("train", "--launcher", "slurm", "--dry-run")


def _job(name: str, *flags: str, says: tuple[str, ...], files: dict[str, Content] | None = None) -> Case:
    return Case(name=f"job: {name}", command=(*_JOB, *flags), says=says, files=files or {})


def _template(name: str, content: Content, *says: str) -> Case:
    return _job(name, "--time=10m", "--slurm-template=t", says=says, files={"t": content})


def _lint(name: str, content: Content, *says: str) -> Case:
    return Case(name=f"lint: {name}", command=("slurm", "lint", "j"), files={"j": content}, says=says)


CASES = (
    of_command("partition without a job", "train --partition gpu", "--partition requires --launcher slurm"),
    Case(
        name="setup without a job",
        command=("train", "--setup", "module load x"),
        says=("--setup requires --launcher slurm",),
    ),
    of_command(
        "unknown launcher",
        "train --launcher slrum",
        "--launcher: must be one of local, slurm",
        "did you mean slurm?",
    ),
    of_command(
        "launcher of a file",
        "comm e.yaml",
        "e.yaml:1: launcher: must be one of",
        files={"e.yaml": "launcher: pbs\n"},
    ),
    _job("no nodes", "--nodes=0", says=("--nodes: must be at least 1",)),
    _job("a million nodes", "--nodes=1000000", says=("--nodes: must be at most",)),
    _job("partition with a semicolon", "--time=10m", "--partition=a;id", says=("--partition", "a;id")),
    _job(
        "partition with a substitution",
        "--time=10m",
        "--partition=$(id)",
        says=("--partition: '$(id)' is not allowed in an sbatch script",),
    ),
    _job(
        "partition with a line break",
        "--time=10m",
        "--partition=a\n#SBATCH --wrap=id",
        says=("--partition", "\\n"),
    ),
    _job("account with a line break", "--time=10m", "--account=a\rb", says=("--account", "\\r")),
    _job("name with a line break", "--time=10m", "--name=a\n#SBATCH --wrap=id", says=("--name", "\\n")),
    _job("setup with escape codes", "--time=10m", "--setup=\x1b[2J", says=("--setup", "\\x1b[2J")),
    _job("time in words", "--time=soon", says=("--time", "soon")),
    _job("time too short", "--time=1m", says=("--time", "5m")),
    _job("time with a line break", "--time=10m\n#SBATCH --wrap=id", says=("--time", "\\n")),
    _job("time with 99 minutes", "--time=1:99:00", says=("--time",)),
    _job("output folder that SLURM would expand", "--time=10m", "--output-dir=a%j b", says=("a%j b",)),
    _job("missing template", "--time=10m", "--slurm-template=gone", says=("--slurm-template", "gone")),
    _template("empty template", "", "--slurm-template"),
    _template("template without a command", "#!/bin/bash\nhostname\n", "--slurm-template", "{command}"),
    _template(
        "template with the command in a comment",
        '#!/bin/bash\n# {command} {launches} --only-launch="$launch"\n',
        "--slurm-template",
    ),
    _template("template that is a folder", Folder(), "--slurm-template"),
    _lint("folder", Folder(), "j: Is a directory"),
    _lint("script of blanks", " \n", "j: empty"),
    _lint("binary script", b"\x7fELF\0\0", "j: not a script but binary data"),
    _lint("script that is not UTF-8", b"#!/bin/bash\n\xff\n", "j: not UTF-8 text"),
    _lint("script of a megabyte", "#" * (1 << 21), "j: too large for a job script (at most 64 KiB)"),
    of_command("script that is a device", "slurm lint /dev/zero", "/dev/zero: "),
    of_command("script that is not there", "slurm lint gone", "gone: No such file"),
)
