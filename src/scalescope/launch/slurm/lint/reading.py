"""Mistakes that keep sbatch from reading a script, or lines of it."""

from collections.abc import Iterator

from scalescope.launch.slurm.lint.facts import LintedJob, Mistake, slurm_options


def refused(script: str) -> Iterator[Mistake]:
    """What sbatch refuses before it reads anything."""
    if script.startswith("\ufeff"):
        yield Mistake(1, "a byte order mark before #!: sbatch rejects the script", "save it without one")
    elif not script.startswith("#!"):
        yield Mistake(1, "no #! at the start: sbatch rejects the script", "make the first line #!/bin/bash")
    if "\r\n" in script:
        yield Mistake(
            1 + script.count("\n", 0, script.index("\r\n")),
            "a DOS line break: sbatch rejects scripts that contain any",
            r"remove them: sed -i 's/\r$//' SCRIPT",
        )


def indented_directive(job: LintedJob) -> Iterator[Mistake]:
    for directive in job.script.directives:
        if directive.is_indented and directive.comes_after is None:
            yield Mistake(
                directive.number,
                "an indented #SBATCH: sbatch reads it only at the start of a line, so it has no effect",
                "remove the space before it",
            )


def late_directive(job: LintedJob) -> Iterator[Mistake]:
    for directive in job.script.directives:
        if directive.comes_after is not None:
            yield Mistake(
                directive.number,
                f"sbatch ignores #SBATCH after the first command (line {directive.comes_after}), "
                "so it has no effect",
                "move it to the top",
            )


def commented_directive(job: LintedJob) -> Iterator[Mistake]:
    """An option that another line gives was put aside on purpose."""
    read = {
        name
        for directive in job.script.directives
        if not directive.is_comment
        for name in slurm_options(directive.text)
    }
    for directive in job.script.directives:
        if directive.is_comment and not read.issuperset(slurm_options(directive.text)):
            yield Mistake(
                directive.number,
                "a space between # and SBATCH: to sbatch this is a comment, so it has no effect",
                f"#SBATCH {directive.text.strip()}",
            )
