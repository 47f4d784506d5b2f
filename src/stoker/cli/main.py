"""The command line: one file a command, loaded when it is called, so that `stoker --help` costs no pyarrow.

Exit codes: 0 done; 1 the data or the environment is at fault; 2 wrong usage; 130 and 143 when interrupted. Data goes to
stdout, everything else to stderr; a traceback only with `--debug`.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

import stoker
from stoker.errors import StokerError, UsageError

COMMANDS = {
    "checkpoint": "Look at, verify, move and pin checkpoints; how often to save.",
    "convert": "Write a dataset in another format: same samples, keys, order and values.",
    "demo": "Pack real photos, serve them from S3, warm a cache, train, and show where the time went.",
    "formats": "Compare the formats: how they are read, and what each is best for.",
    "index": "Build or check the index of a dataset.",
    "inspect": "Describe a dataset: fields, sizes, labels, order.",
    "pack": "Pack raw files into shards.",
    "plan": "Will the data keep up? The formulas, with typical or given rates.",
    "tune": "Find the settings of a DataLoader that feed a training step.",
    "verify": "Find all that is wrong with a dataset; save what is whole.",
}


_ClickError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""typer brings its own click or uses the installed one, by version: this is the base of wrong usage in either."""


class _Interrupted(BaseException):
    """SIGTERM: unwinds like Ctrl-C, so that everything started is stopped."""


class _Lazy(TyperGroup):
    """Knows the commands' names and one-line helps; imports a command's file when it is run."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"stoker.cli.{cmd_name}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=_Lazy,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Keeps GPUs fed: packs, caches, decodes and batches training data, and says why a GPU waits.",
    epilog="Example: stoker pack photos/ s3://bucket/photos --shard-size 256MB",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stoker {stoker.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version and stop."
    ),
) -> None:
    """The options of all commands; `main` reads --debug, a callback answers --version."""


def _terminated(number: int, frame: FrameType | None) -> None:
    raise _Interrupted


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given  # taken before and behind the command's name alike
    given = [word for word in given if word != "--debug"] if debug else given
    signal.signal(signal.SIGTERM, _terminated)
    command = typer.main.get_command(app)
    try:
        result = command.main(given, prog_name="stoker", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where what goes wrong is told
        return result if isinstance(result, int) else 0
    except typer.Exit as error:
        return error.exit_code
    except _ClickError as error:
        error.show()  # type: ignore[attr-defined]  # ClickException, see above
        return 2
    except (typer.Abort, KeyboardInterrupt):
        print("stoker: interrupted", file=sys.stderr)
        return 130
    except _Interrupted:
        print("stoker: terminated", file=sys.stderr)
        return 143
    except BrokenPipeError:  # the reader of our output left, as `head` does
        _leave_stdout()
        return 0
    except StokerError as error:
        if debug:
            raise
        print(f"stoker: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except OSError as error:  # of a file that was named on the command line, or of stdout itself
        if debug:
            raise
        print(f"stoker: error: {error}\nhint: --debug shows where", file=sys.stderr)
        _leave_stdout()
        return 1


def _leave_stdout() -> None:
    """Print what is left; where that fails, the interpreter flushes it to where nothing can."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
