"""The server's command line: load the model, then listen, then say so."""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from smoke_engine import __version__
from smoke_engine.defaults import DEFAULT_HOST, DEFAULT_MODEL, DEFAULT_PORT
from smoke_engine.engine import Engine
from smoke_engine.loading import LoadingError, context_length, load
from smoke_engine.moods import moods_from

logger = logging.getLogger("smoke_engine.server")  # also where this file is __main__


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT.

    Returns:
        The exit status: 0 after a signal, 1 when loading failed, 2 for a wrong variable.
    """
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(asctime)s [%(name)s] %(message)s"
    )
    # The first process of a container gets no default handlers: without these it could not be stopped while loading.
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    logger.info("smoke-engine %s", __version__)
    try:
        moods = moods_from(os.environ)
    except ValueError as error:
        return _failed(error, 2)
    served_name = options.served_model_name or options.model
    try:
        max_model_len = context_length(options.model, options.max_model_len)
        load(options.model, max_model_len, moods)
    except LoadingError as error:
        return _failed(error, 1)
    engine = Engine(model=options.model, served_name=served_name, max_model_len=max_model_len, moods=moods)
    from smoke_engine.listen import listen  # late, because it takes longest to import and a failed start needs it not

    listen(engine, options.host, options.port)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="smoke-engine", description="Serve a toy model over OpenAI's protocol.")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a checkpoint's folder, or any name for the toy model")
    parser.add_argument("--served-model-name", help="the name that clients use (default: the model)")
    parser.add_argument("--host", default=DEFAULT_HOST, help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="port to listen on (default: %(default)s)")
    parser.add_argument("--max-model-len", type=_positive, help="tokens of prompt and answer together")
    parser.add_argument("--version", action="version", version=__version__)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _failed(error: Exception, status: int) -> int:
    logger.error("%s", error)
    return status


def _stop(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
