"""The command `ett`: parse, call, print. Bad input is one line and exit code 2."""

from typing import IO, Any

import click

from torchett import __version__
from torchett.cli.advise.command import advise
from torchett.cli.bench import bench
from torchett.cli.checkpoint.group import checkpoint
from torchett.cli.cluster.drill import drill
from torchett.cli.cluster.schedule import schedule
from torchett.cli.cluster.slurm import slurm
from torchett.cli.compile.group import compile_
from torchett.cli.exchange import export, import_
from torchett.cli.failure import failure
from torchett.cli.fleet import fleet
from torchett.cli.fleet.advise import fleet_advise
from torchett.cli.publish.group import publish
from torchett.cli.report import compare, report
from torchett.cli.run.command import run
from torchett.cli.runs import explain, ls, rm
from torchett.cli.serve import serve
from torchett.cli.ship import ship
from torchett.cli.simulate import simulate
from torchett.cli.startup import startup

# How `ett --help` lists the commands: section → command and what it does, in a few words.
SECTIONS: dict[str, tuple[tuple[click.Command, str], ...]] = {
    "Run and read": (
        (run, "Run a training command and record it."),
        (ls, "List runs, newest first."),
        (report, "Show where the time of a job went."),
        (compare, "Show what changed between two jobs."),
        (explain, "Explain a word of a report."),
        (rm, "Delete runs."),
        (import_, "Read a run from another tool's file."),
        (export, "Write a run for another tool."),
    ),
    "Reduce the losses": (
        (advise, "Estimate what each lever would save on a job."),
        (simulate, "Estimate the effective time of a job before it runs."),
        (bench, "Train a small job with and without the levers."),
        (startup, "Show how a job started."),
        (compile_, "Share compiled code; find the causes of recompiles."),
        (checkpoint, "Plan the interval; list, verify, convert checkpoints."),
        (publish, "Publish models from checkpoints, on CPU workers."),
    ),
    "Failures and clusters": (
        (failure, "Find out what ended a job."),
        (drill, "Test that a job saves before a preemption."),
        (slurm, "Submit jobs to Slurm; import and preempt them."),
        (schedule, "Compare preemption policies on a trace."),
    ),
    "All jobs": (
        (serve, "Show runs in a browser."),
        (fleet, "Keep the ledgers of many jobs in one table."),
        (ship, "Send a run to a server."),
    ),
}


class OneLineUsageError(click.UsageError):
    """A usage error, shown as one line: the command, what is wrong, and where its help is."""

    def show(self, file: IO[Any] | None = None) -> None:
        path = self.ctx.command_path if self.ctx else "ett"
        said = self.format_message().rstrip(".").replace(". (Did", " (did")
        click.echo(f"{path}: {said[:1].lower()}{said[1:]}: see {path} --help", file=file, err=True)


class CommandsInSections(click.Group):
    """A group whose help lists its commands under headings, and whose usage errors are one line."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """As click's, with usage errors of `ett` itself on one line."""
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            raise _on_one_line(error) from None

    def invoke(self, ctx: click.Context) -> Any:
        """As click's, with usage errors of all commands on one line."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _on_one_line(error) from None

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """One table for each section, all of the same width."""
        width = max(len(name) for name in self.commands)
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [((one.name or "").ljust(width), does) for one, does in commands]
                )


def _on_one_line(error: click.UsageError) -> click.UsageError:
    if type(error).__name__ == "NoArgsIsHelpError":  # it shows the help; click has it since 8.2
        return error
    return OneLineUsageError(error.format_message(), error.ctx)


@click.group(
    "ett", cls=CommandsInSections, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="ett")
def main() -> None:
    """Account for every second of a PyTorch training job, and reduce what was not training.

    \b
    ett run -- torchrun --nproc-per-node 8 train.py    run a job and record it
    ett report                                         show where its time went
    """


fleet.add_command(fleet_advise)
for section in SECTIONS.values():
    for command, _ in section:
        main.add_command(command)


if __name__ == "__main__":
    main()
